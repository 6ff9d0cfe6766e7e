"""The chunked loss of the output layer, with its gradients, equals the plain loss and torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import PAD
from weft.losses.cross_entropy import label_smoothed_cross_entropy, linear_cross_entropy
from weft_contract.mechanism_entries import same

ROWS, EXTENT, DIM, VOCABULARY = 3, 23, 16, 37
EXACT = torch.float64


def problem(dtype: torch.dtype = EXACT) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, an output table, and labels, some of them padding."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, EXTENT, DIM, generator=generator, dtype=dtype)
    weight = torch.randn(VOCABULARY, DIM, generator=generator, dtype=dtype)
    labels = torch.randint(1, VOCABULARY, (ROWS, EXTENT), generator=generator)
    labels[1, 9:] = PAD
    labels[2, 1:] = PAD
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def check_linear_loss(smoothing: float, chunk: int) -> None:
    """Loss, likelihood and both gradients against torch's cross entropy, in float64, with an incoming gradient."""
    hidden, weight, labels = problem()
    logits = F.linear(hidden, weight)
    wanted = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )
    likelihood = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="sum")
    gradients = torch.autograd.grad(2.5 * wanted, [hidden, weight], retain_graph=True)
    for loss, nll in (
        linear_cross_entropy(hidden, weight, labels, smoothing, chunk),
        label_smoothed_cross_entropy(logits, labels, smoothing),
    ):
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(nll, likelihood)
        assert not nll.requires_grad
        for mine, theirs in zip(torch.autograd.grad(2.5 * loss, [hidden, weight]), gradients, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 10, 4096])
def test_linear_loss_equals_cross_entropy(smoothing: float, chunk: int) -> None:
    check_linear_loss(smoothing, chunk)


def test_linear_loss_by_differences() -> None:
    hidden, weight, labels = problem()
    small = hidden.detach()[:1, :3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, labels[:1, :3], 0.1, 2)[0], (small, weight))


def test_linear_loss_of_frozen_parts() -> None:
    """If no gradients are needed only the value is computed, and it is the same."""
    hidden, weight, labels = problem()
    with torch.no_grad():
        frozen = linear_cross_entropy(hidden, weight, labels, 0.1)
    torch.testing.assert_close(frozen[0], linear_cross_entropy(hidden, weight, labels, 0.1)[0].detach())


def test_linear_loss_under_autocast() -> None:
    hidden, weight, labels = problem(torch.float32)
    exact = linear_cross_entropy(hidden, weight, labels, 0.1)[0]
    grads = torch.autograd.grad(exact, [hidden, weight])
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, labels, 0.1)[0]
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.01, atol=0.0)
    for half, full in zip(torch.autograd.grad(loss, [hidden, weight]), grads, strict=True):
        assert half.dtype == full.dtype
        assert ((half - full).norm() / full.norm()).item() < 0.02


def test_padding_alone_costs_nothing() -> None:
    hidden, weight, labels = problem(torch.float32)
    loss, nll = linear_cross_entropy(hidden, weight, torch.full_like(labels, PAD), 0.1)
    grads = torch.autograd.grad(loss, [hidden, weight])
    assert loss == 0 and nll == 0 and not any(grad.any() for grad in grads)


def test_smoothing_moves_a_share_evenly() -> None:
    """ε = 0.1 is the cross entropy against a target of 0.9 on the label and 0.1 spread over the whole vocabulary."""
    hidden, weight, labels = problem(torch.float32)
    logp = F.linear(hidden, weight).log_softmax(-1)
    target = torch.full_like(logp, 0.1 / VOCABULARY).scatter_add(-1, labels[..., None], torch.full_like(logp[..., :1], 0.9))
    by_hand = -(target * logp).sum(-1)[labels != PAD].sum()
    same(label_smoothed_cross_entropy(F.linear(hidden, weight), labels, 0.1)[0], by_hand, "smoothed loss", atol=1e-3)
