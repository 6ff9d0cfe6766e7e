"""R-Drop: the divergence of the paper, its gradient, and no effect where there is nothing to agree on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.helpers.translation_task import make_model, make_task, random_batch, the_loss, value
from weft.losses import log_likelihood as likelihoods
from weft.losses.r_drop_and_unlikelihood import divergence

SHAPE = {"kind": "transformer", "dim": 8, "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 1}


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum()


def test_the_divergence_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_model(**SHAPE).double(), random_batch()
    ok = batch.target_layout.mask
    first, second = (torch.randn(*ok.shape, 8, dtype=torch.double, requires_grad=True) for _ in range(2))
    whole = divergence(model.decoder, first, second, ok)
    expected = torch.zeros((), dtype=torch.double)
    for row, place in ok.nonzero().tolist():
        p, q = (model.decoder.logits(each[row, place]).softmax(-1) for each in (first, second))
        expected = expected + (kl(p, q) + kl(q, p)) / 2
    assert whole.item() == pytest.approx(expected.item())
    gradients = [torch.autograd.grad(value, [first, second]) for value in (whole, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    monkeypatch.setattr(likelihoods, "CHUNK", 1)  # one position at a time
    assert divergence(model.decoder, first, second, ok).item() == pytest.approx(expected.item())


def test_without_dropout_there_is_nothing_to_agree_on() -> None:
    batch = random_batch()
    model = make_model(**SHAPE, dropout=0.0)
    plain, twice = (the_loss(make_task(r_drop=weight), model, batch) for weight in (0.0, 5.0))
    assert value(twice) == pytest.approx(value(plain)) and twice.metrics["divergence"].item() == pytest.approx(0)
    assert twice.count.item() == plain.count.item()


def test_with_dropout_it_is_the_mean_of_two_passes_and_half_the_weighted_divergence() -> None:
    batch, model = random_batch(), make_model(**SHAPE, dropout=0.3).train()
    torch.manual_seed(1)
    passes = [the_loss(make_task(), model, batch) for _ in range(2)]
    torch.manual_seed(1)
    loss = the_loss(make_task(r_drop=5.0), model, batch)
    apart = loss.metrics["divergence"]
    assert apart > 0
    assert value(loss) == pytest.approx((value(passes[0]) + value(passes[1])) / 2 + 2.5 * apart.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["likelihoods", "divergence"])
def test_logits_are_not_held_for_the_gradient(kind: str) -> None:
    model, batch, kept = make_model(**SHAPE).double(), random_batch(), [0]
    hidden = torch.randn(*batch.labels.shape, 8, requires_grad=True, dtype=torch.double)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if kind == "likelihoods":
            found = likelihoods.log_likelihoods(model.decoder, hidden, batch.labels, [0])
        else:
            found = divergence(model.decoder, hidden, 2 * hidden, batch.target_layout.mask)
    found.sum().backward()
    assert hidden.grad is not None and max(kept) <= hidden.numel()
