"""Embeddings of token ids and of n-grams, and positions: sinusoids, learned vectors, rotations.

Angles are always float32 (bf16 rounds position 257 to 256).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from weft.data.batch import PAD, Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.kernels.cpp_plan import Maker, NotPlanned, PlanBuilder, Register
from weft.layers.linear_norm_dropout import dropout
from weft.layers.step_recorder import record, recording


def token_positions(x: Tensor, layout: Layout | None) -> Tensor:
    """[B, T]: the position of each token within its sentence in this call, for tokens [B, T] or vectors [B, T, D]."""
    if layout is not None:
        return layout.positions
    return torch.arange(x.size(1), device=x.device).expand(x.shape[:2])


def angles(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """positions [B, T] → p / base^(2i/width), [B, T, width/2] in float32."""
    index = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    return positions[..., None].float() * base ** (-index / width)


def rotation(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, 1, T, width] of the angle of each channel pair at each position, for `rotate`."""
    turn = angles(positions, width, base)[:, None].repeat_interleave(2, -1)
    return turn.cos().to(dtype), turn.sin().to(dtype)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each pair of channels of x [B, H, T, D] by the angle of its position (Su et al. 2021)."""
    cos, sin = turn
    return x * cos + quarter_turn(x) * sin


def quarter_turn(x: Tensor) -> Tensor:
    """Each pair of channels of x […, D] turned by 90 degrees."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


class AbsolutePosition(nn.Module, ABC):
    """A vector for each position. max_length: number of positions; None: any number."""

    max_length: int | None = None

    @abstractmethod
    def forward(self, positions: Tensor) -> Tensor:
        """positions [B, T] → [B, T, dim]."""

    def join(self, x: Tensor, positions: Tensor) -> Tensor:
        """Vectors x [B, T, dim] with their positions [B, T]: the sum."""
        added = self(positions).to(x.dtype)
        embedded = x + added
        if recording():
            axes, added = "row token channel", added.expand_as(x)
            record("positions", added, axes)
            record("embedding", embedded, axes, "vectors + positions", vectors=(x, axes), positions=(added, axes))
        return embedded


class SinusoidalPosition(AbsolutePosition):
    """PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(…) (Vaswani et al. 2017, section 3.5), for any length."""

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f"sinusoidal positions need an even width, not {dim}")
        self.dim, self.base = dim, base

    def forward(self, positions: Tensor) -> Tensor:
        """positions [B, T] → [B, T, dim] in float32."""
        turn = angles(positions, self.dim, self.base)
        return torch.stack([turn.sin(), turn.cos()], -1).flatten(-2)


class LearnedPosition(AbsolutePosition):
    """One learned vector for each of the first `max_length` positions."""

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.table = nn.Embedding(max_length, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def forward(self, positions: Tensor) -> Tensor:
        return self.table(positions)


class ConcatenatedPosition(AbsolutePosition):
    """W [x; p] + b: token and position side by side, and a learned matrix back to the width. A sum is the case W = [I, I]."""

    def __init__(self, position: AbsolutePosition, dim: int) -> None:
        super().__init__()
        self.position, self.merge, self.max_length = position, nn.Linear(2 * dim, dim), position.max_length

    def forward(self, positions: Tensor) -> Tensor:
        return self.position(positions)

    def join(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.merge(torch.cat([x, self(positions).to(x.dtype)], -1))


PositionKind = Literal["sinusoidal", "tensor2tensor", "learned", "none"]
PositionJoin = Literal["add", "concatenate"]


def make_position(kind: PositionKind, dim: int, max_length: int, join: PositionJoin = "add") -> AbsolutePosition | None:
    """Absolute positions of the given kind, to be joined to embeddings.

    tensor2tensor: sinusoids as in Tensor2Tensor and Marian, where the last frequency is exactly 1/10000
    """
    if kind == "none":
        return None
    position: AbsolutePosition = LearnedPosition(dim, max_length) if kind == "learned" else SinusoidalPosition(dim)
    if kind == "tensor2tensor":
        position = SinusoidalPosition(dim, 10000.0 ** (dim / max(dim - 2, 1)))
    return ConcatenatedPosition(position, dim) if join == "concatenate" else position


Sharing = Literal["all", "output", "none"]
"""The source, target and output embeddings that are shared: all three, target and output, or none."""

HASH_BASE, HASH_PRIME = 1_000_003, 2**31 - 1
"""An n-gram is hashed as a number in this base modulo this prime; it stays below 2⁶², so the hash is exact on every device."""


class EmbeddingTables(Protocol):
    """The tables that embed a source of tokens, which a decoder may share."""

    table: nn.Embedding
    ngrams: NGramBag | None


class GivenVectors(nn.Module):
    """Takes the place of an embedding table where a decoder is fed vectors [B, T, dim] instead of tokens.

    They are divided by √dim, which the scale of most embeddings takes back.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding_dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors / math.sqrt(self.embedding_dim)


class TokenEmbedding(nn.Module):
    """The embedding of each token times a scale (√dim as in Vaswani et al. 2017), with its position, and dropout."""

    def __init__(
        self,
        table: nn.Embedding,
        position: AbsolutePosition | None,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.table, self.position, self.dropout = table, position, dropout
        self.scale = math.sqrt(table.embedding_dim) if scale is None else scale

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """tokens, positions [B, T] → [B, T, dim]."""
        x = self.table(tokens) * self.scale
        record_embedding(tokens, self.table, self.scale, x)
        if self.position is not None:
            assert positions is not None
            x = self.position.join(x, positions)
        return dropout(x, self.dropout, self.training)

    def plan(self, draft: PlanBuilder) -> Register:
        return draft.embed(self.table, self.scale, first_positions(self.position))


class NGramBag(nn.EmbeddingBag):
    """The summed embeddings of the n-grams that end with each token, n = 2 … longest (Kalchbrenner et al. 2016).

    N-grams of all lengths share `buckets` rows by their hash. Row 0 belongs to n-grams that would begin before their
    sentence, which count as zero. The embeddings start at 0, so n-grams that training never met contribute nothing. N-grams
    look back only, so a decoder can use them; its state is the last `longest` − 1 tokens.
    """

    def __init__(self, buckets: int, dim: int, longest: int) -> None:
        super().__init__(buckets + 1, dim, mode="sum", padding_idx=0)
        nn.init.zeros_(self.weight)
        self.window = TokenWindow(1, longest, causal=True)

    def init_state(self, rows: int) -> Tensor | None:
        """The tail before the first token, [rows, longest − 1, 1] ids."""
        return self.window.init_state(rows, torch.empty(0, dtype=torch.long, device=self.weight.device))

    def of_tokens(self, tokens: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        """tokens [B, T] → [B, T, dim], and the tail after them."""
        grams, tail = self.window(tokens[..., None], tail, layout)
        *earlier, code = grams.unbind(-1)  # the last tokens at each position
        rows, bags = self.num_embeddings, []  # the rows of the n-grams that end there, shortest first
        for token in reversed(earlier):
            code = (code * HASH_BASE + token) % HASH_PRIME
            bags.append(torch.where(token == PAD, 0, code % (rows - 1) + 1))
        return self(torch.stack(bags, -1).flatten(0, 1)).view(*tokens.shape, -1), tail


def embedding_table(size: int, dim: int, std: float | None = None) -> nn.Embedding:
    """A table whose rows have length about 1 unless `std` says otherwise, so that it can be the output layer too."""
    table = nn.Embedding(size, dim)
    nn.init.normal_(table.weight, std=dim**-0.5 if std is None else std)
    return table


def record_embedding(tokens: Tensor, table: nn.Module, scale: float, embedded: Tensor, ngrams: Tensor | None = None) -> None:
    """Records the ids of tokens [B, T], their vectors, and these times the scale; of `GivenVectors`, what is given.

    ngrams: the sum of the embeddings of the n-grams that end with each token, if it is added to its vector.
    """
    axes = "row token channel"
    if not recording():
        return None
    if not isinstance(table, nn.Embedding):
        return record("given vectors", embedded, axes)
    vectors = table.weight[tokens]
    record("ids", tokens, "row token")
    record("vectors", vectors, axes, "table[ids]", ids=(tokens, "row token"), table=(table.weight, "id channel"))
    if ngrams is None:
        return record("scaled vectors", embedded, axes, "vectors * scale", vectors=(vectors, axes), scale=scale)
    record("n-grams", ngrams, axes, ids=(tokens, "row token"))
    operands = {"vectors": (vectors, axes), "ngrams": (ngrams, axes)}
    return record("scaled vectors", embedded, axes, "(vectors + ngrams) * scale", **operands, scale=scale)


def first_positions(position: AbsolutePosition | None) -> Maker | None:
    """The embeddings [n, dim] of the first n positions, to be added; of learned ones, as many as there are."""
    if position is None:
        return None
    if isinstance(position, ConcatenatedPosition):
        raise NotPlanned("positions that are concatenated")
    most = position.max_length
    return lambda count: position(torch.arange(count if most is None else min(count, most))[None])[0]
