"""CUDA graphs: work that Python asked for once, operation by operation, is asked for again in one go."""

from __future__ import annotations

from collections.abc import Callable

import torch

Work = Callable[[], None]


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
