"""Recurrent encoders and decoders: Sutskever et al. 2014, Cho et al. 2014, Bahdanau et al. 2015, Luong et al. 2015.

And recurrent language models, plain or with attention to their own past states.

Shapes: G sources · B rows · T target positions · S source positions · E width of embeddings · D width of the decoder's
states · M width of the encoder's, both directions together · C width of a context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, Site
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.decoder_state import State, shared, spread
from weft.layers.embeddings_and_rotary_positions import TokenEmbedding
from weft.layers.kernels.cpp_plan import NotPlanned, Opening, PlanBuilder, Register
from weft.layers.linear_norm_dropout import Rate, to_autocast_dtype
from weft.layers.recurrent import (
    Bridge,
    BridgeKind,
    Cell,
    Readout,
    ReadoutKind,
    RecurrentOptions,
    RecurrentStack,
    after_own_steps,
    each_token,
    turn_round,
)
from weft.layers.step_recorder import record, recording
from weft.models.base import DecoderSite, Encoded, HiddenStates, LinearDecoder, Sizes
from weft.models.encoder_decoder import FlatFamily, VectorEncoder
from weft.models.language_model import LanguageModel, LanguageModelFamily, SourcelessDecoder

Style = Literal["fixed", "cho", "bahdanau", "luong"]


class RecurrentEncoder(VectorEncoder):
    """A recurrent network over the source: one vector per position, and the last state of every layer.

    dim: width of the states, both directions together
    layers: number of recurrent layers
    bidirectional: read the source in both directions, each with half the width
    reverse_source: read the source from its end
    """

    cuda_graph_safe = True

    def __init__(
        self,
        *,
        recurrence: RecurrentOptions,
        dim: PositiveInt = 256,
        layers: PositiveInt = 1,
        bidirectional: bool = True,
        reverse_source: bool = False,
    ) -> None:
        super().__init__()
        self.noise, self.reversed = recurrence.noise(), reverse_source
        self.input_width, self.width, self.finals = recurrence.embedding or dim, dim, recurrence.finals(dim, layers)
        self.stack = RecurrentStack(
            recurrence.cell, self.input_width, dim, layers, self.noise, both=bidirectional, residual=recurrence.residual
        )

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        if self.reversed:
            x, given = turn_round(x, layout), x
            record("reversed source", x, "row token channel", x=(given, "row token channel"))
        x = self.noise(x)
        memory, final = self.stack(x, self.stack.init_state(x.size(0)), layout)
        return Encoded(turn_round(memory, layout) if self.reversed else memory, layout, final=final)

    def read_on(self, x: Tensor, state: list[Cell] | None) -> tuple[Tensor, list[Cell]]:
        if self.reversed or self.stack.both:
            return super().read_on(x, state)
        return self.stack(self.noise(x), self.stack.init_state(x.size(0)) if state is None else state)


@dataclass
class RecurrentState:
    """layers: their states, [B, D] · attention: its state · fed [B, E]: the last h̃ · summary [G, C]: a fixed context."""

    layers: list[Cell]
    attention: State = None
    fed: Tensor | None = None
    summary: Tensor | None = shared(default=None)


class RecurrentDecoder(LinearDecoder):
    """A recurrent network that writes the target, with a fixed context or with attention.

    style: how the decoder sees the source. fixed: it starts from the encoder's last state (Sutskever et al. 2014); cho: one
        context enters every step and the output (Cho et al. 2014); bahdanau: the previous state attends before each step, and
        the context enters the step and the output (Bahdanau et al. 2015); luong: the new state attends after each step,
        h̃ = tanh(W [c; h]) (Luong et al. 2015), which trains fastest without input feeding
    dim: width of the decoder's states
    layers: number of recurrent layers
    attention: attention to the source, in the styles bahdanau and luong
    heads: attention heads, for attentions that have heads; they share the width
    attention_dropout: dropout rate of attention weights
    input_feeding: h̃ joins the next input, in the style luong
    context_gate: multiply each context by a learned gate between 0 and 1, σ(w h) of the state that attends (Xu et al. 2015)
    bridge: the decoder's initial states. tanh: a learned projection of the encoder's last state; copy: the encoder's last
        states, layer by layer; zeros
    readout: between the states and the output layer. tanh; maxout over pairs, as Cho and Bahdanau have it; none, as Sutskever
    """

    cuda_graph_safe = True

    def __init__(
        self,
        site: DecoderSite,
        *,
        recurrence: RecurrentOptions,
        style: Style = "bahdanau",
        dim: PositiveInt = 256,
        layers: PositiveInt = 1,
        attention: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "additive"},  # noqa: B006
        heads: PositiveInt = 1,
        attention_dropout: Rate = 0.0,
        input_feeding: bool = False,
        context_gate: bool = False,
        bridge: BridgeKind = "tanh",
        readout: ReadoutKind = "tanh",
    ) -> None:
        super().__init__()
        memory, width = site.memory, recurrence.embedding or dim
        alike = list(site.finals) == recurrence.finals(dim, layers)
        _check(style, input_feeding, bridge, readout, (width, dim), alike)
        cross: Attention | None = None
        if style in ("bahdanau", "luong"):
            source = Site("cross", dim, heads, memory=memory, dropout=attention_dropout, predicts=True)
            cross = build("weft.attention:ATTENTIONS", attention, source)
            self.max_memory = cross.max_length
        context = dim if cross is None else cross.context_width
        joins = {"fixed": 0, "cho": context, "bahdanau": context, "luong": width if input_feeding else 0}
        noise = recurrence.noise()
        table, output = site.tables(width)
        self.embedding, self.noise, self.output = TokenEmbedding(table, None), noise, output
        self.stack = RecurrentStack(recurrence.cell, width + joins[style], dim, layers, noise, residual=recurrence.residual)
        self.cross, self.style, self.input_feeding = cross, style, input_feeding
        self.feeds_back = style == "bahdanau" or input_feeding
        self.summary = nn.Linear(memory, dim) if style == "cho" else None
        self.bridge = Bridge(bridge, dim if style == "cho" else memory, self.stack)
        reads = {"fixed": 0, "cho": width + context, "bahdanau": width + context, "luong": context}
        predicting = dim if cross is None else cross.predicting(torch.empty(0, dim, device="meta")).size(-1)
        self.readout = Readout(readout, predicting + reads[style], width)
        self.gate = nn.Linear(dim, 1) if context_gate and cross is not None else None
        self.dim, self.hidden = dim, width

    def init_state(self, source: Encoded, *, room: int | None = None) -> RecurrentState:
        last = source.summary
        summary = None if self.summary is None else torch.tanh(self.summary(last))
        layers = self.bridge(last if summary is None else summary, source.final)
        attention = None if self.cross is None else self.cross.init_state(source.memory, source.layout)
        fed = last.new_zeros(last.size(0), self.output.in_features) if self.input_feeding else None
        return RecurrentState(layers, attention, fed, summary)

    def disturb(self, state: RecurrentState, change: Callable[[Tensor], Tensor]) -> RecurrentState:
        """The state with `change` applied to the hidden state [B, D] of every layer, for noise at test time."""
        return replace(state, layers=[(change(cell[0]), *cell[1:]) for cell in state.layers])

    def hidden_states(self, tokens: Tensor, state: RecurrentState, layout: Layout | None = None) -> HiddenStates:
        x = self.noise(self.embedding(tokens))
        features = self._steps(to_autocast_dtype(x), state, layout) if self.feeds_back else self._sequence(x, state, layout)
        return replace(features, hidden=self.noise(features.hidden))

    def plan(self, draft: PlanBuilder) -> None:
        cross = self.cross
        if cross is not None and type(cross).predicting is not Attention.predicting:
            raise NotPlanned(type(cross).__name__)
        draft.opens(RecurrentDecoder._opening)
        layers, context = [draft.state(parts * size) for parts, size in self.bridge.shape], None
        token: Register = draft.part(self.embedding)
        if self.style == "cho":
            context = draft.recall(draft.state(self.dim))
        elif cross is not None and self.style == "bahdanau":
            context = draft.part(cross, draft.recall(layers[-1], self.dim))
        fed = draft.state(self.hidden) if self.input_feeding else None
        joins = draft.recall(fed) if fed is not None else context
        output = draft.part(self.stack, token if joins is None else draft.join(token, joins), layers)
        reads = [output] if context is None else [output, token, context]
        if cross is not None and self.style == "luong":
            reads = [output, draft.part(cross, output)]
        hidden = draft.part(self.readout, draft.join(*reads))
        if fed is not None:
            draft.hold(fed, hidden)

    def _opening(self, source: Encoded) -> Opening:
        """The states in the order of the plan."""
        first = self.init_state(source)
        more = [each for each in (first.summary, first.fed) if each is not None]
        memories = [] if self.cross is None else [first.attention]
        return Opening(memories, [*(torch.cat(cell, -1) for cell in first.layers), *more])

    def _sequence(self, x: Tensor, state: RecurrentState, layout: Layout | None) -> HiddenStates:
        context, attention, extras = None, state.attention, {}
        if state.summary is not None:
            context = spread(state.summary, x.size(0))[:, None].expand(-1, x.size(1), -1)
        outputs, layers = self.stack(_join("input", x, context), state.layers, layout)
        if self.cross is not None:
            attended = self.cross(outputs, attention, layout=layout)
            context, attention, extras = self._gated(outputs, attended.context), attended.state, attended.extras
        return HiddenStates(self._read(outputs, x, context), replace(state, layers=layers, attention=attention), extras)

    def _steps(self, x: Tensor, state: RecurrentState, layout: Layout | None) -> HiddenStates:
        layers, fed, attention = state.layers, state.fed, state.attention
        history, outputs, contexts, read = [_cells(layers, fed)], [], [], []
        extras: dict[str, list[Tensor]] = {}
        for token, masks, own in zip(x.unbind(1), self.stack.step_masks(x), each_token(layout, x.size(1)), strict=True):
            if self.style == "bahdanau":
                context, attention = self._attend(layers[-1][0], attention, own, extras)
                output, layers = self.stack.step(_join("input", token, context), layers, masks)
            else:
                output, layers = self.stack.step(_join("input", token, fed), layers, masks)
                context, attention = self._attend(output, attention, own, extras)
            if self.input_feeding:
                fed = self._read(output, token, context)
                read.append(fed)
            history.append(_cells(layers, fed))
            outputs.append(output)
            contexts.append(context)
        if read:
            hidden = torch.stack(read, 1)
        else:
            hidden = self._read(torch.stack(outputs, 1), x, torch.stack(contexts, 1))
        last = history[-1] if layout is None or layout.shortest == x.size(1) else after_own_steps(history, layout)
        after = replace(state, layers=last[: len(layers)], fed=last[-1][0] if self.input_feeding else None, attention=attention)
        return HiddenStates(hidden, after, {name: torch.cat(values, 1) for name, values in extras.items()})

    def _attend(
        self, query: Tensor, state: State, layout: Layout | None, extras: dict[str, list[Tensor]]
    ) -> tuple[Tensor, State]:
        """The context [B, C] of one query [B, D]."""
        assert self.cross is not None
        attended = self.cross(query[:, None], state, layout=layout)
        for name, value in attended.extras.items():
            extras.setdefault(name, []).append(value)
        return self._gated(query, attended.context[:, 0]), attended.state

    def _gated(self, query: Tensor, context: Tensor) -> Tensor:
        if self.gate is None:
            return context
        raw = self.gate(query)
        gated = torch.sigmoid(raw) * context
        if recording():
            axes, whole = "row token channel", [each if each.dim() == 3 else each[:, None] for each in (gated, raw, context)]
            operands = {"gate": (whole[1][..., 0], "row token"), "context": (whole[2], axes)}
            record("gated context", whole[0], axes, "sigmoid(gate) * context", **operands)
        return gated

    def _read(self, output: Tensor, embedded: Tensor, context: Tensor | None) -> Tensor:
        """h̃, from the inputs that the style gives to the output layer."""
        if self.style in ("cho", "bahdanau"):
            context = _join("embedding and context", embedded, context)
        reads = output if self.cross is None else self.cross.predicting(output)
        return self.readout(_join("input of the readout", reads, context))


class RNN(FlatFamily):
    """Recurrent encoder and decoder, with a fixed context or with attention.

    encoder_dim: width of the encoder's states, both directions together; 0: dim
    """

    parts = (
        (RecurrentEncoder, {"dim": "encoder_dim", "layers": "encoder_layers"}),
        (RecurrentDecoder, {"layers": "decoder_layers"}),
    )

    def __init__(self, *, recurrence: RecurrentOptions, encoder_dim: NonNegativeInt = 0, **options: Any) -> None:
        recurrence = replace(recurrence, embedding=recurrence.embedding or options["dim"])
        super().__init__(recurrence=recurrence, encoder_dim=encoder_dim or options["dim"], **options)


def _check(
    style: Style, input_feeding: bool, bridge: BridgeKind, readout: ReadoutKind, widths: tuple[int, int], alike: bool
) -> None:
    """Rejects options that do not go together. widths: of embeddings and states · alike: encoder and decoder layers match."""
    if input_feeding and style != "luong":
        raise ConfigError(f"model.input_feeding belongs to model.style: luong, not {style}; leave it out")
    if style == "fixed" and bridge == "zeros":
        raise ConfigError(
            "model.bridge: zeros with model.style: fixed leaves the decoder without any sight of the source; "
            "set model.bridge: copy or tanh"
        )
    if bridge == "copy" and not alike:
        raise ConfigError(
            "model.bridge: copy needs a recurrent encoder with as many layers as the decoder, of the same width and cell; "
            "set encoder_layers and decoder_layers, and dim and encoder_dim, alike, or model.bridge: tanh"
        )
    if readout == "none" and (style != "fixed" or widths[0] != widths[1]):
        raise ConfigError(
            "model.readout: none belongs to model.style: fixed with embeddings as wide as the states "
            f"(here: {style}, {widths[0]} and {widths[1]}); set tanh or maxout"
        )


def _join(name: str, x: Tensor, more: Tensor | None) -> Tensor:
    """[x; more], which is recorded under this name."""
    if more is None:
        return x
    joined = torch.cat([x, more.to(x.dtype)], -1)
    if recording():
        axes = "row token channel"
        whole, left, right = (each if each.dim() == 3 else each[:, None] for each in (joined, x, more))
        record(name, whole, axes, "join(x, more, channel)", x=(left, axes), more=(right, axes))
    return joined


def _cells(layers: list[Cell], fed: Tensor | None) -> list[Cell]:
    """Everything that one step passes to the next."""
    return layers if fed is None else [*layers, (fed,)]


@dataclass
class RecurrentLanguageState:
    """layers: their states, [B, D] · past: that of the attention, or the last states for n-grams."""

    layers: list[Cell]
    past: State = None


class StateNGram(nn.Module):
    """[h¹_t; h²_{t−1}; …]: a state is split into as many parts as states are read, and the i-th part predicts i tokens ahead.

    size: states that are read; N − 1 for the N-gram RNN of Daniluk et al. 2017, section 2.4.
    """

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        if dim % size:
            raise ConfigError(f"model.dim: states of width {dim} cannot be split into {size} equal parts; change dim or ngram")
        self.part, self.window = dim // size, TokenWindow(dim, size, causal=True)

    def forward(self, outputs: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        """outputs [B, T, D] → [B, T, D], part i from i − 1 states ago; and the last states."""
        windows, tail = self.window(outputs, tail, layout)
        newest_first = windows.unflatten(-1, (self.window.width, -1)).flip(-2)
        parts = newest_first.unflatten(-1, (self.window.width, self.part))
        return parts.diagonal(dim1=-3, dim2=-2).transpose(-1, -2).flatten(-2), tail


class RecurrentLanguageDecoder(SourcelessDecoder):
    """A recurrent network over a text. Its output reads h̃ = tanh(W [r; h]), where r is what attention finds in the past."""

    def __init__(
        self, tables: tuple[nn.Embedding, nn.Linear], stack: RecurrentStack, look: Attention | StateNGram | None
    ) -> None:
        super().__init__()
        table, output = tables
        self.embedding, self.noise, self.output = TokenEmbedding(table, None), stack.noise, output
        self.stack, self.look = stack, look
        reads = dim = stack.width
        if isinstance(look, Attention):
            reads = look.predicting(torch.empty(0, dim, device="meta")).size(-1) + look.context_width
            self.max_length = look.max_length
        self.readout = Readout("tanh", reads, table.embedding_dim)
        self.dim, self.hidden = dim, table.embedding_dim

    def init_state(self, source: Encoded, *, room: int | None = None) -> RecurrentLanguageState:
        return self._begin(source.memory.size(0), room)

    def recall(self, memory: Sequence[Tensor]) -> RecurrentLanguageState:
        return self._read(memory[0], self._begin(memory[0].size(0), None), None).state

    def read(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[HiddenStates, list[Tensor]]:
        x = self.noise(self.embedding(tokens))
        return self._read(x, state, layout), [x]

    def plan(self, draft: PlanBuilder) -> None:
        if self.look is not None:
            raise NotPlanned(type(self.look).__name__)
        states = [draft.state(sum(part.size(1) for part in cell)) for cell in self.stack.init_state(1)]
        draft.part(self.readout, draft.part(self.stack, draft.part(self.embedding), states))

    def _begin(self, rows: int, room: int | None) -> RecurrentLanguageState:
        past: State = None
        if isinstance(self.look, Attention):
            past = self.look.init_state(rows=rows, room=room)
        elif self.look is not None:
            past = self.look.window.init_state(rows, self.output.weight)
        return RecurrentLanguageState(self.stack.init_state(rows), past)

    def _read(self, x: Tensor, state: RecurrentLanguageState, layout: Layout | None) -> HiddenStates:
        outputs, layers = self.stack(x, state.layers, layout)
        read, past, extras = outputs, state.past, {}
        if isinstance(self.look, Attention):
            attended = self.look(outputs, past, append=outputs, layout=layout)
            past, extras = attended.state, attended.extras
            read = _join("state and context", self.look.predicting(outputs), attended.context)
        elif self.look is not None:
            read, past = self.look(outputs, past, layout)
        return HiddenStates(self.noise(self.readout(read)), RecurrentLanguageState(layers, past), extras)


class RecurrentLanguageModelFamily(LanguageModelFamily):
    """A recurrent language model, plain or with attention to its own past states (Daniluk et al. 2017).

    style: what the output reads. plain: the state, h̃ = tanh(W h); attention: the state and what attention finds among earlier
        states, h̃ = tanh(W [r; h]); ngram: parts of the last states
    dim: width of the states
    layers: number of recurrent layers
    attention: attention to earlier states, in the style attention. key_value is the published one: parts 1, 2 or 3, and span,
        the number of states it attends to
    ngram: N of the style ngram, which reads parts of the last N − 1 states
    heads: attention heads, for attentions that have heads; they share the width
    attention_dropout: dropout rate of attention weights
    share_embeddings: one table for input and output
    """

    def __init__(
        self,
        *,
        recurrence: RecurrentOptions,
        style: Literal["plain", "attention", "ngram"] = "attention",
        dim: PositiveInt = 256,
        layers: PositiveInt = 1,
        attention: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "key_value", "span": 5},  # noqa: B006
        ngram: Annotated[int, Field(ge=2)] = 4,
        heads: PositiveInt = 1,
        attention_dropout: Rate = 0.0,
        share_embeddings: bool = True,
    ) -> None:
        self.options, self.style, self.dim, self.layers, self.ngram = recurrence, style, dim, layers, ngram
        self.attention, self.share = attention, share_embeddings
        self.site = Site("causal", dim, heads, dropout=attention_dropout, predicts=True)

    def build(self, sizes: Sizes) -> LanguageModel:
        options, width = self.options, self.options.embedding or self.dim
        tables = DecoderSite(sizes.target, 0, tied=self.share).tables(width)
        stack = RecurrentStack(options.cell, width, self.dim, self.layers, options.noise(), residual=options.residual)
        look: Attention | StateNGram | None = None
        if self.style == "attention":
            look = build("weft.attention:ATTENTIONS", self.attention, self.site, where="model.attention")
        elif self.style == "ngram":
            look = StateNGram(self.dim, self.ngram - 1)
        return LanguageModel(RecurrentLanguageDecoder(tables, stack, look), "none")
