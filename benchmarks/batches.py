"""Batches of made-up sentences, with lengths like those of image captions, and a training step on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from weft.batch import BOS, PAD, Layout, Source
from weft.batch import Batch as PairBatch
from weft.models.base import Model
from weft.tasks.base import Loss
from weft.training.replay import Replayed

Batch = tuple[torch.Tensor, torch.Tensor, Layout]
"""Source, labels, and the layout of both."""

Step = Callable[[Batch], None]
Hidden = Callable[[Model, Batch], torch.Tensor]


def make_batches(vocabulary: int, budget: int = 4096, count: int = 8, device: str = "cpu") -> list[Batch]:
    """Batches of at most `budget` tokens a side, padding included, rows of like length together; lengths are around 15."""
    lengths = sorted(min(60, max(5, int(random.gauss(15, 5)))) for _ in range(max(6000, budget)))
    cut: list[list[int]] = [[]]
    for length in lengths:
        if cut[-1] and length * (len(cut[-1]) + 1) > budget:
            cut.append([])
        cut[-1].append(length)
    random.shuffle(cut)
    return [_fill(Layout.padded(rows), vocabulary, device) for rows in cut[:count]]


def _fill(layout: Layout, vocabulary: int, device: str) -> Batch:
    sides = [torch.randint(4, vocabulary, layout.segments.shape).masked_fill(~layout.ok, PAD) for _ in range(2)]
    return sides[0].to(device), sides[1].to(device), layout.to(device)


def tokens_of(batches: list[Batch]) -> int:
    """Target tokens, padding not counted."""
    return sum(int(layout.ok.sum()) for _, _, layout in batches)


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)


def whole(model: Model, batch: Batch) -> torch.Tensor:
    """Hidden states of all targets at once, as weft trains."""
    source, labels, layout = batch
    return model(source, layout, shifted(labels), layout).hidden


def forward_backward(model: Model, half: bool, hidden: Hidden = whole) -> Step:
    """Adds the gradients of a batch, in bf16 where `half`."""

    def work(batch: Batch) -> None:
        source, labels, layout = batch
        # A layout keeps what layers derive from it, but in training every batch is a new one.
        batch = source, labels, replace(layout)
        with torch.autocast(labels.device.type, torch.bfloat16, enabled=half):
            loss, _ = model.decoder.loss(hidden(model, batch), labels, 0.1)
        (loss / layout.ok.sum()).backward()

    return work


def recorded(work: Step, device: torch.device) -> Step:
    """The same, recorded as weft records its training on a GPU."""

    def again(batch: PairBatch, update: int) -> list[Loss]:
        work((batch.target, batch.labels, batch.target_layout))
        return []

    replayed = Replayed(again, device)

    def step(batch: Batch) -> None:
        source, labels, layout = batch
        layout = replace(layout, known=None)
        replayed(PairBatch(labels[:0, 0], Source(source, layout), source, layout, labels), 1)

    return step


def training_step(model: Model, half: bool, hidden: Hidden = whole, record: bool = False) -> Step:
    """Forward, backward, clipping and AdamW, in bf16 where `half`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    work = forward_backward(model, half, hidden)
    work = recorded(work, model.device) if record else work

    def step(batch: Batch) -> None:
        work(batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not record)

    return step
