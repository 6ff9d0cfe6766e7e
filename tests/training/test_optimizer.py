"""Optimisers: which weights decay, what a skipped step leaves unchanged, and the round trip of their state."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from weft.config.registry import build
from weft.training.optimizer import named_state, names_of, restore_state, take_step

GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


def linear_and(kind: str, **options: object) -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, build("weft.training:OPTIMIZERS", {"kind": kind, **options}, model.parameters())


def feed(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_the_first_step_of_adam_moves_every_weight_by_the_rate() -> None:
    model, optimizer = linear_and("adam")
    before = model.weight.detach().clone()
    feed(model, 0.7)
    take_step(optimizer, 0.01, GOOD)
    assert torch.allclose(before - model.weight, torch.tensor(0.01), atol=1e-6)


def test_adamw_decays_weights_and_not_biases() -> None:
    model, optimizer = linear_and("adamw", weight_decay=0.5)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    feed(model, 0.0)
    take_step(optimizer, 0.1, GOOD)
    assert torch.allclose(model.weight, weight * 0.95)
    assert torch.equal(model.bias, bias)


def test_adamw_decays_biases_when_asked() -> None:
    model, optimizer = linear_and("adamw", weight_decay=0.5, decay_biases=True)
    bias = model.bias.detach().clone()
    feed(model, 0.0)
    take_step(optimizer, 0.1, GOOD)
    assert torch.allclose(model.bias, bias * 0.95)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_bad_step_changes_neither_weights_nor_state(kind: str) -> None:
    model, optimizer = linear_and(kind, weight_decay=0.1)
    feed(model, 0.7)
    take_step(optimizer, 0.01, GOOD)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: tensor.clone() for name, tensor in named_state(optimizer, names_of(model)).items()}
    feed(model, float("nan"))
    take_step(optimizer, 0.01, BAD)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(tensor, state[name]) for name, tensor in named_state(optimizer, names_of(model)).items())


def test_an_optimiser_that_is_not_fused_skips_as_well() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    feed(model, 1.0)
    take_step(optimizer, 0.1, BAD)
    assert torch.equal(model.weight, before)
    take_step(optimizer, 0.1, GOOD)
    assert torch.allclose(before - model.weight, torch.tensor(0.1), atol=1e-6)


def test_restored_state_goes_on_bit_for_bit() -> None:
    model, optimizer = linear_and("adamw")
    for value in (0.3, -0.2, 0.9):
        feed(model, value)
        take_step(optimizer, 0.01, GOOD)
    twin, other = linear_and("adamw")
    twin.load_state_dict(model.state_dict())
    restore_state(other, names_of(twin), {name: t.clone() for name, t in named_state(optimizer, names_of(model)).items()})
    for each, its in ((model, optimizer), (twin, other)):
        feed(each, 0.4)
        take_step(its, 0.01, GOOD)
    assert torch.equal(model.weight, twin.weight)
    assert torch.equal(model.bias, twin.bias)
