"""The data of an explanation. Shapes: H heads · T target tokens · S source tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Literal

from weft.attention.base import View
from weft.explain.token_display import Side, Weights, fed, join_words, numbered
from weft.tasks.translation.join_segments import Translation

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
    of the source and target language, if they are known.
    """

    run: str
    model: str
    source: Side
    target: Side
    score: float
    steps: list[DecodingStep]
    maps: list[AttentionMap]
    best: list[Translation]
    tree: list[Node] = field(default_factory=list)
    passes: list[WritingPass] = field(default_factory=list)
    forced: bool = False
    notes: list[str] = field(default_factory=list)
    languages: tuple[str, str] = ("", "")

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
        from weft.explain.html_page import page

        return (
            f'<iframe srcdoc="{escape(page([self]))}" title="weft explain" '
            'style="width:100%;height:46em;border:0" sandbox="allow-scripts"></iframe>'
        )
