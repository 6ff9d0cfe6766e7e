"""Contrastive pairs: how often a model prefers the right text for a source to a wrong one (Sennrich 2017).

A line holds the source, the right text and the wrong text, separated by tabs, and may name a group in a fourth column.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import DataError

CHANCE, SHORTER, FREQUENT = "guessing", "the shorter text", "the more frequent words"
"""Floors. Word frequencies are those of the right texts of all other lines, so that a bias of the test set shows."""

NORMAL = 1.96
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Contrast:
    """A source, the right and the wrong text for it, and the group of the pair, which may be empty."""

    source: str
    right: str
    wrong: str
    group: str = ""

    def choice(self, right: float, wrong: float) -> float:
        """1 if the right text has the higher score, 0 if the wrong one has, ½ for a draw."""
        return 0.5 if right == wrong else float(right > wrong)


def read_contrasts(lines: Iterable[str], name: str) -> list[Contrast]:
    """The pairs of a file; `name` is for errors. All lines have a group, or none has."""
    contrasts: list[Contrast] = []
    for number, line in enumerate(lines, start=1):
        columns = line.split("\t")
        if len(columns) not in (3, 4):
            raise DataError(
                f"{name}, line {number}: there are {len(columns)} columns; write source, right text and wrong text, "
                "separated by tabs, and optionally a group"
            )
        if contrasts and len(columns) != 3 + bool(contrasts[0].group):
            raise DataError(f"{name}, line {number}: either all lines have a group as fourth column, or none has")
        if empty := [column for column, text in zip(("right text", "wrong text", "group"), columns[1:]) if not text.strip()]:
            raise DataError(f"{name}, line {number}: the {empty[0]} is empty")
        if columns[1] == columns[2]:
            raise DataError(f"{name}, line {number}: the right and the wrong text are the same; remove the line")
        contrasts.append(Contrast(*columns))
    if not contrasts:
        raise DataError(f"{name}: there are no pairs; write a source, a right and a wrong text on each line, separated by tabs")
    return contrasts


@dataclass(frozen=True)
class Accuracy:
    """The share of pairs whose right text is preferred, in per cent, with its 95 % interval, and what needs no model."""

    pairs: int
    accuracy: float
    interval: tuple[float, float]
    floors: dict[str, float]

    def document(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "accuracy": self.accuracy, "interval": list(self.interval), "floors": self.floors}


@dataclass(frozen=True)
class ContrastiveResult:
    """The accuracy over all pairs and over those of each group, and the two scores of each pair."""

    total: Accuracy
    groups: dict[str, Accuracy]
    scores: Sequence[tuple[float, float]]

    def document(self) -> dict[str, Any]:
        """The figures as plain data."""
        groups = {name: each.document() for name, each in self.groups.items()}
        return self.total.document() | ({"groups": groups} if groups else {})


def judge(contrasts: Sequence[Contrast], scores: Sequence[tuple[float, float]]) -> ContrastiveResult:
    """The accuracy of scores for the right and the wrong text of each pair; higher is better."""
    chosen = {"": [each.choice(*pair) for each, pair in zip(contrasts, scores, strict=True)], **floors(contrasts)}

    def accuracy(rows: Sequence[int]) -> Accuracy:
        shares = {name: 100 * sum(some[row] for row in rows) / len(rows) for name, some in chosen.items()}
        value = shares.pop("")
        return Accuracy(len(rows), value, _interval(value / 100, len(rows)), shares)

    members: dict[str, list[int]] = {}
    for row, each in enumerate(contrasts):
        members.setdefault(each.group, []).append(row)
    groups = {} if "" in members else {name: accuracy(rows) for name, rows in members.items()}
    return ContrastiveResult(accuracy(range(len(contrasts))), groups, scores)


def floors(contrasts: Sequence[Contrast]) -> dict[str, list[float]]:
    """The choice of each rule that needs no model: 1 for the right text of a pair, 0 for the wrong one, ½ for either."""
    words = Counter(word for each in contrasts for word in each.right.split())

    def frequency(each: Contrast, text: str) -> float:
        own = Counter(each.right.split())
        return sum(math.log(words[word] - own[word] + 1) - math.log(words.total() + 1) for word in text.split())

    return {
        CHANCE: [0.5] * len(contrasts),
        SHORTER: [each.choice(-len(each.right), -len(each.wrong)) for each in contrasts],
        FREQUENT: [each.choice(frequency(each, each.right), frequency(each, each.wrong)) for each in contrasts],
    }


def _interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` pairs, in per cent."""
    square = NORMAL**2 / count
    centre = (share + square / 2) / (1 + square)
    reach = NORMAL * math.sqrt(share * (1 - share) / count + square / count / 4) / (1 + square)
    return 100 * max(0.0, centre - reach), 100 * min(1.0, centre + reach)
