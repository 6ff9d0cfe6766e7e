"""The rules by which `auto` chooses: a table with a row per amount of data, and a few constants.

docs/recipes.md shows the same table and says how it was found. `python benchmarks/fit.py --write-rules docs/recipes.md` writes
it there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Transformer with as many layers in the encoder as in the decoder, and the peak learning rate it is trained with."""

    dim: int
    heads: int
    feedforward: int
    layers: int
    rate: float

    @property
    def weights(self) -> int:
        """The weights of all layers, without embeddings."""
        return self.layers * (12 * self.dim**2 + 4 * self.dim * self.feedforward)


@dataclass(frozen=True)
class Row:
    """What suits about `pairs` training pairs.

    vocabulary: pieces of a shared BPE · shape: a name in SHAPES · dropout, attention_dropout, feedforward_dropout,
    label_smoothing: as in a configuration · batch_tokens: tokens per step · passes: how often training sees each pair
    """

    pairs: int
    vocabulary: int
    shape: str
    dropout: float
    attention_dropout: float
    feedforward_dropout: float
    label_smoothing: float
    batch_tokens: int
    passes: int


SHAPES = {
    "mini": Shape(128, 4, 512, 2, 2.5e-3),
    "tiny": Shape(192, 4, 768, 3, 2.0e-3),
    "small": Shape(256, 4, 1024, 4, 1.8e-3),
    "medium": Shape(384, 6, 1536, 4, 1.4e-3),
    "base": Shape(512, 8, 2048, 6, 8.0e-4),
}
"""By increasing size."""

TABLE = (
    Row(500, 3_000, "small", 0.4, 0.1, 0.1, 0.3, 8_192, 3_600),
    Row(3_000, 4_000, "small", 0.4, 0.1, 0.1, 0.3, 4_096, 170),
    Row(12_000, 4_000, "small", 0.4, 0.1, 0.1, 0.2, 8_192, 110),
    Row(29_000, 10_000, "small", 0.4, 0.1, 0.1, 0.1, 12_288, 95),
    Row(162_000, 32_000, "base", 0.3, 0.1, 0.1, 0.1, 24_576, 48),
    Row(1_000_000, 32_000, "base", 0.1, 0.1, 0.1, 0.1, 24_576, 15),
    Row(5_000_000, 32_000, "base", 0.1, 0.1, 0.1, 0.1, 32_768, 8),
)
"""By increasing number of pairs. A step of the first row takes all its pairs. The row nearest in proportion applies: 20,000
pairs use the row of 29,000."""

CPU_SHAPE, CPU_BATCH, CPU_TOKENS = "tiny", 3_072, 8_000_000
"""Without a GPU: the largest shape unless --time allows more, the largest batch, and the most tokens unless --time is given."""

ENOUGH_PASSES, TOKENS_PER_WEIGHT = 25, 2
"""--time suffices for a shape if it allows this many passes or this many tokens per weight; else a smaller one is taken."""

WARMUP = 0.15
"""The share of the steps that warm up the learning rate, at most LONGEST_WARMUP steps."""
LONGEST_WARMUP = 4_000

FEWEST_STEPS = 200
EMA_SHARE, LONGEST_EMA = 0.1, 2_000
"""The moving average of the weights looks back over this share of the steps, at most over LONGEST_EMA steps."""

VALIDATIONS, SHORTEST_INTERVAL, PATIENCE = 20, 25, 6
"""Validations per training, the fewest steps between two of them, and how many without improvement end training."""

HELD_OUT_SHARE, HELD_OUT_LEAST, HELD_OUT_MOST = 0.05, 25, 1_000
"""The share of the pairs that is held out for validation, and limits; never more than a tenth of the pairs."""

SENTENCES, CPU_SENTENCES = 500, 200
"""The most sentences that each validation decodes, with and without a GPU."""

BEST_BY = "chrf2"
"""The validation score that decides. Unlike BLEU, it is steady on few sentences and works for every script."""

FEWEST_TO_CHOOSE = 50
"""With fewer validation pairs, scores are too noisy to choose weights by: training keeps its last moving average."""

LONGEST = 1_024
"""The largest `data.max_length` that is chosen."""


def row_for(pairs: int) -> Row:
    """The row of the table that is nearest to a number of pairs, in proportion."""
    return min(TABLE, key=lambda row: max(row.pairs, pairs) / max(1, min(row.pairs, pairs)))


def held_out(pairs: int) -> int:
    """The number of pairs to hold out for validation."""
    return max(1, min(HELD_OUT_MOST, pairs // 10, max(HELD_OUT_LEAST, round(HELD_OUT_SHARE * pairs))))


def markdown() -> str:
    """The table as Markdown."""
    dropouts = "dropout: residual, attention, feed-forward"
    lines = [("pairs", "vocabulary", "model", dropouts, "label smoothing", "tokens per step", "passes"), ("---:",) * 7]
    for row in TABLE:
        shape = SHAPES[row.shape]
        layers = f"{shape.layers} + {shape.layers} layers"
        model = f"`{row.shape}`: width {shape.dim}, {shape.heads} heads, feed-forward {shape.feedforward:,}, {layers}"
        dropouts = f"{row.dropout:g}, {row.attention_dropout:g}, {row.feedforward_dropout:g}"
        sizes = (f"{row.pairs:,}", f"{row.vocabulary:,}", model, dropouts)
        lines.append((*sizes, f"{row.label_smoothing:g}", f"{row.batch_tokens:,}", f"{row.passes:,}"))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
