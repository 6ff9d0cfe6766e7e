"""The data of an explanation: two sides of a sentence pair with their words, attention maps, decoding steps and the beam tree.

Shapes: H heads · T target tokens · S source tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from weft.attention.base import View
from weft.data.batch import BOS, EOS, SPECIALS
from weft.data.term_automata import is_unspaced, token_texts
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.decoding.predictor import Prediction

if TYPE_CHECKING:
    from weft.explain.inside import Inside

How = Literal["weights", "influence"]
Fate = Literal["kept", "finished", "dropped"]
SIDES = {
    "encoder": ("source", "source"),
    "cross": ("target", "source"),
    "causal": ("target", "previous target"),
    "target": ("target", "target"),
}
"""The texts along the rows and columns of a map, by its use."""


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of one layer. Rows are queries, columns are keys.

    use: encoder (source tokens to source tokens), causal (target tokens to earlier ones), cross (target tokens to source
    tokens) or target (target tokens to all others) · weights [H, rows, columns] · how: the mechanism's own weights, or
    influence if it has none: how much removing a column's token changes each row, divided by the sum of the row · note: a
    remark for the reader · aligned: whether columns are tokens, as opposed to slots that the mechanism builds from them.
    """

    name: str
    title: str
    kind: str
    use: View
    how: How
    weights: Weights
    note: str = ""
    aligned: bool = True

    @property
    def mean(self) -> Weights:
        """[rows, columns]: the mean over heads."""
        mean: Weights = self.weights.mean(0)
        return mean


@dataclass(frozen=True)
class Candidate:
    """A possible token at one step, and its log-probability."""

    token: str
    logp: float


@dataclass(frozen=True)
class DecodingStep:
    """One target token.

    logp: its log-probability · better: how many tokens were likelier · options: the likeliest tokens · copied: the model's
    probability of copying, if it can copy · instead: the text that the model would have written from here, if computed.
    """

    token: str
    logp: float
    better: int
    options: list[Candidate]
    copied: float | None = None
    instead: str | None = None


@dataclass(frozen=True)
class Node:
    """A hypothesis in the beam tree.

    token: the last token · parent: index of the parent node (−1: the root) · score: log-probability so far · fate: what
    happened to it · why: the reason in words · final: the score it was ranked by, if it ended · best: on the path to the
    translation.
    """

    step: int
    token: str
    parent: int
    score: float
    fate: Fate
    why: str = ""
    final: float | None = None
    best: bool = False


@dataclass(frozen=True)
class WritingPass:
    """One pass of a decoder that writes all tokens at once: the symbols at all positions, and which of them it wrote."""

    tokens: list[str]
    written: list[bool]


@dataclass
class Explanation:
    """A sentence, its translation, and how the model arrived at it.

    score: the log-probability divided by lengthᵅ, as in the search · maps: every attention and mixer, cross-attention first ·
    best: the n best translations of the search · tree: all hypotheses of a beam search · passes: what a decoder that writes all
    tokens at once wrote in each pass · forced: whether the target was given · notes: remarks for the reader · languages: codes
    of the source and target language, if they are known · inside: every step of the model, if it was asked for.
    """

    run: str
    model: str
    source: Side
    target: Side
    score: float
    steps: list[DecodingStep]
    maps: list[AttentionMap]
    best: Sequence[Prediction]
    tree: list[Node] = field(default_factory=list)
    passes: list[WritingPass] = field(default_factory=list)
    forced: bool = False
    notes: list[str] = field(default_factory=list)
    languages: tuple[str, str] = ("", "")
    inside: Inside | None = None

    def views(self, use: View) -> list[AttentionMap]:
        """Returns the maps of one use, the lowest layer first."""
        return [each for each in self.maps if each.use == use]

    def sides(self, attention: AttentionMap) -> tuple[Side, Side]:
        """Returns the texts along the rows and columns of a map."""
        texts = {"source": self.source, "target": self.target, "previous target": fed(self.target)}
        rows, columns = (texts[name] for name in SIDES[attention.use])
        return rows, columns if attention.aligned else numbered(attention.weights.shape[-1])

    def joined(self, attention: AttentionMap) -> Weights:
        """Returns the weights of a map between words, [H, words, words]."""
        rows, columns = self.sides(attention)
        return join_words(attention.weights, rows.words, columns.words)

    def _repr_html_(self) -> str:
        """Shows the page in a notebook, isolated from the notebook's styles."""
        from weft.explain.html_page import in_frame, page

        return in_frame(page([self]), "46em", "allow-scripts")


Weights = NDArray[np.float32]
Span = tuple[int, int]
"""A range of tokens, [first, last)."""

NAMES = {" ": "␣", SPECIALS[EOS]: "end", SPECIALS[BOS]: "begin"}


@dataclass(frozen=True)
class Side:
    """A text for display. words: the token span of each word · names: the text of each word · rtl: right-to-left."""

    text: str
    tokens: list[str]
    words: list[Span]
    names: list[str]
    rtl: bool = False


def make_side(tokenizer: Tokenizer, ids: Sequence[int]) -> Side:
    """Builds a side from token ids. Spaces separate words; without spaces, and for special tokens, each token is a word."""
    text = tokenizer.decode([token for token in ids if token != EOS])
    tokens, texts = tokenizer.tokens(ids), token_texts(tokenizer, ids)
    words = find_words(ids, texts, apart=True)
    names = ["".join(texts[first:last]).strip() or shown(tokens[first]) for first, last in words]
    return Side(text, tokens, words, names, right_to_left(text))


def find_words(ids: Sequence[int], texts: Sequence[str], *, apart: bool) -> list[Span]:
    """Returns the token span of each word. apart: in scripts without spaces, make each token a word instead of joining them."""
    words: list[Span] = []
    begin, word, after_special, after_unspaced = 0, "", False, False
    for first, text in _characters(ids, texts):
        special, unspaced = ids[first] < RESERVED, any(map(is_unspaced, text))
        spaced = bool(word.strip()) and (text[:1].isspace() or word[-1].isspace())
        alone = apart and bool(word.strip()) and (unspaced or after_unspaced)
        if first > begin and (special or after_special or spaced or alone):
            words.append((begin, first))
            begin, word, after_unspaced = first, "", False
        word, after_special, after_unspaced = word + text, special, unspaced or after_unspaced
    return [*words, (begin, len(ids))] if ids else []


def _characters(ids: Sequence[int], texts: Sequence[str]) -> list[tuple[int, str]]:
    """Returns (first token, text) of groups of tokens: the bytes of one character, or a single token."""
    groups: list[tuple[int, str]] = []
    begin = 0
    for place, (token, text) in enumerate(zip(ids, texts, strict=True)):
        special = token < RESERVED
        if special and begin < place:
            groups.append((begin, ""))
            begin = place
        if text or special:
            groups.append((begin, text))
            begin = place + 1
    return [*groups, (begin, "")] if begin < len(ids) else groups


def join_words(weights: Weights, rows: Sequence[Span], columns: Sequence[Span]) -> Weights:
    """Weights between words, [H, words, words]: the mean over a query word's tokens, the sum over a key word's tokens."""
    joined = np.stack([weights[..., first:last].sum(-1) for first, last in columns], -1)
    return np.stack([joined[:, first:last].mean(1) for first, last in rows], 1).astype(np.float32)


def fed(target: Side) -> Side:
    """Returns the decoder's input: BOS and the target without its last token."""
    count = len(target.tokens)
    shifted = [(first + 1, min(last + 1, count)) for first, last in target.words]
    words = [(0, 1), *(span for span in shifted if span[0] < span[1])]
    names = [shown(SPECIALS[BOS]), *target.names][: len(words)]
    return replace(target, tokens=[SPECIALS[BOS], *target.tokens[:-1]], words=words, names=names)


def numbered(count: int) -> Side:
    """Returns a side of numbered slots, for columns that are not tokens."""
    names = [str(place + 1) for place in range(count)]
    return Side("", names, [(place, place + 1) for place in range(count)], names)


def right_to_left(text: str) -> bool:
    """Whether most letters of a text belong to a right-to-left script."""
    kinds = [unicodedata.bidirectional(character) for character in text]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")


def shown(token: str) -> str:
    """Returns a token for display, with visible names for the space and special tokens."""
    return NAMES.get(token, token)
