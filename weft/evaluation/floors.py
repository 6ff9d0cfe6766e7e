"""Floors: the scores of answers that need no model, such as a copy of the input, to compare a trained model with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.evaluation.metrics import Metric

COPY, CONSTANT = "copying the input", "the same answer to every input"

EXAMPLES = 200
"""The most examples that are scored."""

CANDIDATES = 4
"""References of medium length that are tried as the only answer, besides the most frequent one."""


def trivial_scores(examples: Sequence[tuple[str, str]], metric: Metric) -> dict[str, float]:
    """The scores of trivial answers to inputs with references, by what they are. Of constant answers, the best one counts."""
    examples = examples[:EXAMPLES]
    if not examples:
        return {}
    references = [reference for _, reference in examples]
    scores = {COPY: _score(metric, [source for source, _ in examples], references)}
    constant = [_score(metric, [answer] * len(references), references) for answer in _candidates(references)]
    return {**scores, CONSTANT: max(constant) if metric.higher_is_better else min(constant)}


def _score(metric: Metric, answers: Sequence[str], references: Sequence[str]) -> float:
    return metric.score(metric.count(answers, references)).value


def _candidates(references: Sequence[str]) -> list[str]:
    """The most frequent reference, and some of medium length. Of a reference with several lines, the first."""
    lines = [reference.split("\n")[0] for reference in references]
    by_length = sorted(lines, key=len)
    middle = [by_length[len(lines) * (4 + place) // (8 + CANDIDATES)] for place in range(CANDIDATES)]
    return list(dict.fromkeys([Counter(lines).most_common(1)[0][0], *middle]))
