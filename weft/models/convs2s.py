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
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention import ATTENTIONS
from weft.attention.base import Attended, Attention, Site, add_terms, join_heads, split_heads
from weft.attention.kernel import attend_memory
from weft.attention.ragged import packing
from weft.attention.store import Memory
from weft.batch import Layout
from weft.config.registry import Among, build
from weft.layers.autocast import computed_in
from weft.layers.convolution import Window
from weft.layers.dropout import dropout
from weft.layers.embedding import Sharing, embedding_tables
from weft.layers.position import LearnedPosition, token_positions
from weft.layers.weightnorm import NormedLinear
from weft.models.base import Encoded, Encoder, Features, LinearDecoder, Model, Sizes
from weft.state import State, shared, spread

CROSS = {"multistep": "weft.models.convs2s:MultistepAttention", **ATTENTIONS}
"""How a decoder layer may look at the source: the paper's own way, or any attention that serves as cross-attention."""

EVEN = math.sqrt(0.5)
"""The sum of two vectors of like variance, times this, has that variance."""

SPREAD = 0.1
"""Standard deviation of embeddings at first."""

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass
class Columns:
    """The source as `MultistepAttention` sees it; counts [G, n] int64: how many tokens each segment has."""

    memory: Memory
    counts: Tensor = shared()


class MultistepAttention(Attention):
    """α_j = softmax(d · z_j), and the context is √m Σ α_j (z_j + e_j) over the m source tokens (Gehring et al. 2017).

    Keys and values differ but are not projected: the memory holds both side by side, [z, (z + e) √½]. The paper's factor
    m √(1/m) = √m undoes the loss of variance by averaging. Scores are plain products, not divided by √D.
    """

    paper = "Gehring et al. 2017"
    uses = frozenset({"cross"})
    weights_sum = "one"
    ignores_key_order = True
    packs = True

    def start(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> Columns:
        assert memory is not None
        k, v = (split_heads(computed_in(part), self.site.heads) for part in memory.chunk(2, -1))
        if layout is None:
            return Columns(Memory(k, v), torch.full((memory.size(0), 2), memory.size(1), device=memory.device))
        segments, numbers = layout.segments.long(), 2 if layout.offsets is None else layout.offsets.numel()
        counts = segments.new_zeros(memory.size(0), numbers).scatter_add_(1, segments, torch.ones_like(segments))
        return Columns(Memory(k, v, layout.segments, packing(layout)), counts)

    def forward(
        self,
        query: Tensor,
        state: Columns,
        *,
        append: Tensor | None = None,
        layout: Layout | None = None,
        need_weights: bool = False,
    ) -> Attended:
        q = split_heads(computed_in(query), self.site.heads) * math.sqrt(self.site.head_dim)
        share = self.site.dropout if self.training else 0.0
        context, weights = attend_memory(q, state.memory, layout=layout, dropout=share, need_weights=need_weights)
        if layout is not None and layout.packed:
            tokens = state.counts.gather(1, layout.segments.long())
        else:
            tokens = spread(state.counts[:, 1:2], query.size(0))
        return Attended(join_heads(context) * tokens.float().sqrt()[..., None].to(context.dtype), state, weights)


class PlacedEmbedding(nn.Module):
    """A vector for each token plus one for its position, with dropout."""

    def __init__(self, table: nn.Embedding, max_length: int, dropout: float) -> None:
        super().__init__()
        self.table, self.position, self.dropout = table, LearnedPosition(table.embedding_dim, max_length), dropout
        nn.init.normal_(self.position.table.weight, std=SPREAD)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions [B, T] → [B, T, D]."""
        return dropout(self.table(tokens) + self.position(positions), self.dropout, self.training)


class GatedConvolution(nn.Module):
    """v(A, B) = A ⊙ σ(B) of a convolution's two halves, after dropout: [B, T, C] → [B, T, C]."""

    def __init__(self, channels: int, width: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.window, self.dropout = Window(channels, width, causal=causal), dropout
        self.taps = NormedLinear(width * channels, 2 * channels, gain=4 * (1 - dropout))

    def start(self, rows: int) -> Tensor | None:
        return self.window.start(rows, self.taps.bias)

    def forward(self, x: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        windows, tail = self.window(dropout(x, self.dropout, self.training), tail, layout)
        return F.glu(self.taps(windows)), tail


class ConvS2SEncoder(Encoder):
    """Gated convolutions around each token. The memory is [z, (z + e) √½]: what is compared with, and what is found.

    The gradient into the convolutions is divided by twice the number of layers that look at them.
    """

    def __init__(self, embedding: PlacedEmbedding, blocks: list[GatedConvolution], channels: int, looks: int) -> None:
        super().__init__()
        dim = embedding.table.embedding_dim
        self.embedding, self.blocks, self.looks = embedding, nn.ModuleList(blocks), looks
        self.width = 2 * dim
        self.enter = NormedLinear(dim, channels, gain=1 - embedding.dropout)
        self.leave = NormedLinear(channels, dim)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        embedded = self.embedding(tokens, token_positions(tokens, layout))
        x = self.enter(embedded)
        for block in self.blocks:
            x = (block(x, None, layout)[0] + x) * EVEN
        z = _GradientShare.apply(self.leave(x), 1 / (2 * self.looks))
        return Encoded(torch.cat([z, (z + embedded) * EVEN], -1), layout)


class ConvS2SLayer(nn.Module):
    """A causal convolution, then a look at the source from what it found and from the token just fed."""

    def __init__(self, block: GatedConvolution, cross: Attention) -> None:
        super().__init__()
        channels = block.window.dim
        self.block, self.cross = block, cross
        self.query = NormedLinear(channels, cross.site.dim)
        self.out = NormedLinear(cross.context_width, channels)

    def forward(
        self, x: Tensor, embedded: Tensor, tail: State, look: State, layout: Layout | None, terms: dict[str, Tensor]
    ) -> tuple[Tensor, State, State]:
        h, tail = self.block(x, tail, layout)
        looked = self.cross((self.query(h) + embedded) * EVEN, look, layout=layout)
        add_terms(terms, looked.terms)
        h = (self.out(looked.context) + h) * EVEN
        return (h + x) * EVEN, tail, looked.state


@dataclass
class DecoderState:
    """Of each layer the tail of its convolution and its look at the source; fed [B]: how many tokens each row has had."""

    tails: list[State]
    looks: list[State]
    fed: Tensor


class ConvS2SDecoder(LinearDecoder):
    """A stack of layers whose output layer is an embedding table."""

    def __init__(self, embedding: PlacedEmbedding, layers: list[ConvS2SLayer], channels: int, output: nn.Linear) -> None:
        super().__init__()
        dim = embedding.table.embedding_dim
        self.embedding, self.layers, self.output = embedding, nn.ModuleList(layers), output
        self.enter = NormedLinear(dim, channels, gain=1 - embedding.dropout)
        self.leave = NormedLinear(channels, dim)

    def start(self, source: Encoded, *, room: int | None = None) -> DecoderState:
        rows = source.memory.size(0)
        layers = list(cast(Iterable[ConvS2SLayer], self.layers))
        # Attentions other than the paper's have one memory, so they are given its second half: what is found.
        looks = [each.cross.start(source.memory[..., -each.cross.site.memory_dim :], source.layout) for each in layers]
        fed = torch.zeros(rows, dtype=torch.long, device=source.memory.device)
        return DecoderState([each.block.start(rows) for each in layers], looks, fed)

    def features(self, tokens: Tensor, state: DecoderState, layout: Layout | None = None) -> Features:
        terms: dict[str, Tensor] = {}
        embedded = self.embedding(tokens, token_positions(tokens, layout) + state.fed[:, None])
        x = self.enter(embedded)
        tails, looks = [], []
        for layer, tail, look in zip(self.layers, state.tails, state.looks, strict=True):
            x, tail, look = layer(x, embedded, tail, look, layout, terms)
            tails.append(tail)
            looks.append(look)
        fed = tokens.size(1) if layout is None else layout.lengths
        hidden = dropout(self.leave(x), self.embedding.dropout, self.training)
        return Features(hidden, DecoderState(tails, looks, state.fed + fed), terms)


class ConvS2S(Model):
    """Gated convolutions on both sides, and a look at the source in every decoder layer (Gehring et al. 2017).

    dim: width of embeddings, and of what is compared when the target looks at the source
    channels: width of the convolutions
    width: tokens a convolution sees at once; odd
    encoder_layers: convolutions that read the source
    decoder_layers: convolutions that write the target, each with a look at the source
    heads: parts into which each look is split; the paper has one
    dropout: share dropped of embeddings, of what goes into each convolution, and before the output layer
    max_length: positions there are
    share_embeddings: one table for source, target and output; for target and output; or three
    cross: how the target looks at the source
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: PositiveInt = 256,
        channels: PositiveInt = 256,
        width: PositiveInt = 3,
        encoder_layers: PositiveInt = 6,
        decoder_layers: PositiveInt = 4,
        heads: PositiveInt = 1,
        dropout: Share = 0.1,
        max_length: PositiveInt = 1024,
        share_embeddings: Sharing = "all",
        cross: Annotated[dict[str, Any], Among("weft.models.convs2s:CROSS")] = {"kind": "multistep"},  # noqa: B006
    ) -> None:
        super().__init__()
        self.dim = dim
        memory = 2 * dim if cross["kind"] == "multistep" else dim
        source, target, output = embedding_tables(sizes.source, sizes.target, sizes.shared, dim, share_embeddings, SPREAD)
        encoders = [GatedConvolution(channels, width, dropout, causal=False) for _ in range(encoder_layers)]
        decoders = [
            ConvS2SLayer(
                GatedConvolution(channels, width, dropout, causal=True),
                build("weft.models.convs2s:CROSS", cross, Site("cross", dim, heads, memory=memory)),
            )
            for _ in range(decoder_layers)
        ]
        self.encoder = ConvS2SEncoder(PlacedEmbedding(source, max_length, dropout), encoders, channels, decoder_layers)
        self.decoder = ConvS2SDecoder(PlacedEmbedding(target, max_length, dropout), decoders, channels, output)
        self.max_source = min(max_length, *(layer.cross.max_length or max_length for layer in decoders))
        self.max_target = max_length
        looks = [layer.cross for layer in decoders]
        self.packs, self.packs_square = all(look.packs for look in looks), any(look.packs_square for look in looks)


class _GradientShare(torch.autograd.Function):
    """x itself, of whose gradient only a share is passed on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.share, None
