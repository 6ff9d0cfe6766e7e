"""Steps of the search as CUDA graphs: what Python launched once for a size of search is launched again in one go."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from weft.graphs import Graphs, Work
from weft.models.base import Model
from weft.search.loop import Running, Step, Stepping
from weft.state import clone, leaves, write_

MOST = 64
"""Sizes that are recorded; each keeps the state of a search of its own."""


@dataclass
class Recording:
    """A step, and the state it reads and writes, which stays where it is."""

    replay: Work
    state: Running


class Recorder:
    """Makes the steps of searches with one model. `capture` turns work into something that does the same work again.

    A step is made as usual when its size is new, and recorded when the size comes again. A model with an operation that
    cannot be captured (it asks the host for something) is never recorded again.
    """

    def __init__(self, capture: Callable[[Work], Work]) -> None:
        self._capture = capture
        self._recordings: dict[Hashable, Recording] = {}
        self._seen: set[Hashable] = set()
        self._refused = False

    def stepping(self, setting: Hashable) -> Stepping:
        """A way of making steps. `setting`: whatever changes what a step does besides the sizes of its tensors."""
        return lambda step, now: self._step(setting, step, now)

    def _step(self, setting: Hashable, step: Step, now: Running) -> Running:
        size = (setting, tuple((leaf.shape, leaf.dtype) for leaf in leaves(now)))
        recording = self._recordings.get(size)
        if recording is None:
            new = size not in self._seen
            self._seen.add(size)
            recording = None if new or self._refused or len(self._recordings) == MOST else self._record(step, now)
            if recording is None:
                return step(now)
            self._recordings[size] = recording
        # After a replay the search already stands where the recording reads it, and nothing is copied.
        write_(recording.state, now)
        recording.replay()
        return _handle(recording.state)

    def _record(self, step: Step, now: Running) -> Recording | None:
        state = clone(now)
        try:
            return Recording(self._capture(lambda: write_(state, step(_handle(state)))), state)
        except RuntimeError:
            self._refused = True
            return None


def _handle(state: Running) -> Running:
    """The same tensors under another name: a search may go on with others without touching the recording."""
    return replace(state, noted=list(state.noted))


_RECORDERS: WeakKeyDictionary[Model, Recorder] = WeakKeyDictionary()


def recorder_of(model: Model) -> Recorder | None:
    """The recorder of this model's searches, with all it has recorded; None if the model is not on a CUDA device."""
    if model.device.type != "cuda":
        return None
    if model not in _RECORDERS:
        _RECORDERS[model] = Recorder(Graphs())
    return _RECORDERS[model]
