"""Forward and backward as CUDA graphs: what Python launched once for a size of batch is launched again in one go.

A small model keeps a GPU busy for a few milliseconds a step, and Python needs several times as long to ask for it, operation
by operation. Packed and rounded batches come in few sizes, so their work can be recorded and replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.batch import Batch
from weft.kernels.graphs import Graphs
from weft.tasks.base import Loss

Work = Callable[[Batch, int], list[Loss]]
"""Forward and backward of a micro-batch that lies on the device, in an update of the given number.

It adds to the parameters' gradients and gives the losses, detached.
"""

WARM = 2
"""Batches of a size that are worked through as usual before their work is recorded; libraries set themselves up meanwhile."""

MOST = 16
"""Sizes that are recorded; each keeps memory of its own for what lives from one replay to the next."""


@dataclass
class Recording:
    """The work on one size of batch: put a batch in, replay, read the losses before the next replay."""

    replay: Callable[[], None]
    batch: Batch
    losses: list[Loss]

    def __call__(self, batch: Batch) -> list[Loss]:
        for mine, theirs in zip(self.batch.tensors(), batch.tensors(), strict=True):
            mine.copy_(theirs, non_blocking=True)
        self.replay()
        return self.losses


class Replayed:
    """`work` on a CUDA device, recorded for sizes of batches that come again.

    The work must be the same for all batches of a size, whatever the update: nothing in it may depend on numbers that the
    host computes or reads. Work with an operation that cannot be captured is not recorded at all. Parameters, buffers and
    gradients must stay where they are: between updates gradients are set to zero, never dropped.
    """

    def __init__(self, work: Work, device: torch.device) -> None:
        self.work, self.device = work, device
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._recordings: dict[tuple[Any, ...], Recording] = {}
        self._graphs = Graphs()
        self._refused = False

    @property
    def recorded(self) -> int:
        """How many sizes were recorded."""
        return len(self._recordings)

    def __call__(self, batch: Batch, update: int) -> list[Loss]:
        # Which rows these are matters to reports alone, and there are as many as there are sentences.
        batch = replace(batch, rows=batch.rows[:0])
        size = batch.outline()
        recording = self._recordings.get(size)
        if recording is None:
            self._seen[size] += 1
            wanted = self._seen[size] > WARM and len(self._recordings) < MOST and not self._refused
            recording = self._record(batch, update) if wanted else None
            if recording is None:
                return self.work(batch.to(self.device, non_blocking=True), update)
            self._recordings[size] = recording
        return recording(batch)

    def _record(self, batch: Batch, update: int) -> Recording | None:
        # A copy with layouts of its own: what layers keep in a layout must be computed inside the graph.
        batch = batch.to(self.device)
        losses: list[Loss] = []
        seed = torch.initial_seed()
        try:
            replay = self._graphs(lambda: losses.extend(self.work(batch, update)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self._refused = True
            torch.manual_seed(seed)
            return None
        return Recording(replay, batch, losses)
