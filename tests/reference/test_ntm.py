"""Neural Turing Machines against a loop over the equations of Graves et al. 2014, and their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.data.batch import Layout, Source
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder
from weft_studies.bits.neural_turing_machine import FIRST, TINY, HeadParameters, TuringEncoder, focus, write

SLOTS, WIDTH = 5, 3


def make(**options: Any) -> TuringEncoder:
    torch.manual_seed(3)
    spec = {"kind": "composed", "front": "vectors", "encoder": {"kind": "ntm", "dim": 7, "slots": SLOTS, "slot_width": WIDTH}}
    spec["encoder"] |= options
    encoder = build_encoder(spec, Sizes(4, reads="frames")).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.7 * torch.randn_like(parameter)
    return encoder


def by_hand(memory: Tensor, before: Tensor, key: Tensor, beta: float, gate: float, shift: Tensor, gamma: float) -> list[float]:
    """One head: content (5, 6), interpolation (7), circular convolution (8), sharpening (9)."""
    alike = [math.exp(beta * float(key @ row) / (float(key.norm() * row.norm()) + TINY)) for row in memory]
    content = [each / sum(alike) for each in alike]
    gated = [gate * content[i] + (1 - gate) * float(before[i]) for i in range(SLOTS)]
    left, stay, right = shift.tolist()
    moved = [left * gated[(i + 1) % SLOTS] + stay * gated[i] + right * gated[i - 1] for i in range(SLOTS)]
    sharp = [(each + TINY) ** gamma for each in moved]
    return [each / sum(sharp) for each in sharp]


def test_focus_equals_a_loop() -> None:
    torch.manual_seed(0)
    memory, before = torch.randn(2, SLOTS, WIDTH).double(), torch.rand(2, 2, SLOTS).double().softmax(-1)
    heads = HeadParameters.of(3 * torch.randn(2, 2, WIDTH + 6).double(), WIDTH)
    assert (heads.sharpness >= 1).all()
    found = focus(memory, before, heads)
    for row in range(2):
        for head in range(2):
            single = [float(getattr(heads, name)[row, head]) for name in ("strength", "gate", "sharpness")]
            expected = by_hand(
                memory[row], before[row, head], heads.key[row, head], single[0], single[1], heads.shift[row, head], single[2]
            )
            torch.testing.assert_close(found[row, head], torch.tensor(expected, dtype=torch.float64))


def wish(**values: Any) -> HeadParameters:
    """One head that stays where it is."""
    usual = {"key": [0.0] * WIDTH, "strength": [0.0], "gate": [0.0], "shift": [0.0, 1.0, 0.0], "sharpness": [1.0]}
    return HeadParameters(**{name: torch.tensor([[value]], dtype=torch.float64) for name, value in {**usual, **values}.items()})


def test_limits_of_focus() -> None:
    memory = torch.eye(SLOTS, WIDTH).double()[None]
    before = torch.tensor([[[0.1, 0.6, 0.2, 0.1, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(focus(memory, before, wish()), before, atol=1e-6, rtol=0)
    right, left = (focus(memory, before, wish(shift=shift)) for shift in ([0.0, 0.0, 1.0], [1.0, 0.0, 0.0]))
    torch.testing.assert_close(right, before.roll(1, -1), atol=1e-6, rtol=0)
    torch.testing.assert_close(left, before.roll(-1, -1), atol=1e-6, rtol=0)
    even = focus(memory, before, wish(gate=[1.0]))
    torch.testing.assert_close(even, torch.full_like(even, 1 / SLOTS))
    found = focus(memory, before, wish(gate=[1.0], strength=[200.0], key=[0.0, 1.0, 0.0]))
    assert found[0, 0, 1] > 0.999
    assert focus(memory, before, wish(sharpness=[50.0]))[0, 0, 1] > 0.999


def test_a_memory_of_zeros_has_a_finite_gradient() -> None:
    memory = torch.zeros(1, SLOTS, WIDTH, requires_grad=True)
    raw = torch.zeros(1, 1, WIDTH + 6, requires_grad=True)
    before = F.one_hot(torch.zeros(1, 1, dtype=torch.long), SLOTS).float()
    focus(memory, before, HeadParameters.of(raw, WIDTH)).square().sum().backward()
    assert memory.grad is not None
    assert raw.grad is not None
    assert memory.grad.isfinite().all()
    assert raw.grad.isfinite().all()


def test_all_heads_erase_before_any_adds() -> None:
    memory = torch.full((1, SLOTS, WIDTH), 2.0)
    weights = F.one_hot(torch.tensor([[1, 1]]), SLOTS).float()
    erase, add = torch.ones(1, 2, WIDTH), torch.stack([torch.ones(WIDTH), 3 * torch.ones(WIDTH)])[None]
    assert write(memory, weights, erase, add)[0, :, 0].tolist() == [2, 4, 2, 2, 2]


@pytest.mark.parametrize("heads", [1, 2])
@torch.no_grad()
def test_steps_equal_a_loop(heads: int) -> None:
    encoder = make(heads=heads)
    frames = torch.randn(1, 6, 4).double()
    found = encoder(Source(frames)).memory[0]
    memory = torch.full((SLOTS, WIDTH), FIRST, dtype=torch.float64)
    weights = torch.zeros(2 * heads, SLOTS, dtype=torch.float64)
    weights[:, 0] = 1
    read, (h, c) = encoder.first_read.tanh(), (torch.zeros(7).double(), torch.zeros(7).double())
    for step, frame in enumerate(frames[0]):
        joined = torch.cat([encoder.front.project(frame), read])
        cell = encoder.controller
        gates = cell.weight_ih @ joined + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        raw = encoder.wish(h).view(2 * heads, -1)
        for head in range(2 * heads):
            key, beta, gate, shift, gamma = raw[head].split([WIDTH, 1, 1, 3, 1])
            numbers = float(F.softplus(beta)), float(gate.sigmoid()), shift.softmax(0), 1 + float(F.softplus(gamma))
            weights[head] = torch.tensor(by_hand(memory, weights[head].clone(), key.tanh(), *numbers), dtype=torch.float64)
        read = torch.cat([sum(weights[head, n] * memory[n] for n in range(SLOTS)) for head in range(heads)])
        erase, add = encoder.change(h).view(2, heads, WIDTH)
        erased, added = memory.clone(), torch.zeros_like(memory)
        for head in range(heads):
            for n in range(SLOTS):
                erased[n] = erased[n] * (1 - weights[heads + head, n] * erase[head].sigmoid())
                added[n] = added[n] + weights[heads + head, n] * add[head].tanh()
        memory = erased + added
        torch.testing.assert_close(found[step], torch.cat([h, read]))


@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch_or_its_padding() -> None:
    encoder, lengths = make(), [6, 2, 4]
    frames = torch.randn(3, 9, 4).double()
    together = encoder(Source(frames, Layout.padded(lengths, 9))).memory
    for row, length in enumerate(lengths):
        alone = encoder(Source(frames[row : row + 1, :length])).memory[0]
        torch.testing.assert_close(together[row, :length], alone)


def test_every_parameter_learns() -> None:
    encoder = make().train()
    encoder(Source(torch.randn(2, 5, 4).double())).memory.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in encoder.parameters())


@pytest.mark.parametrize("moving", [True, False])
def test_heads_begin_by_moving(moving: bool) -> None:
    torch.manual_seed(1)
    encoder = TuringEncoder(dim=6, slots=12, slot_width=4, moving=moving).eval()
    places = encoder.read(torch.zeros(1, 6, 6), None).extras["heads"].argmax(-1)
    assert bool((places[0].diff(dim=0) == 1).all()) == moving


class HostTensors(TorchDispatchMode):
    """Collects operations that make a tensor of the host's numbers, or read one there: a CUDA graph cannot record them."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.__name__.startswith(("lift_fresh", "_local_scalar_dense", "nonzero")):
            self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_training_can_be_recorded_as_a_graph():
    encoder, frames = make().train(), torch.randn(2, 3, 4, dtype=torch.float64)
    with HostTensors() as host:
        encoder(Source(frames, None)).memory.sum().backward()
    assert not host.seen
