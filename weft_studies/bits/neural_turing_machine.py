"""Neural Turing Machines (Graves et al. 2014): an LSTM that reads and writes a memory by content and by location.

Shapes: B rows · S steps · N slots · M width of a slot · H heads · D width of the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.layers.recurrent import record_gates
from weft.layers.step_recorder import record, recording
from weft.models.base import Encoded
from weft.models.encoder_decoder import VectorEncoder

FIRST = 1e-6
"""The content of every cell of the memory before the first step; with a constant, training succeeds (Collier & Beel 2018)."""
TINY = 1e-8
"""Added to the norms of the cosine and to sums before a division."""
SHIFTS = (-1, 0, 1)
"""Slots by which a head can move in a step."""
CLOSED, FORWARD = -3.0, 2.0
"""The first bias of the gate to content, and of the shift by one slot, if heads begin by moving."""


@dataclass(frozen=True)
class HeadParameters:
    """The requests of heads. key: [B, H, M] · strength, gate, sharpness: [B, H, 1] · shift: [B, H, shifts]."""

    key: Tensor
    strength: Tensor
    gate: Tensor
    shift: Tensor
    sharpness: Tensor

    @staticmethod
    def of(raw: Tensor, width: int) -> HeadParameters:
        """Brings the controller's output [B, H, M + 3 + shifts] into the ranges of equations 5 to 9: γ ≥ 1, Σ s = 1."""
        key, strength, gate, shift, sharpness = raw.split([width, 1, 1, len(SHIFTS), 1], -1)
        return HeadParameters(key.tanh(), F.softplus(strength), gate.sigmoid(), shift.softmax(-1), 1 + F.softplus(sharpness))


def focus(memory: Tensor, before: Tensor, heads: HeadParameters) -> Tensor:
    """The weights [B, H, N] of each head over the slots of a memory [B, N, M], given those of the step before.

    Content (equations 5 and 6), interpolation (7), circular shift (8), sharpening (9).
    """
    norms = heads.key.norm(dim=-1, keepdim=True) * memory.norm(dim=-1)[:, None]
    cosine = heads.key @ memory.transpose(1, 2) / (norms + TINY)
    content = (heads.strength * cosine).softmax(-1)
    gated = heads.gate * content + (1 - heads.gate) * before
    # Slices: an index with a list copies from the host, and a CUDA graph could not be recorded.
    moved = sum(heads.shift[..., n : n + 1] * gated.roll(shift, -1) for n, shift in enumerate(SHIFTS))
    sharp = (moved + TINY) ** heads.sharpness
    weights = sharp / sharp.sum(-1, keepdim=True)
    if recording():
        _record_focus(memory, before, heads, (cosine, content, gated, moved, weights))
    return weights


def _record_focus(memory: Tensor, before: Tensor, heads: HeadParameters, steps: Sequence[Tensor]) -> None:
    """Records the steps of a focus: cosine, content, gated, moved and sharpened weights [B, H, N]."""
    places, one = "row token head slot", "row token head"
    cosine, content, gated, moved, weights = ((each[:, None], places) for each in steps)
    strength, gate, sharpness = ((each[:, None, :, 0], one) for each in (heads.strength, heads.gate, heads.sharpness))
    key, shift = (heads.key[:, None], f"{one} channel"), (heads.shift[:, None], f"{one} move")
    rolled = torch.stack([gated[0].roll(shift, -1) for shift in SHIFTS], -1), f"{places} move"
    slots, earlier = (memory[:, None], "row token slot channel"), (before[:, None], places)
    record("memory before", *slots)
    alike = "sum(key * memory, channel) / (norm(key, channel) * norm(memory, channel) + tiny)"
    record("cosine", *cosine, alike, key=key, memory=slots, tiny=TINY)
    record("content", *content, "softmax(strength * cosine, slot)", strength=strength, cosine=cosine)
    record("gated", *gated, "gate * content + (1 - gate) * before", gate=gate, content=content, before=earlier)
    record("moved", *moved, "sum(shift * rolled, move)", shift=shift, rolled=rolled)
    sharp = "(moved + tiny) ** sharpness / sum((moved + tiny) ** sharpness, slot)"
    record("weights", *weights, sharp, moved=moved, sharpness=sharpness, tiny=TINY)


def _record_wishes(wish: Tensor, heads: HeadParameters, change: Tensor) -> None:
    """Records what the controller asks of the heads [B, H, entries], and what it writes, change [B, 2, H, M]."""
    one, wanted, written = (
        "row token head",
        (wish[:, None], "row token head entry"),
        (change[:, None], "row token part head entry"),
    )
    for name, value in {"strength": heads.strength, "gate": heads.gate, "sharpness": heads.sharpness}.items():
        record(name, value[:, None, :, 0], one, wish=wanted)
    record("key", heads.key[:, None], f"{one} channel", wish=wanted)
    record("shift", heads.shift[:, None], f"{one} move", wish=wanted)
    erase, add = change.unbind(1)
    record("erase", erase.sigmoid()[:, None], f"{one} channel", change=written)
    record("add", add.tanh()[:, None], f"{one} channel", change=written)


class TuringEncoder(VectorEncoder):
    """A Neural Turing Machine that reads vectors step by step. Its output is the controller's state and what it has read.

    Heads focus on the memory of the step before; then the read heads read it, and the write heads change it. Outside training,
    `Encoded.extras["heads"]` [B, S, 2H, N] has the weights of the read heads, then of the write heads.

    dim: width of the controller, an LSTM
    slots: rows of the memory
    slot_width: width of a row
    heads: number of read heads, and of write heads
    moving: heads begin training by moving one slot further in each step, which biases of their shifts and gates make them do;
        in far fewer steps they learn to write one slot after the other. false: as published, without such biases
    """

    cuda_graph_safe = True

    def __init__(
        self,
        *,
        dim: PositiveInt = 100,
        slots: PositiveInt = 128,
        slot_width: PositiveInt = 20,
        heads: PositiveInt = 1,
        moving: bool = True,
    ) -> None:
        super().__init__()
        self.slots, self.slot_width, self.heads, self.input_width = slots, slot_width, heads, dim
        self.width = dim + heads * slot_width
        self.controller = nn.LSTMCell(dim + heads * slot_width, dim)
        self.wish = nn.Linear(dim, 2 * heads * (slot_width + 3 + len(SHIFTS)))
        self.change = nn.Linear(dim, 2 * heads * slot_width)
        self.first_read = nn.Parameter(torch.zeros(heads * slot_width))
        if moving:
            with torch.no_grad():
                # In the order of HeadParameters.of: key, strength, gate, shifts, sharpness.
                bias = self.wish.bias.view(2 * heads, -1)
                bias[:, slot_width + 1] = CLOSED
                bias[:, slot_width + 2 + SHIFTS.index(1)] = FORWARD

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        rows, heads, width = x.size(0), self.heads, self.slot_width
        memory = x.new_full((rows, self.slots, width), FIRST)
        weights = F.pad(x.new_ones(rows, 2 * heads, 1), (0, self.slots - 1))
        content = self.first_read.tanh().expand(rows, -1)
        state = x.new_zeros(rows, x.size(2)), x.new_zeros(rows, x.size(2))
        outputs, looks = [], []
        for step in x.unbind(1):
            state = self._control(torch.cat([step, content], -1), state)
            wish, change = self.wish(state[0]).view(rows, 2 * heads, -1), self.change(state[0]).view(rows, 2, heads, width)
            wanted = HeadParameters.of(wish, width)
            if recording():
                _record_wishes(wish, wanted, change)
            weights = focus(memory, weights, wanted)
            found = weights[:, :heads] @ memory
            content = found.flatten(1)
            if recording():
                places = "row token head slot"
                for name, part in (("read weights", weights[:, :heads]), ("write weights", weights[:, heads:])):
                    record(name, part[:, None], places, weights=(weights[:, None], places))
                operands = {
                    "weights": (weights[:, None, :heads], places),
                    "memory": (memory[:, None], "row token slot channel"),
                }
                record("read", found[:, None], "row token head channel", "sum(weights * memory, slot)", **operands)
            erase, add = change.unbind(1)
            memory = write(memory, weights[:, heads:], erase.sigmoid(), add.tanh())
            outputs.append(torch.cat([state[0], content], -1))
            if recording():
                own, axes = {"state": state[0], "read": content}, "row token channel"
                sides = {name: (each[:, None], axes) for name, each in own.items()}
                record("state and read", outputs[-1][:, None], axes, "join(state, read, channel)", **sides)
            looks.append(weights)
        return Encoded(torch.stack(outputs, 1), layout, extras={} if self.training else {"heads": torch.stack(looks, 1)})

    def _control(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The state of the controller after a step x [B, D]."""
        after: tuple[Tensor, Tensor] = self.controller(x, state)
        if recording():
            cell = self.controller
            weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
            before_step, after_step = ([part[:, None] for part in side] for side in (state, after))
            record_gates(cell, x[:, None], before_step, after_step, weights)
        return after


def write(memory: Tensor, weights: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """M(i) Π_h [1 − w_h(i) e_h] + Σ_h w_h(i) a_h (equations 3 and 4): all heads erase before any adds."""
    kept = (1 - weights[..., None] * erase[:, :, None]).prod(1)
    after = memory * kept + weights.transpose(1, 2) @ add
    if recording():
        heads, slots = "row token head channel", "row token slot channel"
        operands = {"memory": (memory[:, None], slots), "w": (weights[:, None], "row token head slot")}
        operands |= {"erase": (erase[:, None], heads), "add": (add[:, None], heads)}
        record("memory", after[:, None], slots, "memory * prod(1 - w * erase, head) + sum(w * add, head)", **operands)
    return after
