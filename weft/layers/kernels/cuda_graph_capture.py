"""Captures repeated work as CUDA graphs, for training and for searches, and compiles it with torch.compile."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from threading import get_ident
from typing import Generic, TypeVar

import torch
from torch import Tensor

Work = Callable[[], None]
InPlace = Callable[..., object]
"""A function that changes its tensors in place; its return value does not matter."""


class CudaGraphs:
    """Captures CUDA graphs that share one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """Captures `work` without running it, and returns a function that runs it. RuntimeError if it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        # In training other threads pin memory meanwhile, which a stricter mode would forbid.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph.replay


Graph = TypeVar("Graph")
Key = tuple[Hashable, Hashable, Hashable]
"""Group, kind and size of work: the sizes of a group are limited, and kinds are captured or not as a whole."""


class GraphRecorder(Generic[Graph]):
    """The captured work of a model, by key.

    Work of a new size runs eagerly, `warm` times in each thread, and is captured when it comes again: libraries such as cuBLAS
    may set themselves up when a thread first calls them, which must not happen while capturing. A kind of work with an
    operation that cannot be captured, because it needs the host, is not tried again, and a message says why.

    capture: turns work into a function that repeats it · most: captured sizes per group · memory_errors: whether to raise an
    error if memory runs out while capturing; otherwise the kind is not tried again · report: receives a message about each
    kind that cannot be captured, by default the log of Python.
    """

    report: Callable[[str], None] = staticmethod(logging.getLogger("weft").warning)

    def __init__(self, capture: Callable[[Work], Work], *, warm: int, most: int, memory_errors: bool) -> None:
        self._capture, self.warm, self.most, self.memory_errors = capture, warm, most, memory_errors
        self.graphs: dict[Key, Graph] = {}
        self.refused: set[Hashable] = set()
        self._seen: Counter[Hashable] = Counter()

    def due(self, key: Key) -> bool:
        """Whether to capture work that has just come again. Counts how often it came."""
        here = get_ident(), key
        self._seen[here] += 1
        full = sum(known[0] == key[0] for known in self.graphs) >= self.most
        return self._seen[here] > self.warm and not full and key[:2] not in self.refused

    def capture(self, key: Key, work: Work) -> Work | None:
        """Captures work without running it, and returns a function that runs it; None if it cannot be captured."""
        try:
            return self._capture(work)
        except RuntimeError as error:
            if self.memory_errors and isinstance(error, torch.OutOfMemoryError):
                raise
            self.refused.add(key[:2])
            self.report(
                f"{key[0]} runs without a CUDA graph, and so more slowly, because it cannot be captured: {describe(error)}"
            )
            return None


class Compiler:
    """Compiles work with torch.compile; if that fails, calls `warn` once and returns the work unchanged.

    The work is traced to its tensor operations first, so its Python code is not compiled: it must run the same operations every
    time. Compiling takes seconds. mode and backend are those of torch.compile.
    """

    def __init__(self, warn: Callable[[str], None], mode: str | None = None, backend: str = "inductor") -> None:
        self.warn, self.mode, self.backend = warn, mode, backend
        self._failed = False

    def __call__(self, work: InPlace, tensors: Sequence[Tensor]) -> InPlace:
        """Compiles the work for tensors of these sizes. Runs it on copies of them."""
        if self._failed:
            return work
        try:
            traced = _trace(work, [tensor.clone() for tensor in tensors])
            program: InPlace = torch.compile(traced, dynamic=False, fullgraph=True, mode=self.mode, backend=self.backend)
            program(*(tensor.clone() for tensor in tensors))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise errors of their own and of the tools they call
            self._failed = True
            self.warn(f"compiling failed; decoding continues without it ({describe(error)})")
            return work
        return program


def _trace(work: InPlace, tensors: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Traces the operations of `work` while running it."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes 0.1 s, so only if needed

    def without_result(*mine: Tensor) -> tuple[()]:
        work(*mine)
        return ()

    traced = make_fx(without_result)(*tensors)
    for node in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        # A compiler may choose another memory layout, for which `view` fails.
        node.target = torch.ops.aten.reshape.default
    traced.recompile()
    return traced


def describe(error: Exception) -> str:
    """The kind and the first two lines of an error: compilers report pages, and the second line names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2]) or 'no reason given'}"
