"""Captures the steps of a search as CUDA graphs, one per size, and replays them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from weft.data.batch import Layout, Source
from weft.decoding.search_loop import ActiveHypotheses, SearchStep, StepRunner
from weft.layers.decoder_state import State, clone, leaves, map_children, refill, without_cached, write_
from weft.layers.kernels.cuda_graph_capture import Compiler, CudaGraphs, GraphRecorder, Key, Work
from weft.models.base import Encoded, Model

MOST = 128
"""The most captured sizes of steps, and of everything else; each holds the state of a search."""

SHARE = 0.1
"""The share of the device's memory that captured searches may hold. A batch of a further size runs as usual."""

SPARE = 0.2
"""No more searches are captured when less than this share of the device's memory is free: other programs may need it."""

T = TypeVar("T")


@dataclass
class CapturedGraph:
    """Captured work with its input and its result, a list of one, at fixed addresses. A step overwrites its input.

    places: the tensors of the input · held: an object that must stay alive as long as the work can be replayed.
    """

    replay: Work
    inputs: State
    places: list[Tensor]
    made: list[State]
    held: object

    def __call__(self, tensors: list[Tensor]) -> None:
        """Replays the work on these tensors."""
        other = [place for place, (mine, theirs) in enumerate(zip(self.places, tensors, strict=True)) if mine is not theirs]
        if other:
            # One call: a search has about fifty small tensors, and launching each copy would take longer than the copy.
            torch._foreach_copy_([self.places[place] for place in other], [tensors[place] for place in other])
        self.replay()


class SearchGraphs(GraphRecorder[CapturedGraph]):
    """The captured searches of one model.

    room: about how many bytes all graphs may hold · crowded: whether the device has too little free memory for another one.
    """

    def __init__(
        self, capture: Callable[[Work], Work], room: float = math.inf, crowded: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(capture, warm=1, most=MOST, memory_errors=False)
        self.room, self._crowded = room, crowded
        self.last: tuple[Hashable, ActiveHypotheses, Work] | None = None

    def counts(self) -> dict[str, int]:
        """The number of captured graphs, and of kinds of work that cannot be captured."""
        return {"recorded": len(self.graphs), "refused": len(self.refused)}

    def runner(self, setting: Hashable, compiler: Compiler | None = None) -> CapturedStepRunner:
        """A `StepRunner` that captures. `setting`: everything that changes a search besides the sizes of its tensors."""
        return CapturedStepRunner(self, setting, compiler)

    def find(
        self,
        what: str,
        kind: Hashable,
        inputs: State,
        tensors: list[Tensor],
        do: Callable[[State], State],
        compiler: Compiler | None = None,
    ) -> CapturedGraph | None:
        """The graph of this kind of work for this size, captured now if need be; None if the work is to run as usual.

        tensors: those in `inputs`.
        """
        key: Key = what, kind, tuple((leaf.shape, leaf.dtype) for leaf in tensors)
        if key in self.graphs:
            return self.graphs[key]
        if not self.due(key) or self.room <= 0 or self._crowded():
            return None
        mine: State = clone(inputs)
        places = leaves(mine)
        made: list[State] = [None]
        program = None if compiler is None else compiler(lambda *inner: do(refill(mine, inner)), places)

        def work() -> None:
            made[0] = do(mine) if program is None else program(*places)

        replay = self.capture(key, work)
        if replay is None:
            return None
        self.room -= sum({leaf.data_ptr(): leaf.nbytes for leaf in (*places, *leaves(made[0]))}.values())
        self.graphs[key] = CapturedGraph(replay, mine, places, made, program)
        return self.graphs[key]


@dataclass(frozen=True)
class CapturedStepRunner(StepRunner):
    """Captured searches with one setting. With a compiler, steps are compiled before they are captured."""

    recorder: SearchGraphs
    setting: Hashable
    compiler: Compiler | None = None

    def encode(self, model: Model, source: Source) -> Encoded:
        return self.opening("encode", model.encode, source)

    def opening(self, key: Hashable, work: Callable[[Any], T], inputs: State) -> T:
        """The result of `work(inputs)`. It is valid until the same work is done again."""
        bare = _without_lengths(inputs)
        tensors = leaves(bare)
        graph = self.recorder.find("work", (self.setting, key), bare, tensors, lambda mine: work(without_cached(mine)))
        if graph is None:
            return work(inputs)
        graph(tensors)
        made: T = without_cached(graph.made[0])
        return made

    def holds(self, now: ActiveHypotheses) -> bool:
        last = self.recorder.last
        return last is not None and last[1] is now

    def change(
        self, key: Hashable, work: Callable[[ActiveHypotheses, Tensor], None], now: ActiveHypotheses, given: Tensor
    ) -> None:
        if not self.holds(now):  # its tensors are not those of the graph of a step, which stay where they are
            return super().change(key, work, now, given)
        size = now.owner.numel(), now.tokens.data_ptr()
        graph = self.recorder.find("change", (self.setting, key, size), given, [given], lambda mine: work(now, mine))
        if graph is None:
            work(now, given)
        else:
            graph([given])
        return None

    def step(self, step: SearchStep, now: ActiveHypotheses) -> ActiveHypotheses:
        recorder, last = self.recorder, self.recorder.last
        if last is not None and last[0] == self.setting and last[1] is now:
            # The search is still in the tensors of the graph: nothing to copy and nothing to look up.
            last[2]()
            return now
        tensors = leaves(now)
        graph = recorder.find("step", self.setting, now, tensors, lambda mine: _advance(step, mine), self.compiler)
        if graph is None:
            return step(now)
        graph(tensors)
        handle: ActiveHypotheses = without_cached(graph.inputs)
        recorder.last = self.setting, handle, graph.replay
        return handle


def _advance(step: SearchStep, state: ActiveHypotheses) -> State:
    """Makes a step and writes its results over its input."""
    after = step(without_cached(state))
    if len(leaves(after)) != len(leaves(state)):
        raise RuntimeError("a step must return as many tensors as it was given")
    return write_(state, after)


def _without_lengths(inputs: State, _: object = None) -> State:
    """The same without the lengths that the host knows, which must not influence the graph."""
    return replace(inputs, known=None) if isinstance(inputs, Layout) else map_children(_without_lengths, inputs)


_RECORDERS: WeakKeyDictionary[Model, SearchGraphs] = WeakKeyDictionary()


def search_graphs_of(model: Model) -> SearchGraphs | None:
    """The recorder of this model's searches; None if the model is not on a CUDA device."""
    if model.device.type != "cuda":
        return None
    if model not in _RECORDERS:
        device = model.device
        room = SHARE * torch.cuda.get_device_properties(device).total_memory
        _RECORDERS[model] = SearchGraphs(CudaGraphs(), room, lambda: _crowded(*torch.cuda.mem_get_info(device)))
    return _RECORDERS[model]


def _crowded(free: int, total: int) -> bool:
    return free < SPARE * total
