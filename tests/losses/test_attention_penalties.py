"""Penalties on where a model looks: for every family that shows weights, as the functions of those weights they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.translation_task import gradient, make_model, make_task, random_batch, the_loss, value
from weft.attention.core.weight_recorder import record
from weft.data.batch import Batch
from weft.errors import ConfigError
from weft.losses.attention_penalties import coverage_penalty, doubly_stochastic_penalty, guided_penalty
from weft.models.base import Model

MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": {},
    "luong": {"style": "luong", "attention": {"kind": "general"}},
    "transformer": {"kind": "transformer", "dim": 8, "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 3},
    "convs2s": {"kind": "convs2s", "dim": 8, "channels": 8},
}


def crosses(model: Model, batch: Batch) -> list[Tensor]:
    """The weights [B, H, T, S] of every attention to the source, the lowest layer first."""
    with record(model) as tape:
        model(batch.source, batch.target, batch.target_layout)
    return [torch.cat(pieces, 2) for name, pieces in tape.items() if name.startswith("decoder") and "mixer" not in name]


def expected(name: str, weights: Tensor, batch: Batch) -> float:
    """The penalty pair by pair, each without padding."""
    total = 0.0
    for row, source, target in zip(weights, batch.source.layout.counts, batch.target_layout.counts, strict=True):
        alone = row[None, :, :target, :source]
        penalty = {
            "guided": lambda alone: guided_penalty(alone, width=0.3),
            "coverage": coverage_penalty,
            "doubly_stochastic": doubly_stochastic_penalty,
        }[name](alone)
        total += float(penalty.sum().detach())
    return total


@pytest.mark.parametrize("name", ["guided", "coverage", "doubly_stochastic"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_penalty_is_added_to_the_loss_and_logged(kind: str, name: str) -> None:
    model, batch = make_model(**MODELS[kind]), random_batch()
    plain, loss = (the_loss(make_task(guided_width=0.3, **{f"{name}_weight": weight}), model, batch) for weight in (0.0, 0.7))
    penalty = expected(name, crosses(model, batch)[-1], batch)
    assert float(loss.metrics[name]) == pytest.approx(penalty) and penalty > 0.01
    assert value(loss) == pytest.approx(value(plain) + 0.7 * penalty)
    assert name not in plain.metrics
    assert float(loss.count) == float(plain.count)
    assert float((gradient(loss.total, model) - gradient(plain.total, model)).norm()) > 1e-6


def test_the_layers_looked_at_can_be_chosen() -> None:
    model, batch = make_model(**MODELS["transformer"]), random_batch()
    layers = [expected("guided", weights, batch) for weights in crosses(model, batch)]
    for chosen in ([0], [-1], [0, 1], [2, -3]):
        task = make_task(guided_weight=1.0, guided_width=0.3, penalty_layers=chosen)
        mean = sum(layers[layer] for layer in chosen) / len(chosen)
        assert float(the_loss(task, model, batch).metrics["guided"]) == pytest.approx(mean)
    with pytest.raises(ConfigError, match=r"task.penalty_layers: there is no layer 3; the model has 3 .* 0 to 2"):
        the_loss(make_task(guided_weight=1.0, penalty_layers=[3]), model, batch)


def test_only_the_layers_looked_at_are_asked_for_their_weights() -> None:
    model, batch, asked = make_model(**MODELS["transformer"]), random_batch(), []
    for name, module in model.named_modules():
        if name.endswith(("cross", "mixer.attention")):
            module.register_forward_hook(
                lambda _, __, options, ___, name=name: asked.append((name, options.get("need_weights", False))),
                with_kwargs=True,
            )
    the_loss(make_task(coverage_weight=1.0), model, batch)
    assert len(asked) > 3
    assert [name for name, wanted in asked if wanted] == ["decoder.layers.2.cross"]


@pytest.mark.parametrize("options", [{"kind": "bytenet", "dim": 8}, {"style": "fixed"}, {"style": "cho"}])
def test_a_model_that_shows_no_weights_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"task.coverage_weight needs a model whose cross-attention has weights"):
        the_loss(make_task(coverage_weight=0.1), make_model(**options), random_batch())


def test_weights_without_a_gradient_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.guided_weight: the attention weights of this model have no gradient"):
        the_loss(make_task(guided_weight=0.1), make_model(attention={"kind": "hard"}), random_batch())


def test_the_guided_penalty_makes_attention_diagonal() -> None:
    model, batch = make_model(**MODELS["transformer"]), random_batch()
    task, optimizer = make_task(guided_weight=50.0), torch.optim.Adam(model.parameters(), 0.02)
    seen = []
    for _ in range(30):
        loss = the_loss(task, model, batch)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        seen.append(float(loss.metrics["guided"].detach()))
    assert seen[-1] < 0.5 * seen[0]
