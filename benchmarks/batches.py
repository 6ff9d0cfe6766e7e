"""Batches of random sentences with lengths like those of image captions, and training steps on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import torch
from timing import timed

from weft.data.batch import BOS, PAD, Layout, PairBatch, Source
from weft.models.base import Model
from weft.tasks.base import Loss
from weft.training.compile_and_cuda_graphs import CudaGraphSteps

Batch = tuple[torch.Tensor, torch.Tensor, Layout]
"""Source, labels, and the layout of both."""

Step = Callable[[Batch], None]
Hidden = Callable[[Model, Batch], torch.Tensor]


def make_batches(vocabulary: int, budget: int = 4096, count: int = 8, device: str = "cpu") -> list[Batch]:
    """Batches of at most `budget` tokens per side, padding included. Lengths are around 15, similar within a batch."""
    lengths = sorted(min(60, max(5, int(random.gauss(15, 5)))) for _ in range(max(6000, budget)))
    cut: list[list[int]] = [[]]
    for length in lengths:
        if cut[-1] and length * (len(cut[-1]) + 1) > budget:
            cut.append([])
        cut[-1].append(length)
    random.shuffle(cut)
    return [_fill(Layout.padded(rows), vocabulary, device) for rows in cut[:count]]


def _fill(layout: Layout, vocabulary: int, device: str) -> Batch:
    sides = [torch.randint(4, vocabulary, layout.segments.shape).masked_fill(~layout.mask, PAD) for _ in range(2)]
    return sides[0].to(device), sides[1].to(device), layout.to(device)


def count_tokens(batches: list[Batch]) -> int:
    """Counts target tokens without padding."""
    return sum(int(layout.mask.sum()) for _, _, layout in batches)


def shift_right(labels: torch.Tensor) -> torch.Tensor:
    """The decoder's input: labels [B, T] after BOS, without the last."""
    return torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)


def parallel_hidden(model: Model, batch: Batch) -> torch.Tensor:
    """Hidden states [B, T, D] of all target positions in one call, as in weft's training."""
    source, labels, layout = batch
    return model(Source(source, layout), shift_right(labels), layout).hidden


def forward_backward(model: Model, half: bool, hidden: Hidden = parallel_hidden) -> Step:
    """Returns a function that adds the gradients of a batch, in bf16 if `half`."""

    def work(batch: Batch) -> None:
        source, labels, layout = batch
        # A layout caches what layers derive from it; in training, every batch has a new layout.
        batch = source, labels, replace(layout)
        with torch.autocast(labels.device.type, torch.bfloat16, enabled=half):
            loss, _ = model.decoder.loss(hidden(model, batch), labels, 0.1)
        (loss / layout.mask.sum()).backward()

    return work


def record(work: Step, device: torch.device) -> Step:
    """The same step, replayed as a CUDA graph as in weft's training on a GPU."""

    def compute(batch: PairBatch, update: int) -> list[Loss]:
        work((batch.target, batch.labels, batch.target_layout))
        return []

    replayed = CudaGraphSteps(compute, device)

    def step(batch: Batch) -> None:
        source, labels, layout = batch
        layout = replace(layout, known=None)
        replayed(PairBatch(labels[:0, 0], Source(source, layout), source, layout, labels), 1)

    return step


def training_step(model: Model, half: bool, hidden: Hidden = parallel_hidden, replay: bool = False) -> Step:
    """Forward, backward, clipping and AdamW, in bf16 if `half`; replayed as a CUDA graph if `replay`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    work = forward_backward(model, half, hidden)
    work = record(work, model.device) if replay else work

    def step(batch: Batch) -> None:
        work(batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not replay)

    return step


def speed(step: Step, batches: list[Batch]) -> float:
    """Target tokens per second."""
    each = iter(batches)
    return count_tokens(batches) / (timed(lambda: step(next(each)), len(batches), batches[0][0].device.type) * len(batches))
