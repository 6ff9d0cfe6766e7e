"""Recurrent layers over ragged rows: fused kernels for whole sequences and cells for single steps, with equal results.

Shapes: B rows · T positions · N real tokens · m segments of a packed row (sentences, then padding) · D width of the input ·
W width of a layer's states, both directions together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import NonNegativeInt
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.kernels import computes_bf16
from weft.layers.kernels.cpp_plan import NotPlanned, PlanBuilder, Register
from weft.layers.linear_norm_dropout import Rate, dropout
from weft.layers.step_recorder import Operand, StepsOfCaller, record, recording

CellKind = Literal["gru", "lstm", "rnn", "sru"]
BridgeKind = Literal["zeros", "copy", "tanh"]
ReadoutKind = Literal["tanh", "maxout", "none"]

MARKS, HELD = 8, 1e4
"""The number of inputs that mark padding, of which only the first is used (eight is fast), and their overwhelming weight."""

WAYS = "forward ", "backward "
GATES = {
    1: ("state",),
    3: ("reset gate", "update gate", "candidate"),
    4: ("input gate", "forget gate", "candidate", "output gate"),
}
"""The gates of a plain RNN, a GRU and an LSTM by their number, in the order of the rows of torch's matrices."""

Cell = tuple[Tensor, ...]
"""The state of a layer: (h,) for a GRU or a plain RNN, (h, c) for an LSTM or an SRU, each [B, W]."""

PARTS: dict[CellKind, int] = {"gru": 1, "lstm": 2, "rnn": 1, "sru": 2}
"""Tensors of a state."""


@dataclass(frozen=True)
class TimeMajorPacking:
    """The order of the real tokens of ragged rows in a `PackedSequence`: step by step, and at each step the longest row first.

    index [N]: places in the block [B · T] · sizes, on the host: rows at each step · order, back [B]: rows by length, and the
    inverse · empty [B, 1]: rows without tokens, which get a token whose effect is undone; None if there are none.
    """

    index: Tensor
    sizes: Tensor
    order: Tensor
    back: Tensor
    empty: Tensor | None

    def pack(self, x: Tensor) -> PackedSequence:
        return PackedSequence(x.flatten(0, 1).index_select(0, self.index), self.sizes, self.order, self.back)

    def unpack(self, packed: PackedSequence, rows: int, extent: int) -> Tensor:
        """[rows, extent, W], 0 where there is no token."""
        block = packed.data.new_zeros(rows * extent, packed.data.size(-1))
        return block.index_copy(0, self.index, packed.data).view(rows, extent, -1)


def pack_rows(layout: Layout) -> TimeMajorPacking | None:
    """The packing of the rows of a padded batch; None if every row is full. Computed on the host without synchronising."""
    device, extent = layout.segments.device, layout.segments.size(1)
    counts = np.array(layout.counts, dtype=np.int64)
    if extent == 0 or counts.min() == extent:
        return None
    lengths = np.maximum(counts, 1)
    order = np.argsort(-lengths, kind="stable")
    time = np.arange(lengths.max())[:, None]
    alive = time < lengths[order]
    places = (order * extent + time)[alive]
    empty = _send((counts == 0)[:, None], device) if counts.min() == 0 else None
    sizes = torch.from_numpy(alive.sum(1))
    return TimeMajorPacking(_send(places, device), sizes, _send(order, device), _send(np.argsort(order), device), empty)


def _send(array: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> Tensor:
    """The array on the device, through pinned memory so that the host does not wait."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def unpack(x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
    """x [1, N, D] → [m, T, D] with its layout, in which segments of padding are empty rows. The host knows all sizes."""
    assert layout.offsets is not None
    offsets = layout.offsets.long()
    place = torch.arange(layout.longest, device=x.device)
    where = (offsets[:-1, None] + place).clamp_max(x.size(1) - 1)
    ok = (place < offsets.diff()[:, None]) & layout.mask[0][where]
    return x[0][where], Layout(ok.to(torch.int32), place.expand_as(ok), None, layout.longest)


def repack(rows: Tensor, layout: Layout) -> Tensor:
    """[m, T, D] → [1, N, D], the inverse of `unpack`; values after the last sentence are undefined."""
    row = (layout.segments[0].long() - 1).clamp_min(0)
    return rows[row, layout.positions[0]][None]


class Recurrence(nn.Module, ABC):
    """A recurrent layer, left to right or bidirectional, with half the width per direction.

    kind: its cell · parts: tensors of its state · ways: directions · width: of its states, both directions together.
    """

    def __init__(self, kind: CellKind, width: int, both: bool) -> None:
        super().__init__()
        if both and width % 2:
            raise ConfigError(f"a bidirectional layer halves its width, so the width must be even, not {width}")
        self.kind, self.parts, self.ways, self.width = kind, PARTS[kind], 2 if both else 1, width

    def init_state(self, rows: int) -> Cell:
        """The initial state: zeros."""
        weight = next(self.parameters())
        return tuple(weight.new_zeros(rows, self.width) for _ in range(self.parts))

    @abstractmethod
    def forward(self, x: Tensor, state: Cell, layout: Layout | None) -> tuple[Tensor, Cell]:
        """x [B, T, D] → outputs [B, T, W], and the state after each row's last real token.

        A bidirectional layer starts from zeros.
        """

    @abstractmethod
    def step(self, x: Tensor, state: Cell) -> Cell:
        """The state after one more token x [B, D]; its first part is the output. Left to right only."""

    def plan(self, draft: PlanBuilder, x: Register, state: int) -> Register:
        """The layer in a native search; see `PlanBuilder`."""
        raise NotPlanned(type(self).__name__)


class RecurrentLayer(Recurrence):
    """A GRU (Cho et al. 2014), an LSTM (Hochreiter & Schmidhuber 1997) or a plain RNN with tanh (Elman 1990).

    The forget bias of an LSTM starts at 1 (Jozefowicz et al. 2015).
    """

    def __init__(self, kind: CellKind, inputs: int, width: int, *, both: bool = False) -> None:
        super().__init__(kind, width, both)
        layer = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[kind]
        self.rnn = layer(inputs, width // self.ways, batch_first=True, bidirectional=both)
        if kind == "lstm":
            with torch.no_grad():
                for _, _, bias, _ in self.rnn.all_weights:
                    bias.chunk(4)[1].fill_(1.0)

    def forward(self, x: Tensor, state: Cell, layout: Layout | None) -> tuple[Tensor, Cell]:
        """See `Recurrence`. If the host knows the lengths, padding is not computed."""
        if recording() and (x.size(1) > 1 or self.ways == 2):
            return self._recorded(x, state, layout)
        if self.parts == 1 or computes_bf16(x.device) or not (x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")):
            return self._forward(x, state, layout)
        with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's LSTM fails in bf16 on CPUs without it
            return self._forward(x, state, layout)

    def _forward(self, x: Tensor, state: Cell, layout: Layout | None) -> tuple[Tensor, Cell]:
        if layout is not None and layout.known is None:
            return (self._turned if self.kind == "rnn" else self._across_padding)(x, state, layout)
        packing = None if layout is None else layout.cached("packing", lambda: pack_rows(layout))
        if packing is None and self.ways == 1 and x.size(1) == 1:
            # A fused layer pays off from two tokens on: in half precision it copies all weights in every call.
            cell = self.step(x[:, 0], state)
            return cell[0][:, None], cell
        read = x if packing is None else packing.pack(x)
        outputs, last = self.rnn(read, self._split(state, x.dtype))
        after = tuple(part.transpose(0, 1).flatten(1) for part in ((last,) if self.parts == 1 else last))
        if packing is None:
            return outputs, after
        if packing.empty is not None:
            after = tuple(torch.where(packing.empty, old.to(new.dtype), new) for old, new in zip(state, after, strict=True))
        return packing.unpack(outputs, x.size(0), x.size(1)), after

    def step(self, x: Tensor, state: Cell) -> Cell:
        weights = self.rnn.all_weights[0]
        state = tuple(part.to(x.dtype) for part in state)
        after = self._cell(x, state, weights)
        if recording():
            record_gates(self, x[:, None], [part[:, None] for part in state], [part[:, None] for part in after], weights)
        return after

    def _cell(self, x: Tensor, state: Cell, weights: Sequence[Tensor]) -> Cell:
        if self.parts == 1:
            return ((torch.gru_cell if self.kind == "gru" else torch.rnn_tanh_cell)(x, state[0], *weights),)
        return torch.lstm_cell(x, state, *weights)

    def _recorded(self, x: Tensor, state: Cell, layout: Layout | None) -> tuple[Tensor, Cell]:
        """As `forward`. A fused kernel shows only states, so the gates are computed again by single steps with its weights."""
        result = self._forward(x, state, layout)
        halves, outputs, axes = self._split(state, x.dtype), [], "row token channel"
        for way, weights in enumerate(self.rnn.all_weights):
            cell: Cell = (halves[way],) if isinstance(halves, Tensor) else tuple(half[way] for half in halves)
            read, history = turn_round(x, layout) if way else x, [cell]
            for token in read.unbind(1):
                history.append(self._cell(token, history[-1], weights))
            states = [torch.stack(part, 1) for part in zip(*history, strict=True)]
            before, after = [part[:, :-1] for part in states], [part[:, 1:] for part in states]
            if way:
                before, after = ([turn_round(part, layout) for part in side] for side in (before, after))
            record_gates(self, x, before, after, weights, WAYS[way] if self.ways == 2 else "", history[0][0])
            outputs.append(after[0] if layout is None else after[0].where(layout.mask[..., None], 0.0))
        formula = "join(forward, backward, channel)" if self.ways == 2 else "forward"
        sides = {name.strip(): (each, axes) for name, each in zip(WAYS, outputs, strict=False)}
        record("states", result[0], axes, formula, self, **sides)
        record("last state", result[1][0][:, None], axes, "", self, states=(result[0], axes))
        return result

    def plan(self, draft: PlanBuilder, x: Register, state: int) -> Register:
        reads, keeps, *biases = self.rnn.all_weights[0]
        kept = draft.product(keeps, biases[1], draft.recall(state, self.rnn.hidden_size))
        read = draft.product(reads, biases[0], x)
        if self.kind == "rnn":
            read = draft.activate("tanh", draft.add(read, kept))
            draft.hold(state, read)
            return read
        return draft.cell(self.kind, state, read, kept)

    def _across_padding(self, x: Tensor, state: Cell, layout: Layout) -> tuple[Tensor, Cell]:
        """The same for lengths that the host does not know: padding is computed, but does not change the state.

        Extra inputs mark padding and saturate the gates so that the state is kept: h of a GRU, c of an LSTM. The last c
        therefore survives, and zeros stay zeros when a row is read backwards from its padding; the last h is gathered.
        """
        ok = layout.mask[..., None]
        marked = torch.cat([x, (~ok).to(x.dtype).expand(*x.shape[:2], MARKS)], -1)
        weights = [part for way in self.rnn.all_weights for part in (self._holding(way[0]), *way[1:])]
        # The arguments that nn.GRU and nn.LSTM pass: biases, layers, dropout, training, bidirectional, batch first.
        run: Callable[..., tuple[Tensor, ...]] = torch.gru if self.parts == 1 else torch.lstm
        outputs, *last = run(marked, self._split(state, x.dtype), weights, True, 1, 0.0, self.training, self.ways == 2, True)
        after = tuple(part.transpose(0, 1).flatten(1) for part in last)
        if self.parts == 2:
            width = self.rnn.hidden_size
            forth = last_outputs(outputs[..., :width], state[0][:, :width], layout)
            after = (torch.cat([forth, after[0][:, self.rnn.hidden_size :]], 1), after[1])
        return outputs.masked_fill(~ok, 0.0), after

    def _turned(self, x: Tensor, state: Cell, layout: Layout) -> tuple[Tensor, Cell]:
        """The same for a plain RNN, which has no gates to saturate: padding is computed after the tokens, in each direction."""
        (first,), outputs, after = state, [], []
        for way, (weights, before) in enumerate(zip(self.rnn.all_weights, first.chunk(self.ways, 1), strict=True)):
            read = turn_round(x, layout) if way else x
            found = torch.rnn_tanh(read, before.to(x.dtype)[None], weights, True, 1, 0.0, self.training, False, True)[0]
            after.append(last_outputs(found, before, layout))
            outputs.append(turn_round(found, layout) if way else found)
        return torch.cat(outputs, -1).masked_fill(~layout.mask[..., None], 0.0), (torch.cat(after, 1),)

    def _holding(self, weight: Tensor) -> Tensor:
        """weight [gates · W, D] → [gates · W, D + MARKS]: padding closes the input gate and opens the forget or update gate."""
        width = self.rnn.hidden_size
        marks = weight.new_zeros(weight.size(0), MARKS)
        marks[width : 2 * width, 0] = HELD
        if self.parts == 2:
            marks[:width, 0] = -HELD
        return torch.cat([weight, marks], 1)

    def _split(self, state: Cell, dtype: torch.dtype) -> Tensor | tuple[Tensor, ...]:
        """[B, W] → [directions, B, W / directions], as torch's layers expect."""
        parts = tuple(part.to(dtype).view(part.size(0), self.ways, -1).transpose(0, 1).contiguous() for part in state)
        return parts[0] if self.parts == 1 else parts


def record_gates(
    of: nn.Module,
    x: Tensor,
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    weights: Sequence[Tensor],
    way: str = "",
    initial: Tensor | None = None,
) -> None:
    """Records a step, or all steps of one direction: x [B, T, D], and the parts of the state [B, T, W] before and after.

    of: the layer or cell · weights: its matrices of inputs and states, and their biases · initial [B, W]: the state before all
    steps.
    """
    axes, names = "row token channel", GATES[weights[1].size(0) // weights[1].size(1)]

    def show(name: str, value: Tensor, formula: str, **operands: Operand) -> Operand:
        record(f"{way}{name}", value, axes, formula, of, **operands)
        return value, axes

    first = {} if initial is None else {"initial": (initial, "row channel")}
    h = show("state before", before[0], "", states=(after[0], axes), **first)
    reads, keeps, input_biases, state_biases = (each.chunk(len(names)) for each in weights)
    terms: list[dict[str, Operand]] = []
    for place, gate in enumerate(names):
        sources = ("input", x, reads, input_biases), ("state", before[0], keeps, state_biases)
        terms.append({})
        for source, read, matrices, biases in sources:
            value = F.linear(read, matrices[place], biases[place])
            terms[place][source] = value, axes
            operands = {"W": (matrices[place], "channel input"), "b": (biases[place], "channel")}
            operands["x"] = read, "row token input"
            record(f"{way}{gate} from {source}", value, axes, "sum(W * x, input) + b", of, **operands)

    def opened(place: int) -> Operand:
        value = torch.sigmoid(terms[place]["input"][0] + terms[place]["state"][0])
        return show(names[place], value, "sigmoid(input + state)", **terms[place])

    if len(names) == 1:
        show("state", after[0], "tanh(input + state)", **terms[0])
        return
    if len(before) == 1:
        r, z, candidate = opened(0), opened(1), terms[2]
        value = torch.tanh(candidate["input"][0] + r[0] * candidate["state"][0])
        n = show(names[2], value, "tanh(input + r * state)", r=r, **candidate)
        show("state", after[0], "(1 - z) * n + z * h", z=z, n=n, h=h)
        return
    i, f, o = opened(0), opened(1), opened(3)
    g = show(names[2], torch.tanh(terms[2]["input"][0] + terms[2]["state"][0]), "tanh(input + state)", **terms[2])
    c = show("cell", after[1], "f * c + i * g", f=f, c=show("cell before", before[1], ""), i=i, g=g)
    show("state", after[0], "o * tanh(c)", o=o, c=c)


class SimpleRecurrentUnit(Recurrence):
    """An SRU (Lei et al. 2017): its gates read the input alone, so that all products of a sequence are computed at once.

    x̃ = W x · f = σ(W_f x + b_f) · r = σ(W_r x + b_r) · c_t = f ⊙ c_{t−1} + (1 − f) ⊙ x̃ · h = r ⊙ tanh(c) + (1 − r) ⊙ x

    If input and output differ in width, a learned projection of x takes its place in h. What is left of the recurrence, c, is
    a scan of ⌈log₂ T⌉ steps over all positions.
    """

    def __init__(self, inputs: int, width: int, *, both: bool = False) -> None:
        super().__init__("sru", width, both)
        own = width // self.ways
        self.maps = 3 if inputs == own else 4
        self.reads = nn.ModuleList(nn.Linear(inputs, self.maps * own, bias=False) for _ in range(self.ways))
        self.biases = nn.Parameter(torch.zeros(self.ways, 2 * own))

    def forward(self, x: Tensor, state: Cell, layout: Layout | None) -> tuple[Tensor, Cell]:
        outputs, hidden, cells = [], [], []
        before = zip(*(part.chunk(self.ways, 1) for part in state), strict=True)
        for way, (first, cell) in enumerate(before):
            read = turn_round(x, layout) if way else x
            found, cell = self._read(way, read, cell, layout)
            last = found[:, -1] if layout is None else last_outputs(found, first, layout)
            outputs.append(turn_round(found, layout) if way else found)
            hidden.append(last)
            cells.append(cell)
        whole = torch.cat(outputs, -1)
        whole = whole if layout is None else whole.masked_fill(~layout.mask[..., None], 0.0)
        return whole, (torch.cat(hidden, 1), torch.cat(cells, 1))

    def step(self, x: Tensor, state: Cell) -> Cell:
        outputs, cell = self._read(0, x[:, None], state[1], None)
        return outputs[:, 0], cell

    def _read(self, way: int, x: Tensor, cell: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
        """x [B, T, D] and c [B, W] → outputs [B, T, W] and the last c. On padding, c stays."""
        fresh, forget, reset, *skip = self.reads[way](x).chunk(self.maps, -1)
        forget, reset = (torch.cat([forget, reset], -1) + self.biases[way]).sigmoid().chunk(2, -1)
        if layout is not None:
            forget = torch.where(layout.mask[..., None], forget, 1.0)
            fresh = torch.where(layout.mask[..., None], fresh, 0.0)
        cells = scan(forget, (1 - forget) * fresh, cell.to(fresh.dtype))
        past = skip[0] if skip else x
        outputs = reset * cells.tanh() + (1 - reset) * past
        if recording():
            before = torch.cat([cell[:, None].to(cells.dtype), cells[:, :-1]], 1)
            self._record(way, (fresh, forget, reset, before, cells), past, outputs)
        return outputs, cells[:, -1]

    def _record(self, way: int, steps: Sequence[Tensor], past: Tensor, outputs: Tensor) -> None:
        """Records x̃, the gates, the cells before and after, and the output, in the order in which a direction reads."""
        axes, first = "row token channel", WAYS[way] if self.ways == 2 else ""
        fresh, forget, reset, before, cells = ((each, axes) for each in steps)
        for name, (value, _) in {"candidate": fresh, "forget gate": forget, "reset gate": reset, "cell before": before}.items():
            record(f"{first}{name}", value, axes, "", self)
        record(f"{first}cell", cells[0], axes, "f * c + (1 - f) * n", self, f=forget, c=before, n=fresh)
        record(f"{first}state", outputs, axes, "r * tanh(c) + (1 - r) * x", self, r=reset, c=cells, x=(past, axes))


def scan(factors: Tensor, terms: Tensor, first: Tensor) -> Tensor:
    """c_t = f_t c_{t−1} + u_t for factors f in [0, 1] and terms u [B, T, W], from c_0 [B, W] on: all c, [B, T, W]."""
    terms = torch.cat([terms[:, :1] + factors[:, :1] * first[:, None], terms[:, 1:]], 1)
    distance = 1
    while distance < terms.size(1):
        earlier = F.pad(terms, (0, 0, distance, 0))[:, : terms.size(1)]
        terms = terms + factors * earlier
        factors = factors * F.pad(factors, (0, 0, distance, 0))[:, : terms.size(1)]
        distance *= 2
    return terms


def make_layer(kind: CellKind, inputs: int, width: int, *, both: bool = False) -> Recurrence:
    """A layer with this kind of cell."""
    return SimpleRecurrentUnit(inputs, width, both=both) if kind == "sru" else RecurrentLayer(kind, inputs, width, both=both)


class StepDropout(nn.Module):
    """Dropout over the steps of a row: of independent entries, or variational, of the same entries at all steps.

    Variational dropout is that of Gal & Ghahramani 2016 for the inputs of a layer. Recurrent connections have none, so that
    fused kernels can be used.
    """

    def __init__(self, share: float = 0.0, variational: bool = False) -> None:
        super().__init__()
        self.share, self.variational = share, variational

    def mask(self, x: Tensor, width: int) -> Tensor | None:
        """The factors [B, T or 1, width] for x [B, T, …]; None outside training."""
        if not self.training or self.share == 0:
            return None
        return dropout(x.new_ones(x.size(0), 1 if self.variational else x.size(1), width), self.share)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D] → [B, T, D]."""
        mask = self.mask(x, x.size(-1))
        return x if mask is None else x * mask


@dataclass(frozen=True)
class RecurrentOptions:
    """Options that recurrent encoders and decoders share.

    cell: gru; lstm, which has a second state; rnn: plain, with tanh; sru: simple recurrent units, whose gates read only the
        input (Lei et al. 2017)
    embedding: width of embeddings and of the input of the output layer; 0: dim
    residual: layers above the first add their input to their output
    dropout: dropout rate of embeddings, between layers, and before the output layer
    variational_dropout: one mask per row and layer for all steps (Gal & Ghahramani 2016), on the input from below
    """

    cell: CellKind = "gru"
    embedding: NonNegativeInt = 0
    residual: bool = False
    dropout: Rate = 0.1
    variational_dropout: bool = False

    def noise(self) -> StepDropout:
        return StepDropout(self.dropout, self.variational_dropout)

    def finals(self, dim: int, layers: int) -> list[tuple[int, int]]:
        """See `VectorEncoder.finals`."""
        return [(PARTS[self.cell], dim)] * layers


class RecurrentStack(nn.Module):
    """Stacked layers with dropout between them; residual: all but the first add their input."""

    def __init__(
        self,
        kind: CellKind,
        inputs: int,
        width: int,
        layers: int,
        noise: StepDropout,
        *,
        both: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        widths = [inputs, *[width] * (layers - 1)]
        self.layers = nn.ModuleList(make_layer(kind, each, width, both=both) for each in widths)
        self.noise, self.width, self.both, self.residual = noise, width, both, residual

    def init_state(self, rows: int) -> list[Cell]:
        return [layer.init_state(rows) for layer in self._each()]

    def masks(self, x: Tensor) -> list[Tensor | None]:
        """The dropout mask of each layer's input, for x [B, T, D]; None: no dropout, as for the first layer."""
        return [None, *(self.noise.mask(x, self.width) for _ in self.layers[1:])]

    def step_masks(self, x: Tensor) -> list[tuple[Tensor | None, ...]]:
        """The masks of every token of x separately."""
        extent = x.size(1)
        rows = [[None] * extent if mask is None else mask.expand(-1, extent, -1).unbind(1) for mask in self.masks(x)]
        return list(zip(*rows, strict=True))

    def forward(self, x: Tensor, state: list[Cell], layout: Layout | None = None) -> tuple[Tensor, list[Cell]]:
        """x [B, T, D] → outputs [B, T, W] of the last layer, and the state of every layer after each row's last real token."""
        after: list[Cell] = []
        for layer, before, mask in zip(self._each(), state, self.masks(x), strict=True):
            outputs, cell = layer(x if mask is None else x * mask, before, layout)
            x = x + outputs if self.residual and after else outputs
            after.append(cell)
        return x, after

    def step(self, x: Tensor, state: list[Cell], masks: Sequence[Tensor | None]) -> tuple[Tensor, list[Cell]]:
        """One token x [B, D] → [B, W] and the state after it; masks: the dropout mask of each layer's input, [B, D]."""
        after: list[Cell] = []
        for layer, before, mask in zip(self._each(), state, masks, strict=True):
            cell = layer.step(x if mask is None else x * mask, before)
            x = x + cell[0] if self.residual and after else cell[0]
            after.append(cell)
        return x, after

    def plan(self, draft: PlanBuilder, x: Register, states: Sequence[int]) -> Register:
        for number, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            output = draft.part(layer, x, state)
            x = draft.add(x, output) if self.residual and number else output
        return x

    def _each(self) -> Iterable[Recurrence]:
        return cast(Iterable[Recurrence], self.layers)


class Bridge(nn.Module):
    """The initial state of a decoder: zeros, the encoder's last states layer by layer, or tanh(W v) of one vector."""

    def __init__(self, kind: BridgeKind, width: int, stack: RecurrentStack) -> None:
        super().__init__()
        self.kind, self.shape = kind, [(len(cell), cell[0].size(1)) for cell in stack.init_state(1)]
        self.project = nn.Linear(width, sum(parts * size for parts, size in self.shape)) if kind == "tanh" else None

    def forward(self, vector: Tensor, final: list[Cell]) -> list[Cell]:
        """vector [B, width] and the encoder's `final` states → the decoder's initial states."""
        if self.kind == "copy":
            return final
        rows = vector.size(0)
        if self.project is None:
            return [tuple(vector.new_zeros(rows, size) for _ in range(parts)) for parts, size in self.shape]
        projected = self.project(vector)
        states = torch.tanh(projected)
        if recording():
            axes = "row token channel"
            record("initial states", states[:, None], axes, "tanh(x)", x=(projected[:, None], axes))
        layers = states.split([parts * size for parts, size in self.shape], -1)
        return [layer.chunk(parts, -1) for layer, (parts, _) in zip(layers, self.shape, strict=True)]


class Readout(nn.Module, StepsOfCaller):
    """The input of an output layer: tanh(W x), the maximum of two such products (maxout, Goodfellow et al. 2013), or x."""

    def __init__(self, kind: ReadoutKind, inputs: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.mix = nn.Identity() if kind == "none" else nn.Linear(inputs, 2 * width if kind == "maxout" else width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(x)
        if self.kind == "none":
            return mixed
        if self.kind == "maxout":
            pairs = mixed.unflatten(-1, (-1, 2))
            output, formula, given = pairs.amax(-1), "max(x, pair)", (pairs, "pair")
        else:
            output, formula, given = torch.tanh(mixed), "tanh(x)", (mixed, "")
        if recording():
            axes, value, x = "row token channel", output, given[0]
            if output.dim() == 2:  # of one step
                value, x = value[:, None], x[:, None]
            record("readout", value, axes, formula, x=(x, f"{axes} {given[1]}"))
        return output

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        x = draft.linear(self.mix, x)
        return x if self.kind == "none" else draft.activate(self.kind, x)


def each_token(layout: Layout | None, extent: int) -> list[Layout | None]:
    """The layout of each token alone; None where every row has one."""
    full = extent if layout is None else layout.shortest
    if layout is None or full == extent:
        return [None] * extent
    segments = layout.segments[:, full:].split(1, 1)
    first = torch.zeros_like(segments[0], dtype=torch.long)
    return [None] * full + [Layout(segment, first, None, 1) for segment in segments]


def after_own_steps(steps: Sequence[list[Cell]], layout: Layout) -> list[Cell]:
    """The state of each row after as many steps as it has tokens; steps[0] is the initial state.

    One selection at the end, among all states, is much less work for the host than holding rows back at every step.
    """
    lengths = layout.lengths
    rows = torch.arange(lengths.numel(), device=lengths.device)
    return [
        tuple(torch.stack(part, 1)[rows, lengths] for part in zip(*cells, strict=True)) for cells in zip(*steps, strict=True)
    ]


def last_outputs(outputs: Tensor, before: Tensor, layout: Layout) -> Tensor:
    """The outputs [B, T, W] of the last token of each row; of empty rows, the state `before` [B, W]."""
    ends = (layout.lengths - 1).clamp_min(0)
    last = outputs[torch.arange(outputs.size(0), device=outputs.device), ends]
    return torch.where(layout.mask[:, :1], last, before.to(last.dtype))


def turn_round(x: Tensor, layout: Layout | None) -> Tensor:
    """x [B, T, …] with the real tokens of every row reversed."""
    if layout is None:
        return x.flip(1)
    place, length = torch.arange(x.size(1), device=x.device), layout.lengths[:, None]
    index = torch.where(place < length, length - 1 - place, place)
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand_as(x))
