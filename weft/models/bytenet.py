"""ByteNet: translation and language models in time linear in length (Kalchbrenner et al. 2016).

Shapes: G sources · B rows · T target positions · S source positions · U columns of an unfolded source · D width of the model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.decoder_state import State, shared
from weft.layers.embeddings_and_rotary_positions import (
    NGramBag,
    TokenEmbedding,
    record_embedding,
    token_positions,
)
from weft.layers.kernels import widest_float
from weft.layers.linear_norm_dropout import Rate, dropout
from weft.layers.recurrent import Cell, Readout, RecurrentOptions, RecurrentStack
from weft.layers.step_recorder import record, recording
from weft.models.base import DecoderSite, Encoded, HiddenStates, LinearDecoder, Sizes
from weft.models.encoder_decoder import FlatFamily, VectorEncoder
from weft.models.frontends.base import TokenFrontend
from weft.models.language_model import LanguageModel, LanguageModelFamily, SourcelessDecoder


@dataclass(frozen=True)
class DynamicUnfolding:
    """A source of |s| tokens gets ⌊ratio · |s|⌋ + extra columns, slightly more than its target is expected to need.

    Columns after its last token start at zero, and the convolutions spread the source into them. Longer targets read zeros.
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
        x = x if layout is None else torch.where(layout.mask[..., None], x, 0.0)
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
        return (lengths.to(widest_float(lengths.device)) * self.ratio).floor().long() + self.extra

    def _most(self, length: int) -> int:
        return math.floor(length * self.ratio) + self.extra


NormKind = Literal["layer", "sub_batch"]


def _relu(name: str, x: Tensor) -> Tensor:
    """max(x, 0), which is recorded under this name."""
    positive = F.relu(x)
    if recording():
        record(name, positive, "row token channel", "relu(x)", x=(x, "row token channel"))
    return positive


class LayerNorm(nn.LayerNorm):
    """A layer norm, which does not depend on the other tokens."""

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return super().forward(x)


class SubBatchNorm(nn.Module):
    """Batch normalisation with the statistics of the first half of the rows, the auxiliary part (Kalchbrenner et al. 2016).

    Statistics over a whole batch would tell a row of its own future. The loss of the auxiliary part must not count; see
    `without_auxiliary`. Outside training, and for a single row, running averages of the statistics are used.

    momentum: how much of a running average each batch replaces
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, dim: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.momentum, self.eps = momentum, eps
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training and x.size(0) > 1:
            mean, variance = self._statistics(x, layout)
        return ((x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def _statistics(self, x: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each channel over the real tokens of the auxiliary part, in float32."""
        rows = auxiliary(x)
        part = x[:rows].float()
        real = part.new_ones(*part.shape[:2], 1) if layout is None else layout.mask[:rows, :, None].float()
        count = real.sum((0, 1)).clamp_min(1)
        mean = torch.where(real > 0, part, 0.0).sum((0, 1)) / count
        variance = torch.where(real > 0, (part - mean).square(), 0.0).sum((0, 1)) / count
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
            self.variance.lerp_(variance.to(self.variance.dtype), self.momentum)
        return mean, variance


def auxiliary(x: Tensor) -> int:
    """The number of rows of x [B, …] whose statistics normalise a batch in training."""
    return x.size(0) // 2


def without_auxiliary(hidden: Tensor) -> Tensor:
    """Hidden states [B, T, D] of which only the main part passes gradients on: its loss alone trains the layers below."""
    rows = auxiliary(hidden)
    return torch.cat([hidden[:rows].detach(), hidden[rows:]])


class ResidualBlock(nn.Module):
    """x + W₃ f(conv(f(W₁ f(x)))), where f is a norm and ReLU: down to half the width, a dilated convolution, and up."""

    def __init__(self, dim: int, window: TokenWindow, dropout: float, norm: NormKind = "layer") -> None:
        super().__init__()
        inner = window.dim
        normed = LayerNorm if norm == "layer" else SubBatchNorm
        self.window, self.dropout = window, dropout
        self.norm_down, self.down = normed(dim), nn.Linear(dim, inner)
        self.norm_taps, self.taps = normed(inner), nn.Linear(window.width * inner, inner)
        self.norm_up, self.up = normed(inner), nn.Linear(inner, dim)
        for layer in (self.down, self.taps, self.up):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def init_state(self, rows: int) -> Tensor | None:
        return self.window.init_state(rows, self.up.bias)

    def forward(self, x: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        h = self.down(_relu("open", self.norm_down(x, layout)))
        inner = _relu("window", self.norm_taps(h, layout))
        windows, tail = self.window(inner, tail, layout)
        h = self.up(_relu("mixed", self.norm_up(self.taps(windows), layout)))
        after = x + dropout(h, self.dropout, self.training)
        if recording():
            axes, places = "row token channel", "row token place channel"
            record("window of tokens", windows.unflatten(-1, (self.window.width, -1)), places, x=(inner, axes))
            record("residual", after, axes, "x + update", x=(x, axes), update=(h, axes))
        return after, tail


@dataclass(frozen=True)
class DilatedBlocks:
    """Options that the encoder and decoder of ByteNet share.

    dim: width of the model; half of it inside the residual blocks
    width: tokens a convolution sees; odd
    dilations: distance between these tokens, one number per block of a set
    dropout: dropout rate of embeddings and of the output of each block
    block_norm: layer norms inside the blocks, or sub_batch: batch normalisation by the statistics of half of the rows, whose
        loss trains the output layer alone; it needs padded rows
    """

    dim: PositiveInt = 512
    width: PositiveInt = 3
    dilations: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16)
    dropout: Rate = 0.1
    block_norm: NormKind = "layer"

    @property
    def packs(self) -> bool:
        """Whether the blocks work on packed rows."""
        return self.block_norm == "layer"

    def stack(self, sets: int, *, causal: bool) -> nn.ModuleList:
        if self.dim % 2:
            raise ConfigError(f"model.dim: the blocks of ByteNet halve the width, so it must be even, not {self.dim}")
        windows = [TokenWindow(self.dim // 2, self.width, dilation, causal) for dilation in self.dilations] * sets
        return nn.ModuleList(ResidualBlock(self.dim, window, self.dropout, self.block_norm) for window in windows)


class ByteNetEncoder(VectorEncoder):
    """Dilated convolutions over the unfolded source (Kalchbrenner et al. 2016).

    sets: sets of blocks; the paper has 6
    unfold_ratio: columns per source token; usually more than target tokens
    unfold_extra: columns added to those
    """

    supports_packing = True

    def __init__(
        self,
        *,
        blocks: DilatedBlocks,
        sets: PositiveInt = 2,
        unfold_ratio: Annotated[float, Field(ge=1)] = 1.2,
        unfold_extra: NonNegativeInt = 0,
    ) -> None:
        super().__init__()
        self.unfolding, self.dropout = DynamicUnfolding(unfold_ratio, unfold_extra), blocks.dropout
        self.aligned = unfold_ratio == 1 and unfold_extra == 0
        self.blocks, self.norm = blocks.stack(sets, causal=False), nn.LayerNorm(blocks.dim)
        self.supports_packing = blocks.packs
        self.input_width = self.width = blocks.dim

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        """The memory has one vector per column, and its layout counts columns."""
        given, axes = x, "row token channel"
        x, columns = self.unfolding(dropout(x, self.dropout, self.training), layout)
        record("columns", x, axes, x=(given, axes))
        for block in self.blocks:
            x = block(x, None, columns)[0]
        return Encoded(self.norm(x), columns)


class NGramEmbedding(nn.Module):
    """The embedding of each token plus those of the n-grams that end with it, times √dim, with dropout."""

    def __init__(self, table: nn.Embedding, ngrams: NGramBag | None, dropout: float) -> None:
        super().__init__()
        self.table, self.ngrams, self.dropout = table, ngrams, dropout
        self.scale = math.sqrt(table.embedding_dim)

    def init_state(self, rows: int) -> Tensor | None:
        return None if self.ngrams is None else self.ngrams.init_state(rows)

    def forward(self, tokens: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        """tokens [B, T] → [B, T, dim], and the tail after them."""
        x = self.table(tokens)
        if self.ngrams is not None:
            grams, tail = self.ngrams.of_tokens(tokens, tail, layout)
            x = x + grams
        scaled = x * self.scale
        if self.ngrams is None:
            record_embedding(tokens, self.table, self.scale, scaled)
        return dropout(scaled, self.dropout, self.training), tail


@dataclass
class SourceColumns:
    """The columns that target positions read: position t reads column t of its sentence, and zeros beyond the last.

    fed [B]: tokens each row has consumed · columns [G, U, D] of the source · begins, ends [G, n]: first column of each of its n
    sentences, and the one past its last. All beams read the one memory of their source.
    """

    fed: Tensor
    columns: Tensor = shared()
    begins: Tensor = shared()
    ends: Tensor = shared()

    @staticmethod
    def of(source: Encoded, columns: Tensor) -> "SourceColumns":
        layout = source.layout or Layout.padded([columns.size(1)] * columns.size(0)).to(columns.device)
        if layout.offsets is not None:
            bounds = layout.offsets.long()[None]
            begins, ends = bounds[:, :-2], bounds[:, 1:-1]
        else:
            ends = layout.lengths[:, None]
            begins = torch.zeros_like(ends)
        return SourceColumns(torch.zeros_like(ends[:, 0]), columns, begins, ends)

    def read(self, tokens: Tensor, layout: Layout | None) -> tuple[Tensor, "SourceColumns"]:
        """The columns [B, T, D] at the positions of tokens [B, T], and the state after them."""
        positions = token_positions(tokens, layout) + self.fed[:, None]
        sources, most, dim = self.columns.shape
        sentence = torch.zeros_like(positions)
        if layout is not None and layout.packed:
            sentence = (layout.segments.long() - 1).clamp_min(0)
        sentence = sentence.reshape(sources, -1)
        place = self.begins.gather(1, sentence) + positions.reshape(sources, -1)
        inside = place < self.ends.gather(1, sentence)
        columns = self.columns.gather(1, place.clamp_max(most - 1)[..., None].expand(-1, -1, dim))
        found = torch.where(inside[..., None], columns, 0.0).view(*positions.shape, dim)
        return found, replace(self, fed=self.fed + (tokens.size(1) if layout is None else layout.lengths))


@dataclass
class ByteNetState:
    """The tails of each block's convolution and of the n-grams, and the source, if there is one."""

    tails: list[State]
    grams: State = None
    source: SourceColumns | None = None


def run_blocks(
    blocks: Iterable[nn.Module], x: Tensor, tails: list[State], layout: Layout | None
) -> tuple[Tensor, list[State], list[Tensor]]:
    """x [B, T, D] after all blocks, their tails after it, and their inputs."""
    after, inputs = [], []
    for block, tail in zip(blocks, tails, strict=True):
        inputs.append(x)
        x, tail = block(x, tail, layout)
        after.append(tail)
    return x, after, inputs


class ByteNetDecoder(LinearDecoder):
    """Causal dilated convolutions on top of the encoder: target position t reads source column t (Kalchbrenner et al. 2016).

    sets: sets of blocks; the paper has 6
    ngrams: longest n-gram that has an embedding; 1: tokens only; the paper has 5, over characters
    ngram_buckets: rows of the n-gram table, which n-grams share by their hash
    """

    supports_packing = True

    def __init__(
        self,
        site: DecoderSite,
        *,
        blocks: DilatedBlocks,
        sets: PositiveInt = 2,
        ngrams: PositiveInt = 1,
        ngram_buckets: PositiveInt = 20_000,
    ) -> None:
        super().__init__()
        dim = blocks.dim
        if site.memory != dim:
            raise ConfigError(f"model.decoder: bytenet adds source columns to its input, so set dim: {site.memory}, not {dim}")
        table, output = site.tables(dim)
        bag = None if ngrams == 1 else site.source.ngrams if site.source else NGramBag(ngram_buckets, dim, ngrams)
        self.embedding = NGramEmbedding(table, bag, blocks.dropout)
        self.blocks, self.output = blocks.stack(sets, causal=True), output
        self.join = nn.Linear(dim, dim, bias=False)
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.dim = self.hidden = dim
        self.sub_batches, self.supports_packing = not blocks.packs, blocks.packs

    def init_state(self, source: Encoded, *, room: int | None = None) -> ByteNetState:
        rows = source.memory.size(0)
        tails = [block.init_state(rows) for block in cast(Iterable[ResidualBlock], self.blocks)]
        return ByteNetState(tails, self.embedding.init_state(rows), SourceColumns.of(source, self.join(source.memory)))

    def hidden_states(self, tokens: Tensor, state: ByteNetState, layout: Layout | None = None) -> HiddenStates:
        assert state.source is not None
        columns, source = state.source.read(tokens, layout)
        embedded, grams = self.embedding(tokens, state.grams, layout)
        x = _with_columns(embedded, columns, state.source.columns)
        x, tails, _ = run_blocks(self.blocks, x, state.tails, layout)
        hidden = self.out(_relu("positive", self.norm(x)))
        if self.training and self.sub_batches:
            hidden = without_auxiliary(hidden)
        return HiddenStates(hidden, ByteNetState(tails, grams, source))


def _with_columns(embedded: Tensor, columns: Tensor, source: Tensor) -> Tensor:
    """Each target token plus the source column at its position. source: all columns of the source."""
    x = embedded + columns
    if recording():
        axes = "row token channel"
        record("source columns", columns, axes, columns=(source, axes))
        record("input", x, axes, "tokens + columns", tokens=(embedded, axes), columns=(columns, axes))
    return x


@dataclass
class RecurrentByteNetState:
    """The states of the layers, and the source."""

    layers: list[Cell]
    source: SourceColumns


class RecurrentByteNetDecoder(LinearDecoder):
    """Recurrent ByteNet: a recurrent network whose step t reads token t and source column t (Kalchbrenner et al. 2016).

    dim: width of the states
    layers: number of recurrent layers
    """

    cuda_graph_safe = True

    def __init__(
        self, site: DecoderSite, *, recurrence: RecurrentOptions, dim: PositiveInt = 256, layers: PositiveInt = 1
    ) -> None:
        super().__init__()
        width, noise = recurrence.embedding or dim, recurrence.noise()
        table, output = site.tables(width)
        self.embedding, self.noise, self.output = TokenEmbedding(table, None), noise, output
        self.join = nn.Linear(site.memory, width, bias=False)
        self.stack = RecurrentStack(recurrence.cell, width, dim, layers, noise, residual=recurrence.residual)
        self.readout = Readout("tanh", dim, width)
        self.dim, self.hidden = dim, width

    def init_state(self, source: Encoded, *, room: int | None = None) -> RecurrentByteNetState:
        columns = SourceColumns.of(source, self.join(source.memory))
        return RecurrentByteNetState(self.stack.init_state(source.memory.size(0)), columns)

    def hidden_states(self, tokens: Tensor, state: RecurrentByteNetState, layout: Layout | None = None) -> HiddenStates:
        columns, source = state.source.read(tokens, layout)
        x = _with_columns(self.embedding(tokens), columns, state.source.columns)
        outputs, layers = self.stack(self.noise(x), state.layers, layout)
        return HiddenStates(self.noise(self.readout(outputs)), RecurrentByteNetState(layers, source))


class ByteNet(FlatFamily):
    """Dilated convolutions; the decoder is stacked on the encoder, column on column, without attention (Kalchbrenner 2016)."""

    parts = (ByteNetEncoder, {"sets": "encoder_sets"}), (ByteNetDecoder, {"sets": "decoder_sets"}), (TokenFrontend, {})


class ByteNetLanguageDecoder(SourcelessDecoder):
    """The decoder of ByteNet without a source: causal dilated convolutions over the text."""

    def __init__(self, tables: tuple[nn.Embedding, nn.Linear], blocks: DilatedBlocks, sets: int) -> None:
        super().__init__()
        table, output = tables
        self.embedding = NGramEmbedding(table, None, blocks.dropout)
        self.blocks, self.output = blocks.stack(sets, causal=True), output
        self.norm, self.out = nn.LayerNorm(blocks.dim), nn.Linear(blocks.dim, blocks.dim)
        self.dim = self.hidden = blocks.dim
        self.sub_batches = not blocks.packs

    def init_state(self, source: Encoded, *, room: int | None = None) -> ByteNetState:
        return ByteNetState([block.init_state(source.memory.size(0)) for block in self._each()])

    def recall(self, memory: Sequence[Tensor]) -> ByteNetState:
        return ByteNetState(
            [block(x, block.init_state(x.size(0)), None)[1] for block, x in zip(self._each(), memory, strict=True)]
        )

    def read(self, tokens: Tensor, state: ByteNetState, layout: Layout | None = None) -> tuple[HiddenStates, list[Tensor]]:
        x, tails, inputs = run_blocks(self.blocks, self.embedding(tokens, None, layout)[0], state.tails, layout)
        hidden = self.out(F.relu(self.norm(x)))
        if self.training and self.sub_batches:
            hidden = without_auxiliary(hidden)
        return HiddenStates(hidden, ByteNetState(tails)), inputs

    def _each(self) -> Iterable[ResidualBlock]:
        return cast(Iterable[ResidualBlock], self.blocks)


class ByteNetLanguageModelFamily(LanguageModelFamily):
    """The decoder of ByteNet as a language model (Kalchbrenner et al. 2016): a token sees a fixed number of earlier ones.

    sets: sets of blocks; the paper has 6
    share_embeddings: one table for input and output
    """

    def __init__(self, *, blocks: DilatedBlocks, sets: PositiveInt = 2, share_embeddings: bool = True) -> None:
        self.blocks, self.sets, self.share = blocks, sets, share_embeddings

    def build(self, sizes: Sizes) -> LanguageModel:
        tables = DecoderSite(sizes.target, 0, tied=self.share).tables(self.blocks.dim)
        return LanguageModel(ByteNetLanguageDecoder(tables, self.blocks, self.sets), "none")
