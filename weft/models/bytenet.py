"""ByteNet: translation in time linear in length (Kalchbrenner et al. 2016).

Shapes: G sources · B rows · T target positions · S source positions · U columns of an unfolded source · D width of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.dropout import dropout
from weft.layers.embedding import NGramEmbedding, Sharing, embedding_tables, ngram_table
from weft.layers.position import token_positions
from weft.models.base import Encoded, Encoder, Features, LinearDecoder, Model, Sizes
from weft.state import State, shared

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Unfolding:
    """A source of |s| tokens gets ⌊ratio · |s|⌋ + extra columns, a little more than its target is expected to need.

    Those behind its last token begin empty, and the convolutions carry the source into them. Targets may be longer: beyond
    the last column they find zeros.
    """

    ratio: float
    extra: int

    def __call__(self, x: Tensor, layout: Layout | None) -> tuple[Tensor, Layout]:
        """x [B, S, D] → [B, U, D] and its layout, which counts the empty columns as tokens."""
        if layout is not None and layout.offsets is not None:
            return self._packed(x, layout, layout.offsets.long())
        rows, extent, _ = x.shape
        lengths = torch.full((rows,), extent, device=x.device) if layout is None else layout.lengths
        place = torch.arange(self._most(extent), device=x.device).expand(rows, -1)
        x = x if layout is None else torch.where(layout.ok[..., None], x, 0.0)
        inside = place < self._columns(lengths)[:, None]
        return F.pad(x, (0, 0, 0, place.size(1) - extent)), Layout(inside.to(torch.int32), place, None, place.size(1))

    def _packed(self, x: Tensor, layout: Layout, offsets: Tensor) -> tuple[Tensor, Layout]:
        count, extent = offsets.numel() - 2, x.size(1)
        lengths = offsets.diff()[:-1]
        begins = F.pad(self._columns(lengths).cumsum(0), (1, 0))
        place = torch.arange(math.floor(self.ratio * extent) + count * self.extra, device=x.device)
        sentence = torch.searchsorted(begins[1:], place, right=True)
        position = place - begins[sentence]
        real = position < F.pad(lengths, (0, 1))[sentence]
        columns = x[:, (offsets[sentence] + position).clamp_max(extent - 1)]
        segments = torch.where(sentence < count, sentence + 1, 0).to(torch.int32)
        bounds = F.pad(begins, (0, 1), value=place.numel()).to(torch.int32)
        laid = Layout(segments[None], position[None], bounds, self._most(layout.longest))
        return torch.where(real[None, :, None], columns, 0.0), laid

    def _columns(self, lengths: Tensor) -> Tensor:
        # In float64, as Python computes `_most`: both must round down to the same number.
        return (lengths.double() * self.ratio).floor().long() + self.extra

    def _most(self, length: int) -> int:
        return math.floor(length * self.ratio) + self.extra


class ResidualBlock(nn.Module):
    """x + W₃ f(conv(f(W₁ f(x)))), where f is a layer norm and ReLU: down to half the width, a dilated convolution, and up."""

    def __init__(self, dim: int, window: TokenWindow, dropout: float) -> None:
        super().__init__()
        inner = window.dim
        self.window, self.dropout = window, dropout
        self.norm_down, self.down = nn.LayerNorm(dim), nn.Linear(dim, inner)
        self.norm_taps, self.taps = nn.LayerNorm(inner), nn.Linear(window.width * inner, inner)
        self.norm_up, self.up = nn.LayerNorm(inner), nn.Linear(inner, dim)
        for layer in (self.down, self.taps, self.up):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def start(self, rows: int) -> Tensor | None:
        return self.window.start(rows, self.up.bias)

    def forward(self, x: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        h = self.down(F.relu(self.norm_down(x)))
        windows, tail = self.window(F.relu(self.norm_taps(h)), tail, layout)
        h = self.up(F.relu(self.norm_up(self.taps(windows))))
        return x + dropout(h, self.dropout, self.training), tail


class ByteNetEncoder(Encoder):
    """Dilated convolutions around each column of the unfolded source."""

    def __init__(self, embedding: NGramEmbedding, unfolding: Unfolding, blocks: list[ResidualBlock], dim: int) -> None:
        super().__init__()
        self.embedding, self.unfolding = embedding, unfolding
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(dim)
        self.width = dim

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        """The memory has a vector for each column, and the layout is that of columns."""
        embedded, _ = self.embedding(tokens, self.embedding.start(tokens.size(0)), layout)
        x, laid = self.unfolding(embedded, layout)
        for block in self.blocks:
            x = block(x, None, laid)[0]
        return Encoded(self.norm(x), laid)


@dataclass
class DecoderState:
    """Of each block the tail of its convolution, and of the embedding that of its n-grams; fed [B]: tokens each row has had.

    columns [G, U, D] of the source · begins, ends [G, n]: where each of its n sentences has the first, and is past the last.
    """

    tails: list[State]
    grams: State
    fed: Tensor
    columns: Tensor = shared()
    begins: Tensor = shared()
    ends: Tensor = shared()


class ByteNetDecoder(LinearDecoder):
    """Causal dilated convolutions stacked on the encoder: target position t reads source column t."""

    def __init__(self, embedding: NGramEmbedding, blocks: list[ResidualBlock], dim: int, output: nn.Linear) -> None:
        super().__init__()
        self.embedding, self.blocks, self.output = embedding, nn.ModuleList(blocks), output
        self.join = nn.Linear(dim, dim, bias=False)
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def start(self, source: Encoded, *, room: int | None = None) -> DecoderState:
        layout = source.layout
        assert layout is not None
        if layout.offsets is not None:
            bounds = layout.offsets.long()[None]
            begins, ends = bounds[:, :-2], bounds[:, 1:-1]
        else:
            ends = layout.lengths[:, None]
            begins = torch.zeros_like(ends)
        rows = source.memory.size(0)
        tails = [block.start(rows) for block in cast(Iterable[ResidualBlock], self.blocks)]
        grams, fed = self.embedding.start(rows), torch.zeros_like(ends[:, 0])
        return DecoderState(tails, grams, fed, self.join(source.memory), begins, ends)

    def features(self, tokens: Tensor, state: DecoderState, layout: Layout | None = None) -> Features:
        positions = token_positions(tokens, layout) + state.fed[:, None]
        embedded, grams = self.embedding(tokens, state.grams, layout)
        x = embedded + _read(state, positions, layout)
        tails = []
        for block, tail in zip(self.blocks, state.tails, strict=True):
            x, tail = block(x, tail, layout)
            tails.append(tail)
        fed = tokens.size(1) if layout is None else layout.lengths
        return Features(self.out(F.relu(self.norm(x))), replace(state, tails=tails, grams=grams, fed=state.fed + fed))


class ByteNet(Model):
    """Dilated convolutions; the decoder stands on the encoder, column on column, without attention (Kalchbrenner et al. 2016).

    dim: width of the model; half of it inside the residual blocks
    width: tokens a convolution sees at once; odd
    dilations: how far apart these are, one number a block of a set
    encoder_sets: sets of blocks that read the source; the paper has 6
    decoder_sets: sets of blocks that write the target; the paper has 6
    dropout: share dropped of embeddings and of what each block adds
    unfold_ratio: columns for each source token; more than target tokens, as a rule
    unfold_extra: columns besides
    ngrams: a token's vector is the sum of those of the n-grams that end with it, up to this n; 1: of the token alone; the
        paper has 5, over characters
    ngram_buckets: rows of the table of n-grams, which share them by hash
    share_embeddings: one table for source, target and output; for target and output; or three
    """

    packs = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: PositiveInt = 512,
        width: PositiveInt = 3,
        dilations: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16),
        encoder_sets: PositiveInt = 2,
        decoder_sets: PositiveInt = 2,
        dropout: Share = 0.1,
        unfold_ratio: Annotated[float, Field(ge=1)] = 1.2,
        unfold_extra: NonNegativeInt = 0,
        ngrams: PositiveInt = 1,
        ngram_buckets: PositiveInt = 20_000,
        share_embeddings: Sharing = "all",
    ) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f"model.dim: the blocks of ByteNet halve the width, so it is even, not {dim}")
        self.dim = dim

        def blocks(sets: int, causal: bool) -> list[ResidualBlock]:
            windows = [TokenWindow(dim // 2, width, dilation, causal) for dilation in dilations] * sets
            return [ResidualBlock(dim, window, dropout) for window in windows]

        source, target, output = embedding_tables(sizes.source, sizes.target, sizes.shared, dim, share_embeddings)
        bags = [ngram_table(ngram_buckets, dim) if ngrams > 1 else None for _ in range(1 if share_embeddings == "all" else 2)]
        reads, writes = (NGramEmbedding(table, bag, ngrams, dropout) for table, bag in ((source, bags[0]), (target, bags[-1])))
        self.encoder = ByteNetEncoder(reads, Unfolding(unfold_ratio, unfold_extra), blocks(encoder_sets, causal=False), dim)
        self.decoder = ByteNetDecoder(writes, blocks(decoder_sets, causal=True), dim, output)


def _read(state: DecoderState, positions: Tensor, layout: Layout | None) -> Tensor:
    """The column at each target position, [B, T, D]; zeros beyond the last one. Beams of a source read its one memory."""
    sources, most, dim = state.columns.shape
    sentence = torch.zeros_like(positions)
    if layout is not None and layout.packed:
        sentence = (layout.segments.long() - 1).clamp_min(0)
    sentence = sentence.reshape(sources, -1)
    place = state.begins.gather(1, sentence) + positions.reshape(sources, -1)
    inside = place < state.ends.gather(1, sentence)
    found = state.columns.gather(1, place.clamp_max(most - 1)[..., None].expand(-1, -1, dim))
    return torch.where(inside[..., None], found, 0.0).view(*positions.shape, dim)
