"""Compilation of the blocks of a model for training, where that pays, and CUDA graphs of forward and backward passes.

There is one graph per batch size: Python launches small operations too slowly.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from weft.config.sections import TrainSection
from weft.data.batch import Batch
from weft.layers.kernels import probe_device, triton_available
from weft.layers.kernels.cuda_graph_capture import CudaGraphs, GraphRecorder, Key
from weft.models.base import Network
from weft.tasks.base import Loss

LARGE = 30_000_000
"""Number of parameters from which compiling is worth half a minute. Smaller models have short steps and short trainings."""


def compile_blocks(model: nn.Module, config: TrainSection, device: torch.device) -> bool:
    """Compiles the blocks of a model on `device` in place, if the configuration says so. Returns whether it did."""
    if not compiles(model, config, device):
        return False
    probe_device(device)
    for block in model.repeated if isinstance(model, Network) else [model]:
        block.compile()
    return True


def compiles(model: nn.Module, config: TrainSection, device: torch.device) -> bool:
    """Resolves train.compile; "auto" means where compiling is known to pay."""
    if config.compile != "auto":
        return config.compile
    # Batches of ever different sizes would make the compiler recompile.
    if device.type != "cuda" or config.packed is not True or not isinstance(model, Network):
        return False
    return model.compiles and model.count_parameters() >= LARGE and triton_available(next(model.parameters()))


Work = Callable[[Batch, int], list[Loss]]
"""Forward and backward of a micro-batch in the update of the given number.

It adds to the gradients of the parameters and returns the detached losses.
"""

WARM = 2
"""Batches of a size that run eagerly before their work is captured, so that libraries can initialise themselves."""

MOST = 16
"""Maximum number of captured sizes; each keeps its own memory for tensors that live from replay to replay."""


@dataclass
class CapturedStep:
    """The captured work for one batch size. The losses are valid until the next replay."""

    replay: Callable[[], None]
    batch: Batch
    losses: list[Loss]

    def __call__(self, batch: Batch) -> list[Loss]:
        for input, given in zip(self.batch.tensors(), batch.tensors(), strict=True):
            input.copy_(given, non_blocking=True)
        self.replay()
        return self.losses


class CudaGraphSteps(GraphRecorder[CapturedStep]):
    """`work` on a CUDA device, captured as a graph for batch sizes that recur.

    The work must be the same for all batches of a size, whatever the update: it may not depend on numbers that the host
    computes or reads. If an operation cannot be captured, nothing is. Parameters, buffers and gradients must keep their
    addresses: between updates gradients are set to zero, not to None.
    """

    def __init__(self, work: Work, device: torch.device, report: Callable[[str], None] | None = None) -> None:
        super().__init__(CudaGraphs(), warm=WARM, most=MOST, memory_errors=True)
        self.report = report or self.report
        self.work, self.device = work, device

    def __call__(self, batch: Batch, update: int) -> list[Loss]:
        # The row numbers are only for reports, and their count varies with the number of sentences.
        batch = replace(batch, rows=batch.rows[:0])
        key: Key = "step", None, batch.outline()
        if key not in self.graphs and not (self.due(key) and self._record(key, batch, update)):
            return self.work(batch.to(self.device, non_blocking=True), update)
        return self.graphs[key](batch)

    def _record(self, key: Key, batch: Batch, update: int) -> bool:
        """Captures the work on a batch. Returns whether that is possible."""
        # Use a copy with its own layouts: values that layers cache in a layout must be computed inside the graph.
        batch = batch.to(self.device)
        losses: list[Loss] = []
        seed = torch.initial_seed()
        replay = self.capture(key, lambda: losses.extend(self.work(batch, update)))
        if replay is None:
            torch.manual_seed(seed)
            return False
        self.graphs[key] = CapturedStep(replay, batch, losses)
        return True
