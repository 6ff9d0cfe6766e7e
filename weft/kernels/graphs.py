"""Work that Python asked for once, operation by operation: compiled to fewer operations, and asked for again in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Work = Callable[[], None]
InPlace = Callable[..., object]
"""Work on tensors that changes them in place, and gives nothing else that matters."""


class Graphs:
    """Makes CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """What does `work` again; now it is only written down. RuntimeError if it holds something that cannot be."""
        graph = torch.cuda.CUDAGraph()
        # In training other threads pin memory meanwhile, which a stricter mode forbids them.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph.replay


class Compiler:
    """Compiles work by torch.compile, if it can: `warn` is told once if it cannot, and the work is done as it is.

    The work is written down as the operations it asks for, so nothing of its Python is compiled: it must ask for the same ones
    every time. Compiling takes seconds. mode and backend are those of torch.compile.
    """

    def __init__(self, warn: Callable[[str], None], mode: str | None = None, backend: str = "inductor") -> None:
        self.warn, self.mode, self.backend = warn, mode, backend
        self._failed = False

    def __call__(self, work: InPlace, tensors: Sequence[Tensor]) -> InPlace:
        """The same work on tensors of these sizes. It is done on copies of them here."""
        if self._failed:
            return work
        try:
            written = _write_down(work, [tensor.clone() for tensor in tensors])
            program: InPlace = torch.compile(written, dynamic=False, fullgraph=True, mode=self.mode, backend=self.backend)
            program(*(tensor.clone() for tensor in tensors))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler has its own errors, and those of the tools it calls
            self._failed = True
            self.warn(f"compiling failed, so decoding goes on without it ({type(error).__name__}: {_beginning(error)})")
            return work
        return program


def _write_down(work: InPlace, tensors: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations that `work` asks for, which is done on the way."""
    from torch.fx.experimental.proxy_tensor import make_fx  # a tenth of a second, which only who compiles should spend

    def alone(*mine: Tensor) -> tuple[()]:
        work(*mine)
        return ()

    written = make_fx(alone)(*tensors)
    for node in written.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        # What was laid out so that it could be viewed may be laid out otherwise by a compiler.
        node.target = torch.ops.aten.reshape.default
    written.recompile()
    return written


def _beginning(error: Exception) -> str:
    """The first words of an error: those of compilers are pages long, and their second line says what was wrong."""
    return " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2]) or "no reason given"
