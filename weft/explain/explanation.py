"""What is known of one translation, as arrays. Shapes: H heads · T target tokens · S source tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Literal

from weft.explain.text import Side, Weights, fed, join_words, numbered
from weft.inference.translation import Translation

Use = Literal["encoder", "causal", "cross"]
How = Literal["weights", "influence"]
Fate = Literal["kept", "finished", "dropped"]


@dataclass(frozen=True)
class Look:
    """How tokens of one side look at tokens, in one layer.

    use: encoder, source tokens at each other; causal, each target token at those written before it; cross, target tokens at the
    source · weights [H, rows, columns] · how: the mechanism's own weights, or, where it has none, influence: how much is
    changed at each row by taking a column away, each row divided by its sum · note: what to know of it · aligned: whether the
    columns are tokens, and not slots that a mechanism makes of them.
    """

    name: str
    title: str
    kind: str
    use: Use
    how: How
    weights: Weights
    note: str = ""
    aligned: bool = True

    @property
    def mean(self) -> Weights:
        """[rows, columns], over heads."""
        mean: Weights = self.weights.mean(0)
        return mean


@dataclass(frozen=True)
class Option:
    """A token that could have been written, and its log-probability."""

    token: str
    logp: float


@dataclass(frozen=True)
class Step:
    """One written token: its log-probability, how many tokens were likelier, and the likeliest ones.

    copied: how much of its probability the model gave to copying, where it can copy · instead: the text that the model would
    have written from here, where that was worked out.
    """

    token: str
    logp: float
    better: int
    options: list[Option]
    copied: float | None = None
    instead: str | None = None


@dataclass(frozen=True)
class Node:
    """A hypothesis in the beam tree: the token it adds, its parent's number (−1: the beginning), and what became of it.

    score: log-probability so far · final: the score it was ranked by, if it ended · why: in words · best: on the way to
    the translation.
    """

    step: int
    token: str
    parent: int
    score: float
    fate: Fate
    why: str = ""
    final: float | None = None
    best: bool = False


@dataclass
class Explanation:
    """One sentence, what a model writes for it or was given to write (`forced`), and what there is to see on the way.

    score: the log-probability divided by lengthᵅ, as the search ranks · looks: every attention and mixer, first at the source ·
    best: the n best translations found by the search · tree: what the search went through, where it had a beam · notes: what a
    reader should know.
    """

    run: str
    model: str
    source: Side
    target: Side
    score: float
    steps: list[Step]
    looks: list[Look]
    best: list[Translation]
    tree: list[Node] = field(default_factory=list)
    forced: bool = False
    notes: list[str] = field(default_factory=list)

    def views(self, use: Use) -> list[Look]:
        """The looks of one use, the lowest layer first."""
        return [look for look in self.looks if look.use == use]

    def sides(self, look: Look) -> tuple[Side, Side]:
        """What stands at the rows and at the columns of a look."""
        rows = self.source if look.use == "encoder" else self.target
        if not look.aligned:
            return rows, numbered(look.weights.shape[-1])
        return rows, fed(self.target) if look.use == "causal" else self.source

    def joined(self, look: Look) -> Weights:
        """[H, words, words]: the weights of a look between words."""
        rows, columns = self.sides(look)
        return join_words(look.weights, rows.words, columns.words)

    def _repr_html_(self) -> str:
        """The page inside a notebook, with its own styles."""
        from weft.explain.page import page

        return (
            f'<iframe srcdoc="{escape(page([self]))}" title="weft explain" '
            'style="width:100%;height:46em;border:0" sandbox="allow-scripts"></iframe>'
        )
