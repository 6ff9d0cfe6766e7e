"""The output bias and the zero BOS of Transformers, and their plain SiLU: training, and the C++ search."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.data.sentence_pairs import random_pairs
from weft.errors import ConfigError
from weft.losses.cross_entropy import label_smoothed_cross_entropy, linear_cross_entropy
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_encoder_decoder

SMALL = {
    "kind": "transformer",
    "dim": 16,
    "heads": 2,
    "feedforward": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.0,
}


def build(**options: Any) -> Model:
    torch.manual_seed(0)
    return build_encoder_decoder({**SMALL, **options}, Sizes(30, 30, True))


def test_the_loss_with_a_bias_is_that_of_its_logits() -> None:
    torch.manual_seed(0)
    hidden, labels = torch.randn(3, 5, 8, requires_grad=True), torch.randint(0, 12, (3, 5))
    weight, bias = torch.randn(12, 8, requires_grad=True), torch.randn(12, requires_grad=True)
    loss, nll = linear_cross_entropy(hidden, weight, labels, 0.1, chunk=4, bias=bias)
    expected, likelihood = label_smoothed_cross_entropy(F.linear(hidden, weight, bias), labels, 0.1)
    torch.testing.assert_close((loss, nll), (expected, likelihood))
    gradients = torch.autograd.grad(loss, [hidden, weight, bias]), torch.autograd.grad(expected, [hidden, weight, bias])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_training_leaves_bos_and_pad_at_zero() -> None:
    model = build(output_bias=True, zero_bos=True)
    table, bias = model.decoder.output.weight, model.decoder.output.bias
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    before, first = bias.detach().clone(), 0.0
    for _ in range(5):
        batch = random_pairs((30, 30), (6, 7), 4)
        hidden = model(batch.source, batch.target, batch.target_layout).hidden
        loss, _ = model.decoder.loss(hidden, batch.labels, 0.1)
        first = first or float(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss) < first
    assert not table[:2].any() and (bias[:2] == -100).all()
    assert (bias[2:] != before[2:]).any()
    logits = model.decoder.logits(hidden).detach()
    assert float(logits.softmax(-1)[..., :2].max()) < 1e-40
    with pytest.raises(ConfigError, match="output_bias"):
        build(zero_bos=True)
