"""Networks with stacks and queues against loops over the equations of their papers, and against lists that push and pop."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.data.batch import Layout, Source
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder
from weft_studies.bits.stacks_and_queues import EMPTY, NeuralStackEncoder, StackEncoder

DIM = 7


def make(kind: str, **options: Any) -> Any:
    torch.manual_seed(3)
    spec = {"kind": "composed", "front": "vectors", "encoder": {"kind": kind, "dim": DIM, **options}}
    encoder = build_encoder(spec, Sizes(4, reads="frames")).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.7 * torch.randn_like(parameter)
    return encoder


def lstm(cell: Any, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@pytest.mark.parametrize("noop", [True, False])
@pytest.mark.parametrize("controller", ["sigmoid", "lstm"])
@torch.no_grad()
def test_stack_rnn_equals_a_loop(noop: bool, controller: str) -> None:
    """Joulin & Mikolov 2015, equations 3 to 6: s[0] = a_push σ(D h) + a_pop s[1] + a_noop s[0], and so on below."""
    encoder = make("stack_rnn", stacks=2, cells=4, cell_width=3, noop=noop, controller=controller)
    frames = torch.randn(1, 6, 4).double()
    found = encoder(Source(frames)).memory[0]
    stacks = [[torch.full((3,), EMPTY).double() for _ in range(4)] for _ in range(2)]
    h, c = torch.zeros(DIM).double(), torch.zeros(DIM).double()
    for t, frame in enumerate(frames[0]):
        x = torch.cat([encoder.front.project(frame), *(cell for stack in stacks for cell in stack[:2])])
        if controller == "lstm":
            h, c = lstm(encoder.controller, x, h, c)
        else:
            h = encoder.controller.cell(torch.cat([x, h])).sigmoid()
        actions = encoder.action(h).view(2, -1).softmax(-1)
        for k, stack in enumerate(stacks):
            push, pop, *stay = actions[k].tolist()
            value = encoder.value(h).view(2, 3)[k].sigmoid()
            above, below = [value, *stack], [*stack[1:], torch.full((3,), EMPTY).double()]
            stacks[k] = [push * above[i] + pop * below[i] + (stay[0] if noop else 0) * stack[i] for i in range(4)]
        top = torch.cat([cell for stack in stacks for cell in stack[:2]])
        torch.testing.assert_close(found[t], torch.cat([h, top]))


@pytest.mark.parametrize("form", ["stack", "queue"])
@torch.no_grad()
def test_neural_stack_equals_a_loop(form: str) -> None:
    """Grefenstette et al. 2015, equations 1 to 3; the queue's are 4 and 5: sums over what was stored earlier."""
    encoder = make("neural_stack", form=form, stored_width=3)
    frames = torch.randn(1, 8, 4).double()
    found = encoder(Source(frames)).memory[0]
    vectors: list[Tensor] = []
    strengths: list[float] = []

    def nearer(i: int) -> float:
        return sum(strengths[:i] if form == "queue" else strengths[i + 1 :])

    h, c, r = (torch.zeros(n).double() for n in (DIM, DIM, 3))
    for t, frame in enumerate(frames[0]):
        h, c = lstm(encoder.controller, torch.cat([encoder.front.project(frame), r]), h, c)
        push, pop = encoder.strengths(h).sigmoid().tolist()
        strengths = [max(0.0, s - max(0.0, pop - nearer(i))) for i, s in enumerate(strengths)] + [push]
        vectors.append(encoder.value(h).tanh())
        reads = [min(s, max(0.0, 1.0 - nearer(i))) for i, s in enumerate(strengths)]
        r = sum((read * vector for read, vector in zip(reads, vectors, strict=True)), torch.zeros(3).double())
        torch.testing.assert_close(found[t], torch.cat([h, r]))


def operations(seed: int, count: int = 30) -> list[int | None]:
    """Numbers to store; None: take one."""
    draw = torch.Generator().manual_seed(seed)
    held, asked = 0, []
    for number in range(count):
        take = held > 0 and bool(torch.rand((), generator=draw) < 0.45)
        held += -1 if take else 1
        asked.append(None if take else number + 1)
    return asked


@pytest.mark.parametrize("form", ["stack", "queue"])
def test_with_whole_strengths_it_is_a_list(form: Any) -> None:
    """Strengths of 0 and 1 push and pop whole vectors, and what is read is the top of a list, or the front of a queue."""
    encoder = NeuralStackEncoder(dim=2, form=form, stored_width=1)
    vectors, left, held = torch.zeros(1, 0, 1), torch.zeros(1, 0), deque[int]()
    for number in operations(5):
        taken = torch.tensor([[1.0 if number is None else 0.0]])
        left = torch.cat([left - encoder.taken(left, taken), 1 - taken], 1)
        vectors = torch.cat([vectors, torch.full((1, 1, 1), float(number or 0))], 1)
        if number is not None:
            held.append(number)
        else:
            held.pop() if form == "stack" else held.popleft()
        found = encoder.taken(left, torch.ones(1, 1)) @ vectors[0]
        assert found.item() == ((held[-1] if form == "stack" else held[0]) if held else 0)


def test_with_certain_actions_a_stack_is_a_list() -> None:
    encoder, far = StackEncoder(dim=2, stacks=1, cells=40, depth=1), 1e3
    stack, _ = encoder.empty(torch.zeros(1, 1, 2))
    held: list[float] = []
    with torch.no_grad():
        encoder.action.weight.zero_()
        encoder.value.bias.zero_()
        encoder.value.weight.copy_(torch.tensor([[0.1, 0.0]]))
        for number in operations(7):
            encoder.action.bias.copy_(torch.tensor([0.0, far, 0.0] if number is None else [far, 0.0, 0.0]))
            stack, top = encoder.operate(torch.tensor([[float(number or 0), 0.0]]), stack)
            held = held[:-1] if number is None else [*held, torch.sigmoid(torch.tensor(0.1 * number)).item()]
            assert top.item() == pytest.approx(held[-1] if held else EMPTY)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("stack_rnn", {"cells": 5}),
    ("neural_stack", {}),
    ("neural_stack", {"form": "queue"}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_row_does_not_depend_on_its_batch_or_its_padding(kind: str, options: dict[str, Any]) -> None:
    encoder, lengths = make(kind, **options), [6, 2, 4]
    frames = torch.randn(3, 9, 4).double()
    together = encoder(Source(frames, Layout.padded(lengths, 9))).memory
    for row, length in enumerate(lengths):
        alone = encoder(Source(frames[row : row + 1, :length])).memory[0]
        torch.testing.assert_close(together[row, :length], alone)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_every_parameter_learns(kind: str, options: dict[str, Any]) -> None:
    encoder = make(kind, **options).train()
    encoder(Source(torch.randn(2, 5, 4).double())).memory.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in encoder.parameters())
