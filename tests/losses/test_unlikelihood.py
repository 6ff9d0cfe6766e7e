"""Unlikelihood: the sum of the paper over tokens that only the source has, in padded and packed batches, and its effect."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers import tiny
from tests.helpers.translation_task import make_batch, make_model, make_task, random_batch, the_loss, value
from weft.data.batch import EOS, UNK, PairBatch
from weft.data.sentence_pairs import make_pairs
from weft.errors import ConfigError
from weft.losses import log_likelihood as likelihoods
from weft.losses.r_drop_and_unlikelihood import unlikelihood

SHAPE: dict[str, Any] = {
    "kind": "transformer",
    "dim": 8,
    "heads": 2,
    "feedforward": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.0,
}


def made(**options: Any) -> Any:
    """A task without data, whose vocabulary has twelve tokens."""
    task = make_task(**options)
    task.target = SimpleNamespace(size=12)  # type: ignore[assignment]
    return task


def test_it_is_the_sum_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_model(**SHAPE), random_batch()
    batch.source.values[0, 0] = UNK  # no word of the source
    hidden = torch.randn(*batch.labels.shape, 8, dtype=torch.double, requires_grad=True)
    found = unlikelihood(model.decoder, hidden, batch, 12)
    expected = torch.zeros((), dtype=torch.double)
    for row, place in batch.target_layout.mask.nonzero().tolist():
        chances = model.decoder.logits(hidden[row, place]).softmax(-1)
        for token in set(batch.source.values[row].tolist()) - set(batch.labels[row].tolist()):
            if token > UNK:
                expected = expected - (1 - chances[token]).log()
    assert found.item() == pytest.approx(expected.item()) and found.item() > 1
    ours, theirs = (torch.autograd.grad(each, hidden)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs)
    monkeypatch.setattr(likelihoods, "CHUNK", 1)  # one position at a time
    assert unlikelihood(model.decoder, hidden, batch, 12).item() == pytest.approx(expected.item())


def test_a_packed_batch_counts_the_same() -> None:
    model, task = make_model(**SHAPE), made(unlikelihood=1.0)
    sources, targets = [[4, 5, 6], [7, 8], [9]], [[10, 5], [11, 4, 7], [4]]
    lengths = np.array([[len(source), len(target) + 1] for source, target in zip(sources, targets, strict=True)])
    source, labels = (np.concatenate(rows) for rows in (sources, [[*row, EOS] for row in targets]))
    packed = make_pairs(source, labels, lengths, packed=True, budget=24)
    assert packed.target_layout.packed
    losses = [the_loss(task, model, batch) for batch in (make_batch(sources, targets), packed)]
    assert value(losses[0]) == pytest.approx(value(losses[1]))
    assert float(losses[0].metrics["unlikelihood"]) == pytest.approx(float(losses[1].metrics["unlikelihood"]))


def test_it_is_added_to_the_loss_and_logged() -> None:
    model, batch = make_model(**SHAPE), random_batch()
    plain, loss = (the_loss(made(unlikelihood=weight), model, batch) for weight in (0.0, 0.7))
    assert value(loss) == pytest.approx(value(plain) + 0.7 * float(loss.metrics["unlikelihood"]))
    assert "unlikelihood" not in plain.metrics and loss.count == plain.count
    assert made(unlikelihood=0.7).info.capturable  # it can be recorded on a GPU


def test_a_model_learns_not_to_copy() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(4, 12, (16, 2, 3), generator=generator).tolist()
    batch = make_batch([source for source, _ in rows], [target for _, target in rows])
    plain, warned = (_trained(weight, batch) for weight in (0.0, 5.0))
    assert warned < plain / 3


def _trained(weight: float, batch: PairBatch) -> float:
    """The unlikelihood of a model that was trained on a batch."""
    model, task = make_model(**SHAPE), made(unlikelihood=weight)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        the_loss(task, model, batch).total.backward()
        optimizer.step()
    return float(the_loss(made(unlikelihood=1.0), model, batch).metrics["unlikelihood"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data.shared_vocabulary": False, "model.share_embeddings": "output"},
            "task.unlikelihood needs texts with one vocabulary on both sides",
        ),
        ({"model": {"kind": "pointer", "base": {"kind": "rnn", "dim": 8}}}, "task.unlikelihood: this model copies words"),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    chosen = {"train.steps": 1, "task.unlikelihood": 1.0, **settings}
    with pytest.raises(ConfigError, match=message):
        weft.train("transformer-tiny", data=tiny.generated("copy", 30), out=tmp_path / "run", set=chosen)
