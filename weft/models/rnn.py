"""Recurrent encoders and decoders: Sutskever et al. 2014, Cho et al. 2014, Bahdanau et al. 2015, Luong et al. 2015.

Shapes: G sources · B rows · T target positions · S source positions · E width of embeddings · D width of the decoder's
states · M width of the encoder's, both directions together · C width of a context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, Site
from weft.batch import Layout
from weft.config.registry import Among, build
from weft.errors import ConfigError
from weft.layers.autocast import computed_in
from weft.layers.embedding import Sharing, embedding_tables
from weft.layers.recurrent import (
    Bridge,
    BridgeKind,
    Cell,
    CellKind,
    Readout,
    ReadoutKind,
    RecurrentStack,
    StepDropout,
    after_own_steps,
    each_token,
    turn_round,
)
from weft.models.base import Encoded, Encoder, Features, LinearDecoder, Model, Sizes
from weft.state import State, shared, spread

Style = Literal["fixed", "cho", "bahdanau", "luong"]
Share = Annotated[float, Field(ge=0, lt=1)]


class Embedding(nn.Module):
    """A vector for each token, times √E, with dropout."""

    def __init__(self, table: nn.Embedding, noise: StepDropout) -> None:
        super().__init__()
        self.table, self.noise = table, noise
        self.scale = math.sqrt(table.embedding_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] → [B, T, E]."""
        return self.noise(self.table(tokens) * self.scale)


class RecurrentEncoder(Encoder):
    """Annotations of every source token, in the order of the source, and the last state of every layer."""

    def __init__(self, embedding: Embedding, stack: RecurrentStack, *, turned: bool) -> None:
        super().__init__()
        self.embedding, self.stack, self.turned = embedding, stack, turned
        self.width = stack.width

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        tokens = turn_round(tokens, layout) if self.turned else tokens
        memory, final = self.stack(self.embedding(tokens), self.stack.start(tokens.size(0)), layout)
        return Encoded(turn_round(memory, layout) if self.turned else memory, layout, final=final)


@dataclass
class RecurrentState:
    """layers: each layer's state, [B, D] · look: the attention's · fed [B, E]: the last h̃ · summary [G, C]: a fixed context."""

    layers: list[Cell]
    look: State = None
    fed: Tensor | None = None
    summary: Tensor | None = shared(default=None)


class RecurrentDecoder(LinearDecoder):
    """A stack of recurrent layers that sees the source in one of four styles; see `RNN`.

    Where what is found at one step enters the next, tokens go one by one; elsewhere the layers run over all tokens at once,
    and then the attention looks for all of them at once.
    """

    def __init__(
        self,
        embedding: Embedding,
        output: nn.Linear,
        stack: RecurrentStack,
        cross: Attention | None,
        *,
        memory: int,
        style: Style,
        input_feeding: bool,
        bridge: BridgeKind,
        readout: ReadoutKind,
    ) -> None:
        super().__init__()
        self.embedding, self.output, self.stack, self.cross = embedding, output, stack, cross
        self.style, self.input_feeding = style, input_feeding
        self.feeds_back = style == "bahdanau" or input_feeding
        self.summary = nn.Linear(memory, stack.width) if style == "cho" else None
        self.bridge = Bridge(bridge, stack.width if style == "cho" else memory, stack)
        width, context = output.in_features, stack.width if cross is None else cross.context_width
        reads = {"fixed": 0, "cho": width + context, "bahdanau": width + context, "luong": context}
        self.readout = Readout(readout, stack.width + reads[style], width)

    def start(self, source: Encoded, *, room: int | None = None) -> RecurrentState:
        last = source.final[-1][0]
        summary = None if self.summary is None else torch.tanh(self.summary(last))
        layers = self.bridge(last if summary is None else summary, source.final)
        look = None if self.cross is None else self.cross.start(source.memory, source.layout)
        fed = last.new_zeros(last.size(0), self.output.in_features) if self.input_feeding else None
        return RecurrentState(layers, look, fed, summary)

    def features(self, tokens: Tensor, state: RecurrentState, layout: Layout | None = None) -> Features:
        x = self.embedding(tokens)
        found = self._step_by_step(computed_in(x), state, layout) if self.feeds_back else self._at_once(x, state, layout)
        return replace(found, hidden=self.embedding.noise(found.hidden))

    def _at_once(self, x: Tensor, state: RecurrentState, layout: Layout | None) -> Features:
        context, look, terms = None, state.look, {}
        if state.summary is not None:
            context = spread(state.summary, x.size(0))[:, None].expand(-1, x.size(1), -1)
        outputs, layers = self.stack(_join(x, context), state.layers, layout)
        if self.cross is not None:
            found = self.cross(outputs, look, layout=layout)
            context, look, terms = found.context, found.state, found.terms
        return Features(self._read(outputs, x, context), replace(state, layers=layers, look=look), terms)

    def _step_by_step(self, x: Tensor, state: RecurrentState, layout: Layout | None) -> Features:
        layers, fed, look = state.layers, state.fed, state.look
        history, outputs, contexts, read = [_cells(layers, fed)], [], [], []
        terms: dict[str, list[Tensor]] = {}
        for token, masks, piece in zip(x.unbind(1), self.stack.step_masks(x), each_token(layout, x.size(1)), strict=True):
            if self.style == "bahdanau":
                context, look = self._look(layers[-1][0], look, piece, terms)
                output, layers = self.stack.step(_join(token, context), layers, masks)
            else:
                output, layers = self.stack.step(_join(token, fed), layers, masks)
                context, look = self._look(output, look, piece, terms)
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
        after = replace(state, layers=last[: len(layers)], fed=last[-1][0] if self.input_feeding else None, look=look)
        return Features(hidden, after, {name: torch.cat(values, 1) for name, values in terms.items()})

    def _look(self, query: Tensor, look: State, piece: Layout | None, terms: dict[str, list[Tensor]]) -> tuple[Tensor, State]:
        """What one query [B, D] finds, [B, C]."""
        assert self.cross is not None
        found = self.cross(query[:, None], look, layout=piece)
        for name, value in found.terms.items():
            terms.setdefault(name, []).append(value)
        return found.context[:, 0], found.state

    def _read(self, output: Tensor, embedded: Tensor, context: Tensor | None) -> Tensor:
        """h̃ from what the style lets the output layer see."""
        if self.style in ("cho", "bahdanau"):
            context = _join(embedded, context)
        return self.readout(_join(output, context))


class RNN(Model):
    """Recurrent networks that read and write: with a fixed context, or with attention.

    cell: GRU, or LSTM, which has a second state
    style: how the decoder sees the source. fixed: it begins with the encoder's last state (Sutskever et al. 2014); cho:
        one context enters every step and the output (Cho et al. 2014); bahdanau: attention by the last state, before each
        step, whose context enters the step and the output (Bahdanau et al. 2015); luong: attention by the new state, after
        each step, h̃ = tanh(W [c; h]) (Luong et al. 2015), which without input feeding trains fastest
    dim: width of the decoder's states
    embedding: width of embeddings and of what the output layer reads; 0: dim
    encoder_dim: width of the encoder's states, both directions together; 0: dim
    encoder_layers: recurrent layers that read the source
    decoder_layers: recurrent layers that write the target
    bidirectional: the source is read both ways, each with half the width
    reverse_source: the source is read from its end
    residual: layers above the first add to what they read
    attention: how the target looks at the source, in the styles bahdanau and luong
    heads: attention heads, where the attention has heads; they share the width
    input_feeding: h̃ joins the next input, in the style luong
    bridge: the decoder's first states. tanh: a learned projection of the encoder's last state; copy: the encoder's last states,
        layer by layer; zeros
    readout: between the states and the output layer. tanh; maxout, of pairs, as Cho and Bahdanau have it; none, as Sutskever
    dropout: share dropped of embeddings, between layers, and before the output layer
    variational_dropout: one mask a row and layer for all steps (Gal & Ghahramani 2016), on what layers read from below
    attention_dropout: share of attention weights dropped
    share_embeddings: one table for source, target and output; for target and output; or three
    """

    replays = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        cell: CellKind = "gru",
        style: Style = "bahdanau",
        dim: PositiveInt = 256,
        embedding: NonNegativeInt = 0,
        encoder_dim: NonNegativeInt = 0,
        encoder_layers: PositiveInt = 1,
        decoder_layers: PositiveInt = 1,
        bidirectional: bool = True,
        reverse_source: bool = False,
        residual: bool = False,
        attention: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "additive"},  # noqa: B006
        heads: PositiveInt = 1,
        input_feeding: bool = False,
        bridge: BridgeKind = "tanh",
        readout: ReadoutKind = "tanh",
        dropout: Share = 0.1,
        variational_dropout: bool = False,
        attention_dropout: Share = 0.0,
        share_embeddings: Sharing = "all",
    ) -> None:
        super().__init__()
        self.dim, memory, width = dim, encoder_dim or dim, embedding or dim
        _check(style, input_feeding, bridge, readout, (width, dim), encoder_layers == decoder_layers and dim == memory)
        cross: Attention | None = None
        if style in ("bahdanau", "luong"):
            site = Site("cross", dim, heads, memory=memory, dropout=attention_dropout)
            cross = build("weft.attention:ATTENTIONS", attention, site)
            self.max_source = cross.max_length
        context = dim if cross is None else cross.context_width
        joins = {"fixed": 0, "cho": context, "bahdanau": context, "luong": width if input_feeding else 0}
        noise = StepDropout(dropout, variational_dropout)
        reads, writes, output = embedding_tables(sizes.source, sizes.target, sizes.shared, width, share_embeddings)
        self.encoder = RecurrentEncoder(
            Embedding(reads, noise),
            RecurrentStack(cell, width, memory, encoder_layers, noise, both=bidirectional, residual=residual),
            turned=reverse_source,
        )
        self.decoder = RecurrentDecoder(
            Embedding(writes, noise),
            output,
            RecurrentStack(cell, width + joins[style], dim, decoder_layers, noise, residual=residual),
            cross,
            memory=memory,
            style=style,
            input_feeding=input_feeding,
            bridge=bridge,
            readout=readout,
        )


def _check(
    style: Style, input_feeding: bool, bridge: BridgeKind, readout: ReadoutKind, widths: tuple[int, int], alike: bool
) -> None:
    """Refuses what does not go together. widths: of embeddings and states · alike: encoder and decoder have like layers."""
    if input_feeding and style != "luong":
        raise ConfigError(f"model.input_feeding belongs to model.style: luong, not {style}; leave it out")
    if style == "fixed" and bridge == "zeros":
        raise ConfigError(
            "model.bridge: zeros with model.style: fixed leaves the decoder without any sight of the source; "
            "set model.bridge: copy or tanh"
        )
    if bridge == "copy" and not alike:
        raise ConfigError(
            "model.bridge: copy needs an encoder and a decoder with as many layers, of the same width; "
            "set encoder_layers and decoder_layers, and dim and encoder_dim, alike, or model.bridge: tanh"
        )
    if readout == "none" and (style != "fixed" or widths[0] != widths[1]):
        raise ConfigError(
            "model.readout: none belongs to model.style: fixed with embeddings as wide as the states "
            f"(here: {style}, {widths[0]} and {widths[1]}); set tanh or maxout"
        )


def _join(x: Tensor, more: Tensor | None) -> Tensor:
    return x if more is None else torch.cat([x, more.to(x.dtype)], -1)


def _cells(layers: list[Cell], fed: Tensor | None) -> list[Cell]:
    """All that goes from one step to the next."""
    return layers if fed is None else [*layers, (fed,)]
