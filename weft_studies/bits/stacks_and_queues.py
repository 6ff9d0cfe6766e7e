"""Recurrent networks with a stack or a queue: Joulin & Mikolov 2015, Grefenstette et al. 2015.

Shapes: B rows · S steps · D width of the controller · K stacks · N cells of a stack · M width of a stored vector · t vectors
that have been stored.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.models.base import Encoded
from weft.models.encoder_decoder import VectorEncoder

EMPTY = -1.0
"""The content of cells below the bottom of a stack (Joulin & Mikolov 2015, section 3.2)."""


class MemoryEncoder(VectorEncoder):
    """A controller that reads a vector and what it found in its memory, step by step. Its output is its state and that find.

    dim: width of the vectors and of the controller · found: width of what it finds
    """

    cuda_graph_safe = True

    def __init__(self, dim: int, found: int, controller: Literal["sigmoid", "lstm"]) -> None:
        super().__init__()
        self.input_width, self.width = dim, dim + found
        self.controller: nn.Module = (nn.LSTMCell if controller == "lstm" else SigmoidCell)(dim + found, dim)

    @abstractmethod
    def empty(self, x: Tensor) -> tuple[State, Tensor]:
        """The memory before the first of the vectors x [B, S, D], and what is found in it [B, F]."""

    @abstractmethod
    def operate(self, hidden: Tensor, memory: State) -> tuple[State, Tensor]:
        """The memory after one step of the controller, whose state is `hidden` [B, D], and what is found in it."""

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        memory, found = self.empty(x)
        state = x.new_zeros(x.size(0), x.size(2)), x.new_zeros(x.size(0), x.size(2))
        outputs = []
        for step in x.unbind(1):
            state = self.controller(torch.cat([step, found], -1), state)
            memory, found = self.operate(state[0], memory)
            outputs.append(torch.cat([state[0], found], -1))
        return Encoded(torch.stack(outputs, 1), layout)


class SigmoidCell(nn.Module):
    """h = σ(U x + R h + b), with the interface of an LSTM, whose second state it passes on unchanged."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.cell = nn.Linear(inputs + width, width)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.cell(torch.cat([x, state[0]], -1)).sigmoid(), state[1]


class StackEncoder(MemoryEncoder):
    """A recurrent network with stacks that it pushes to, pops from or leaves as they are (Joulin & Mikolov 2015).

    With a = softmax(A h), the top becomes a_push σ(D h) + a_pop s[1] + a_noop s[0], and so on below it. The network reads
    the `depth` top cells of the stacks in the next step.

    dim: width of the controller
    stacks: number of stacks
    cells: cells of a stack; what is pushed below the last one is lost
    cell_width: numbers in a cell; 1 in the paper
    depth: number of top cells that are read
    noop: whether a stack can be left as it is
    controller: sigmoid, as published; or lstm
    """

    def __init__(
        self,
        *,
        dim: PositiveInt = 64,
        stacks: PositiveInt = 2,
        cells: PositiveInt = 128,
        cell_width: PositiveInt = 1,
        depth: PositiveInt = 2,
        noop: bool = True,
        controller: Literal["sigmoid", "lstm"] = "sigmoid",
    ) -> None:
        super().__init__(dim, stacks * min(depth, cells) * cell_width, controller)
        self.shape, self.depth, self.actions = (stacks, cells, cell_width), depth, 3 if noop else 2
        self.action = nn.Linear(dim, stacks * self.actions)
        self.value = nn.Linear(dim, stacks * cell_width)

    def empty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        stack = x.new_full((x.size(0), *self.shape), EMPTY)
        return stack, self._top(stack)

    def operate(self, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        stacks, _, width = self.shape
        action = self.action(hidden).view(-1, stacks, 1, 1, self.actions).softmax(-1)
        value = self.value(hidden).view(-1, stacks, 1, width).sigmoid()
        pushed = torch.cat([value, memory[:, :, :-1]], 2)
        popped = F.pad(memory[:, :, 1:], (0, 0, 0, 1), value=EMPTY)
        stack = action[..., 0] * pushed + action[..., 1] * popped
        if self.actions == 3:
            stack = stack + action[..., 2] * memory
        return stack, self._top(stack)

    def _top(self, stack: Tensor) -> Tensor:
        return stack[:, :, : self.depth].flatten(1)


Stored = tuple[Tensor, Tensor]
"""The vectors [B, t, M] in the order in which they were stored, and how much of each is left, [B, t]."""


class NeuralStackEncoder(MemoryEncoder):
    """An LSTM with a continuous stack or queue, which stores one vector per step (Grefenstette et al. 2015).

    In each step, a strength u is removed, a vector v is stored with a strength d, and a strength of 1 is read; the stack does
    so from its end, the queue from its front. Time and memory grow with the square of the length.

    dim: width of the controller
    form: stack: last in, first out; queue: first in, first out
    stored_width: width of a stored vector
    """

    def __init__(
        self, *, dim: PositiveInt = 64, form: Literal["stack", "queue"] = "stack", stored_width: PositiveInt = 16
    ) -> None:
        super().__init__(dim, stored_width, "lstm")
        self.form, self.stored_width = form, stored_width
        self.strengths, self.value = nn.Linear(dim, 2), nn.Linear(dim, stored_width)
        nn.init.constant_(self.strengths.bias[1:], -1.0)  # at first, more is stored than removed

    def empty(self, x: Tensor) -> tuple[Stored, Tensor]:
        rows = x.size(0)
        return (x.new_zeros(rows, 0, self.stored_width), x.new_zeros(rows, 0)), x.new_zeros(rows, self.stored_width)

    def operate(self, hidden: Tensor, memory: Stored) -> tuple[Stored, Tensor]:
        vectors, left = memory
        push, pop = self.strengths(hidden).sigmoid().split(1, -1)
        left = torch.cat([left - self.taken(left, pop), push], 1)
        vectors = torch.cat([vectors, self.value(hidden).tanh()[:, None]], 1)
        reads = self.taken(left, torch.ones_like(pop))
        return (vectors, left), (reads[:, None] @ vectors)[:, 0]

    def taken(self, left: Tensor, amount: Tensor) -> Tensor:
        """How much of each vector is taken, [B, t], if `amount` [B, 1] is taken from the end or the front."""
        before = left.cumsum(1) - left if self.form == "queue" else left.flip(1).cumsum(1).flip(1) - left
        return torch.minimum(left, F.relu(amount - before))
