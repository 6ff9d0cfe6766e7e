"""Batches of given sentences and the losses a translation task makes of them, for tests of what is minimised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.config.registry import build
from weft.config.sections import load_config
from weft.data.batch import BOS, EOS, Layout, PairBatch, Source
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.tasks.base import Loss, TaskContext
from weft.tasks.translation.task import TranslationTask


def make_task(**options: Any) -> TranslationTask:
    """A task that has no data, for its losses alone."""
    config = load_config("rnn-hard")
    task: TranslationTask = build("weft.tasks:TASKS", {"kind": "translation", **options}, TaskContext(config, Path()))
    return task


def make_model(vocabulary: int = 12, **options: Any) -> Model:
    """A small model in float64, by default an RNN."""
    torch.manual_seed(3)
    usual = {"kind": "rnn", "dim": 6, "dropout": 0.0}
    model: Model = build_model({**usual, **options}, Sizes(vocabulary, vocabulary, True))
    return model.double()


def make_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> PairBatch:
    """A padded batch of pairs of ids."""
    first, labels = [[BOS, *row] for row in targets], [[*row, EOS] for row in targets]
    layouts = [Layout.padded([len(row) for row in rows]) for rows in (sources, first)]
    return PairBatch(torch.arange(len(sources)), Source(_pad(sources), layouts[0]), _pad(first), layouts[1], _pad(labels))


def random_batch(rows: int = 5, longest: int = 7, vocabulary: int = 12) -> PairBatch:
    """Pairs of random ids and lengths, the first of them of full length."""
    generator = torch.Generator().manual_seed(5)

    def sentences() -> list[list[int]]:
        lengths = [longest, *torch.randint(1, longest + 1, (rows - 1,), generator=generator).tolist()]
        return [torch.randint(4, vocabulary, (length,), generator=generator).tolist() for length in lengths]

    return make_batch(sentences(), sentences())


def the_loss(task: TranslationTask, model: Model, batch: PairBatch, update: int = 1) -> Loss:
    """The only loss."""
    (loss,) = task.losses(model, batch, update)
    return loss


def value(loss: Loss) -> float:
    return float(loss.total.detach())


def gradient(total: Tensor, model: Model) -> Tensor:
    """Of all parameters, one after the other."""
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    pairs = zip(model.parameters(), found, strict=True)
    return torch.cat([(torch.zeros_like(parameter) if each is None else each).flatten() for parameter, each in pairs])


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([[*row, *[0] * (max(map(len, rows)) - len(row))] for row in rows])
