"""Word alignment of a source with its translation, by attention weights between their tokens.

Ranges count only characters that are not white space, so they do not depend on how a tokenizer writes spaces.

Shapes: T target tokens · S source tokens · U units of a text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.attention.base import Attended, Attention
from weft.attention.core.weight_recorder import observe
from weft.data.batch import BOS, EOS, UNK, Layout, Source, pad
from weft.data.term_automata import is_letter, token_texts
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.decoding.score_given_targets import TeacherForced
from weft.models.base import Model

Weights = NDArray[np.float32]
Span = tuple[int, int]
"""A range of characters."""
CharacterRange = tuple[float, float]
"""A range of characters that are not white space."""
Ranges = Sequence[CharacterRange]

SAME = 0.5
"""Added to the weight between units that are written alike, such as numbers, names and marks."""

NEAR = 0.05
"""Added to the weight between units at the same relative position. It decides if nothing else does."""


def units(text: str, opaque: Sequence[Span] = ()) -> list[Span]:
    """The words of a text as ranges of characters: runs of letters, punctuation marks, single ideographs, opaque ranges."""
    spans: list[Span] = []
    ends = {start: end for start, end in opaque if end > start}
    whole = set(opaque)
    at, grows = 0, False
    while at < len(text):
        if at in ends:
            spans.append((at, ends[at]))
            at, grows = ends[at], False
            continue
        word = is_letter(text[at])
        if spans and spans[-1][1] == at and spans[-1] not in whole and ((word and grows) or _combines(text[at])):
            spans[-1] = (spans[-1][0], at + 1)
        elif text[at].isspace():
            grows = False
        else:
            spans.append((at, at + 1))
            grows = word
        at += 1
    return spans


def _combines(letter: str) -> bool:
    """Whether a character is written together with the one before it."""
    return letter == "\u200d" or unicodedata.category(letter) in ("Mn", "Mc", "Me")


def cross_weights(forced: TeacherForced, target: int, source: int) -> Weights | None:
    """[T, S]: the mean over heads of the layer that aligns best; None if no cross-attention has a weight for each token."""
    attended = [weights for name, weights in forced.weights.items() if forced.uses.get(name) == "cross"]
    layers = [weights for weights in attended if weights.shape[1:] == (target, source)]
    if not layers:
        return None
    mean: Weights = layers[usual_layer(len(layers))].mean(0)
    return mean


def usual_layer(count: int) -> int:
    """The default layer of `count` layers, counted from 0: the penultimate one, or the only one.

    In trained Transformers the mean over heads aligns best in the penultimate layer (Garg et al. 2019).
    """
    return max(0, count - 2)


@dataclass(frozen=True)
class TokenWeights:
    """Attention weights [T, S] between the tokens of a pair, and the ranges of these tokens."""

    weights: Weights
    target: Ranges
    source: Ranges

    def between(self, target: Ranges, source: Ranges) -> Weights:
        """The weights between the tokens of other tokenizers."""
        return between_units(self.weights, (self.target, self.source), (target, source))


Align = Callable[[Sequence[tuple[str, str]]], list[TokenWeights | None]]
"""The attention of another run between the tokens of each pair of texts, if it has any. All pairs are one batch."""


@torch.inference_mode()
def weights_of(
    model: Model, source: CharacterCounter, target: CharacterCounter, pairs: Sequence[tuple[str, str]]
) -> list[TokenWeights | None]:
    """The weights of the cross-attention that aligns best, of each pair of texts; None for a pair that the model cannot read.

    The targets are given, not searched for. All pairs are one batch.
    """
    ids = [
        [[*each, EOS] for each in counter.tokenizer.encode_batch([pair[side] for pair in pairs])]
        for side, counter in enumerate((source, target))
    ]
    limits = model.max_source, model.max_target
    fits = [
        place
        for place, row in enumerate(zip(*ids))
        if all(most is None or len(each) <= most for each, most in zip(row, limits))
    ]
    results: list[TokenWeights | None] = [None] * len(pairs)
    rows = [[side[place] for place in fits] for side in ids]
    attended = attention_of(model, *rows) if fits else None
    if attended is None:
        return results
    for place, weights in zip(fits, attended.cpu().numpy(), strict=True):
        ranges = [counter(side[place], text) for counter, side, text in zip((source, target), ids, pairs[place])]
        results[place] = TokenWeights(weights[: len(ranges[1]), : len(ranges[0])], ranges[1], ranges[0])
    return results


def attention_of(model: Model, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Tensor | None:
    """[B, T, S]: the mean over heads of one layer's attention to the source; None if it has no weight for each token."""
    layers = [part for part in model.modules() if isinstance(part, Attention) and part.site.use == "cross"]
    if not layers:
        return None
    recorded: list[Attended] = []
    block, labels = (pad(rows).to(model.device) for rows in (sources, targets))
    layouts = [Layout.padded([len(row) for row in rows]).to(model.device) for rows in (sources, targets)]
    fed = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
    with observe(layers[usual_layer(len(layers))], recorded.append):
        model(Source(block, layouts[0]), fed, layouts[1])
    steps = [each.weights for each in recorded if each.weights is not None]
    if not steps or steps[0].size(-1) != block.size(1):
        return None
    return torch.cat(steps, 2).float().mean(1)


@dataclass
class CharacterCounter:
    """Finds the ranges of tokens. Most tokens have as many characters in every text, so they are counted once."""

    tokenizer: Tokenizer
    known: dict[int, int] = field(default_factory=dict)

    def __call__(self, ids: Sequence[int], text: str) -> list[CharacterRange]:
        """The range of each token of a text."""
        for token in set(ids) - self.known.keys():
            self.known[token] = count_characters(self.tokenizer.decode([token])) if token >= RESERVED else 0
        sizes = [self.known[token] for token in ids]
        return _ranges(sizes) if sum(sizes) == count_characters(text) else source_character_ranges(self.tokenizer, ids, text)


def source_character_ranges(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[CharacterRange]:
    """The range of each token of a source, scaled to the length of its text. Unknown words count as they are written."""
    unknown = iter(tokenizer.unknown(text))
    written = token_texts(tokenizer, ids)
    sizes = [
        count_characters(next(unknown, "")) if token == UNK else count_characters(piece)
        for token, piece in zip(ids, written, strict=True)
    ]
    scale = count_characters(text) / (sum(sizes) or 1)
    return _ranges([size * scale for size in sizes])


def target_character_ranges(tokenizer: Tokenizer, ids: Sequence[int]) -> list[CharacterRange]:
    """The range of each token of a translation."""
    return _ranges([float(count_characters(piece)) for piece in token_texts(tokenizer, ids)])


def _ranges(sizes: Sequence[float]) -> list[CharacterRange]:
    ends = np.cumsum([0.0, *sizes]).tolist()
    return list(pairwise(ends))


def count_characters(text: str) -> int:
    """The number of characters that are not white space."""
    return sum(not letter.isspace() for letter in text)


def unit_character_ranges(text: str, spans: Sequence[Span], opaque: Sequence[Span] = ()) -> list[CharacterRange]:
    """The range of each unit. Opaque ranges are empty."""
    hidden = {start for start, _ in opaque}
    ranges, total = [], 0
    for start, end in spans:
        size = 0 if start in hidden else count_characters(text[start:end])
        ranges.append((float(total), float(total + size)))
        total += size
    return ranges


def between_units(weights: Weights, tokens: Sequence[Ranges], spans: Sequence[Ranges]) -> Weights:
    """Weights between units [U, U] from weights between tokens [T, S].

    tokens, spans: the ranges of target and source, of tokens and of units. A unit has the mean of its target tokens and
    the sum of its source tokens.
    """
    rows, columns = (_overlaps(each, unit) for each, unit in zip(tokens, spans, strict=True))
    mean = rows.T / np.maximum(1, rows.sum(0))[:, None]
    joined: Weights = (mean @ weights @ columns).astype(np.float32)
    return joined


def _overlaps(tokens: Ranges, spans: Ranges) -> Weights:
    """[tokens, units]: 1 where they overlap, else 0."""
    first, second = np.array(tokens, np.float64).reshape(-1, 1, 2), np.array(spans, np.float64).reshape(1, -1, 2)
    shared = np.minimum(first[..., 1], second[..., 1]) - np.maximum(first[..., 0], second[..., 0])
    overlaps: Weights = (shared > 1e-6).astype(np.float32)
    return overlaps


def spelling_and_position_similarity(target: Sequence[str], source: Sequence[str]) -> Weights:
    """[T, S]: what similar spelling and position add to the weights between units."""
    numbers = dict[str, int]()
    rows, columns = (
        np.array([numbers.setdefault(each.casefold(), len(numbers)) for each in side]) for side in (target, source)
    )
    same = (rows[:, None] == columns[None]).astype(np.float32)
    rows, columns = ((np.arange(len(side)) + 0.5) / max(1, len(side)) for side in (target, source))
    near = 1 - np.abs(rows[:, None] - columns[None])
    total: Weights = (SAME * same + NEAR * near).astype(np.float32)
    return total
