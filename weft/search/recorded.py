"""Steps of the search as CUDA graphs: what Python launched once for a size of search is launched again in one go."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from weft.batch import Layout, Source
from weft.kernels.graphs import Compiler, Graphs, Work
from weft.models.base import Encoded, Model
from weft.search.loop import Given, Running, Step
from weft.state import State, again, clone, leaves, refill, write_

MOST = 64
"""Sizes that are recorded of steps, and as many of all else; each keeps the state of a search of its own."""

T = TypeVar("T")


@dataclass
class Recording:
    """Work, what it reads, and what it makes of it, a list of one; all stay where they are. A step writes over what it reads.

    places: the tensors of what it reads · held: what must not go while it can be replayed.
    """

    replay: Work
    given: State
    places: list[Tensor]
    made: list[State]
    held: object

    def __call__(self, tensors: list[Tensor]) -> None:
        """The work on these tensors."""
        other = [place for place, (mine, theirs) in enumerate(zip(self.places, tensors, strict=True)) if mine is not theirs]
        if other:
            # One call: a search has some fifty small tensors, and asking for each copy would take longer than making it.
            torch._foreach_copy_([self.places[place] for place in other], [tensors[place] for place in other])
        self.replay()


class Recorder:
    """Records the searches of one model. `capture` turns work into something that does the same work again.

    Work is done as usual when its size is new, and recorded when the size comes again. What holds an operation that cannot
    be captured (it asks the host for something) is never recorded again.
    """

    def __init__(self, capture: Callable[[Work], Work]) -> None:
        self._capture = capture
        self._recordings: dict[tuple[Hashable, ...], Recording] = {}
        self._seen: set[Hashable] = set()
        self._refused: set[Hashable] = set()
        self._last: tuple[Hashable, Running, Work] | None = None

    def stepping(self, setting: Hashable, compiler: Compiler | None = None) -> Recorded:
        """A way of searching. `setting`: whatever changes what a search does besides the sizes of its tensors."""
        return Recorded(self, setting, compiler)

    def work(self, key: Hashable, do: Callable[[State], T], given: State) -> T:
        """What `do` makes of the tensors in `given`; it lasts until the same is asked for again."""
        bare = _without_lengths(given)
        tensors = leaves(bare)
        recording = self._find("work", key, bare, tensors, lambda mine: do(again(mine)))
        if recording is None:
            return do(given)
        recording(tensors)
        made: T = again(recording.made[0])
        return made

    def step(self, setting: Hashable, step: Step, now: Running, compiler: Compiler | None) -> Running:
        """The next step of a search, compiled before it is recorded if there is a compiler."""
        if self._last is not None and self._last[0] == setting and self._last[1] is now:
            # The search stands where the recording left it: there is nothing to be copied, and nothing to be looked up.
            self._last[2]()
            return now
        tensors = leaves(now)
        recording = self._find("step", setting, now, tensors, lambda mine: _advance(step, mine), compiler)
        if recording is None:
            return step(now)
        recording(tensors)
        handle: Running = again(recording.given)
        self._last = setting, handle, recording.replay
        return handle

    def _find(
        self,
        what: str,
        kind: Hashable,
        given: State,
        tensors: list[Tensor],
        do: Callable[[State], State],
        compiler: Compiler | None = None,
    ) -> Recording | None:
        """What was recorded of this kind of work for this size, or is now; None if it is to be done as usual.

        tensors: those of what is given.
        """
        size = (what, kind, tuple((leaf.shape, leaf.dtype) for leaf in tensors))
        if size in self._recordings:
            return self._recordings[size]
        new = size not in self._seen
        self._seen.add(size)
        if new or (what, kind) in self._refused or sum(known[0] == what for known in self._recordings) == MOST:
            return None
        mine: State = clone(given)
        places = leaves(mine)
        made: list[State] = [None]
        program = None if compiler is None else compiler(lambda *inner: do(refill(mine, inner)), places)

        def work() -> None:
            made[0] = do(mine) if program is None else program(*places)

        try:
            replay = self._capture(work)
        except RuntimeError:
            self._refused.add((what, kind))
            return None
        self._recordings[size] = Recording(replay, mine, places, made, program)
        return self._recordings[size]


@dataclass(frozen=True)
class Recorded:
    """Searches of one kind, recorded."""

    recorder: Recorder
    setting: Hashable
    compiler: Compiler | None = None

    def encode(self, model: Model, source: Source) -> Encoded:
        return self.recorder.work((self.setting, "encode"), model.encode, source)

    def opening(self, key: Hashable, work: Callable[[Given], Running], given: Given) -> Running:
        return self.recorder.work((self.setting, key), work, given)

    def step(self, step: Step, now: Running) -> Running:
        return self.recorder.step(self.setting, step, now, self.compiler)


def _advance(step: Step, state: Running) -> State:
    """Makes a step that ends where it began: its results are written over what it read."""
    after = step(again(state))
    if len(leaves(after)) != len(leaves(state)):
        raise RuntimeError("a step has to leave as many tensors as it found")
    return write_(state, after)


def _without_lengths(given: State) -> State:
    """The same without what the host knows of lengths, which must not decide what is recorded."""
    if isinstance(given, Layout):
        return replace(given, known=None)
    if isinstance(given, Source):
        return replace(given, layout=_without_lengths(given.layout))
    if isinstance(given, tuple):
        return tuple(_without_lengths(each) for each in given)
    if isinstance(given, Given):
        return replace(given, source=_without_lengths(given.source), layout=_without_lengths(given.layout))
    if isinstance(given, Encoded):
        return replace(given, layout=_without_lengths(given.layout), parts=[_without_lengths(part) for part in given.parts])
    return given


_RECORDERS: WeakKeyDictionary[Model, Recorder] = WeakKeyDictionary()


def recorder_of(model: Model) -> Recorder | None:
    """The recorder of this model's searches, with all it has recorded; None if the model is not on a CUDA device."""
    if model.device.type != "cuda":
        return None
    if model not in _RECORDERS:
        _RECORDERS[model] = Recorder(Graphs())
    return _RECORDERS[model]
