"""Convolutional sequence to sequence learning (Gehring et al. 2017).

Shapes: G sources · B rows · T target positions · S source positions · D width of embeddings · C channels of the convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, Site, add_extras, combine_packing
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow, record_gated_convolution
from weft.layers.decoder_state import State
from weft.layers.embeddings_and_rotary_positions import (
    LearnedPosition,
    TokenEmbedding,
    first_positions,
    token_positions,
)
from weft.layers.kernels.cpp_plan import Opening, PlanBuilder, Register
from weft.layers.linear_norm_dropout import NormedLinear, Rate, dropout
from weft.layers.step_recorder import record, recording
from weft.models.base import DecoderSite, Encoded, HiddenStates, LinearDecoder, least
from weft.models.encoder_decoder import FlatFamily, VectorEncoder
from weft.models.transformer_blocks import StackState

EVEN = math.sqrt(0.5)
"""Keeps the variance when two vectors of equal variance are added."""

SPREAD = 0.1
"""Standard deviation of initial embeddings."""


@dataclass(frozen=True)
class Convolutions:
    """Options that convolutional encoders and decoders share.

    dim: width of embeddings, and of queries and keys when the target attends to the source
    channels: width of the convolutions
    width: tokens a convolution sees; odd
    dropout: dropout rate of embeddings, of the input of each convolution, and before the output layer
    max_length: number of positions
    """

    dim: PositiveInt = 256
    channels: PositiveInt = 256
    width: PositiveInt = 3
    dropout: Rate = 0.1
    max_length: PositiveInt = 1024

    def position(self) -> LearnedPosition:
        position = LearnedPosition(self.dim, self.max_length)
        nn.init.normal_(position.table.weight, std=SPREAD)
        return position

    def layer(self, *, causal: bool) -> GatedConvolution:
        return GatedConvolution(self.channels, self.width, self.dropout, causal=causal)

    def enter(self) -> NormedLinear:
        return NormedLinear(self.dim, self.channels, gain=1 - self.dropout)


def _evenly(name: str, x: Tensor, y: Tensor, of: nn.Module) -> Tensor:
    """(x + y) √½, which is recorded under this name."""
    even = (x + y) * EVEN
    if recording():
        axes = "row token channel"
        record(name, even, axes, "(x + y) * even", of, x=(x, axes), y=(y, axes), even=EVEN)
    return even


class GatedConvolution(nn.Module):
    """v(A, B) = A ⊙ σ(B) of a convolution's two halves, after dropout: [B, T, C] → [B, T, C]."""

    def __init__(self, channels: int, width: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.window, self.dropout = TokenWindow(channels, width, causal=causal), dropout
        self.taps = NormedLinear(width * channels, 2 * channels, gain=4 * (1 - dropout))

    def init_state(self, rows: int) -> Tensor | None:
        return self.window.init_state(rows, self.taps.bias)

    def forward(self, x: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        windows, tail = self.window(dropout(x, self.dropout, self.training), tail, layout)
        halves = self.taps(windows)
        gated = F.glu(halves)
        if recording():
            record_gated_convolution(x, windows, self.taps.weight, self.taps.bias, halves, gated, self.window.width)
        return gated, tail

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        return draft.activate("glu", draft.linear(self.taps, self.window.plan(draft, x)))


class ConvS2SEncoder(VectorEncoder):
    """Gated convolutions over the source (Gehring et al. 2017). The memory is [z, (z + e) √½]: keys and values.

    The gradient into the convolutions is divided by twice the number of decoder layers that attend to them.

    layers: number of convolutions
    """

    paired = True
    supports_packing = True
    embedding_scale, embedding_std = 1.0, SPREAD

    def __init__(self, *, convolutions: Convolutions, layers: PositiveInt = 6) -> None:
        super().__init__()
        dim = convolutions.dim
        self.position, self.dropout, self.readers = convolutions.position(), convolutions.dropout, 1
        self.blocks = nn.ModuleList(convolutions.layer(causal=False) for _ in range(layers))
        self.enter, self.leave = convolutions.enter(), NormedLinear(convolutions.channels, dim)
        self.input_width, self.width, self.max_length = dim, 2 * dim, convolutions.max_length

    def set_readers(self, count: int) -> None:
        self.readers = count

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        embedded = dropout(self.position.join(x, token_positions(x, layout)), self.dropout, self.training)
        x = self.enter(embedded)
        for block in self.blocks:
            x = _evenly("residual", block(x, None, layout)[0], x, block)
        z = self.leave(x)
        if z.requires_grad:
            z.register_hook(lambda grad: grad * (1 / (2 * self.readers)))
        return Encoded(torch.cat([z, _evenly("values", z, embedded, self)], -1), layout)

    def plan(self, draft: PlanBuilder) -> None:
        embedded = draft.part(self.front, first_positions(self.position))
        x = draft.linear(self.enter, embedded)
        for block in self.blocks:
            x = draft.add(draft.part(block, x), x, EVEN)
        z = draft.linear(self.leave, x)
        draft.join(z, draft.add(z, embedded, EVEN))


class ConvS2SLayer(nn.Module):
    """A causal convolution, then attention to the source, queried by its output and the current token."""

    def __init__(self, block: GatedConvolution, cross: Attention) -> None:
        super().__init__()
        channels = block.window.dim
        self.block, self.cross = block, cross
        self.query = NormedLinear(channels, cross.site.dim)
        self.out = NormedLinear(cross.context_width, channels)

    def forward(
        self, x: Tensor, embedded: Tensor, tail: State, cross: State, layout: Layout | None, extras: dict[str, Tensor]
    ) -> tuple[Tensor, State, State]:
        h, tail = self.block(x, tail, layout)
        attended = self.cross(_evenly("query and token", self.query(h), embedded, self), cross, layout=layout)
        add_extras(extras, attended.extras)
        h = _evenly("context and state", self.out(attended.context), h, self)
        return _evenly("residual", h, x, self), tail, attended.state

    def plan(self, draft: PlanBuilder, x: Register, embedded: Register) -> Register:
        h = draft.part(self.block, x)
        context = draft.part(self.cross, draft.add(draft.linear(self.query, h), embedded, EVEN))
        return draft.add(draft.add(draft.linear(self.out, context), h, EVEN), x, EVEN)


class ConvS2SDecoder(LinearDecoder):
    """Causal gated convolutions, each followed by attention to the source (Gehring et al. 2017).

    layers: number of convolutions
    heads: attention heads; the paper has one
    cross: attention to the source
    """

    def __init__(
        self,
        site: DecoderSite,
        *,
        convolutions: Convolutions,
        layers: PositiveInt = 4,
        heads: PositiveInt = 1,
        cross: Annotated[dict[str, Any], Among("weft.attention:CROSS")] = {"kind": "multistep"},  # noqa: B006
    ) -> None:
        super().__init__()
        dim, multistep = convolutions.dim, cross["kind"] == "multistep"
        if multistep and not (site.paired and site.memory == 2 * dim):
            raise ConfigError(
                "model.decoder.cross: multistep needs the keys and values of a convs2s encoder of the same dim; "
                "use encoder: convs2s, or another attention, such as full"
            )
        # Other attentions project one memory, so they read the second half of a paired one: the values.
        memory = site.memory // 2 if site.paired and not multistep else site.memory
        table, output = site.tables(dim, SPREAD)
        made = [
            ConvS2SLayer(
                convolutions.layer(causal=True),
                build("weft.attention:CROSS", cross, Site("cross", dim, heads, memory=memory)),
            )
            for _ in range(layers)
        ]
        self.embedding = TokenEmbedding(table, convolutions.position(), convolutions.dropout, scale=1.0)
        self.layers, self.output = nn.ModuleList(made), output
        self.enter, self.leave = convolutions.enter(), NormedLinear(convolutions.channels, dim)
        self.dim, self.hidden, self.readers, self.max_length = dim, dim, layers, convolutions.max_length
        attentions = [each.cross for each in made]
        self.max_memory = least(*(each.max_length for each in attentions))
        combine_packing(self, attentions)

    def init_state(self, source: Encoded, *, room: int | None = None) -> StackState:
        rows = source.memory.size(0)
        layers = list(cast(Iterable[ConvS2SLayer], self.layers))
        crosses = [each.cross.init_state(source.memory[..., -each.cross.site.memory_dim :], source.layout) for each in layers]
        fed = torch.zeros(rows, dtype=torch.long, device=source.memory.device)
        return StackState([each.block.init_state(rows) for each in layers], crosses, fed)

    def plan(self, draft: PlanBuilder) -> None:
        draft.opens(lambda decoder, source: Opening(decoder.init_state(source).source))
        embedded = draft.part(self.embedding)
        x = draft.linear(self.enter, embedded)
        for layer in self.layers:
            x = draft.part(layer, x, embedded)
        draft.linear(self.leave, x)

    def hidden_states(self, tokens: Tensor, state: StackState, layout: Layout | None = None) -> HiddenStates:
        extras: dict[str, Tensor] = {}
        embedded = self.embedding(tokens, token_positions(tokens, layout) + state.fed[:, None])
        x = self.enter(embedded)
        tails, crosses = [], []
        for layer, tail, cross in zip(self.layers, state.own, state.source, strict=True):
            x, tail, cross = layer(x, embedded, tail, cross, layout, extras)
            tails.append(tail)
            crosses.append(cross)
        fed = tokens.size(1) if layout is None else layout.lengths
        hidden = dropout(self.leave(x), self.embedding.dropout, self.training)
        return HiddenStates(hidden, StackState(tails, crosses, state.fed + fed), extras)


class ConvS2S(FlatFamily):
    """Gated convolutions on both sides, and attention to the source in every decoder layer (Gehring et al. 2017)."""

    parts = (ConvS2SEncoder, {"layers": "encoder_layers"}), (ConvS2SDecoder, {"layers": "decoder_layers"})
