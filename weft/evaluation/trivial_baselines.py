"""Floors: the scores of answers that need no model, such as a copy of the input, to compare a trained model with."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from weft.errors import DataError
from weft.evaluation.metrics import Metric

COPY, CONSTANT = "copying the input", "the same answer to every input"

EXAMPLES = 200
"""The most examples that are scored."""

CANDIDATES = 4
"""References of medium length that are tried as the only answer, besides the most frequent one."""


def trivial_scores(examples: Sequence[tuple[str, str]], metric: Metric) -> dict[str, float]:
    """The scores of trivial answers to inputs with references, by what they are. Of constant answers, the best one counts.

    Answers that the metric cannot read are left out: a copy of words is no list of entities.
    """
    examples = examples[:EXAMPLES]
    if not examples:
        return {}
    references = [reference for _, reference in examples]
    best = max if metric.higher_is_better else min
    copies = _scores(metric, [[source for source, _ in examples]], references)
    constant = _scores(metric, [[answer] * len(references) for answer in _candidates(references)], references)
    return {name: best(found) for name, found in ((COPY, copies), (CONSTANT, constant)) if found}


def _scores(metric: Metric, answers: Sequence[Sequence[str]], references: Sequence[str]) -> list[float]:
    """The scores of several lists of answers, as far as the metric can read them."""
    found = []
    for each in answers:
        with suppress(DataError):
            found.append(metric.score(metric.count(each, references)).value)
    return found


def _candidates(references: Sequence[str]) -> list[str]:
    """The most frequent reference, and some of medium length. Of a reference with several lines, the first."""
    lines = [reference.split("\n")[0] for reference in references]
    by_length = sorted(lines, key=len)
    middle = [by_length[len(lines) * (4 + place) // (8 + CANDIDATES)] for place in range(CANDIDATES)]
    return list(dict.fromkeys([Counter(lines).most_common(1)[0][0], *middle]))
