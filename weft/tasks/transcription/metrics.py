"""Error rates of transcripts: edits per word or character of the reference. Lower is better.

An edit inserts, deletes or replaces one word or character; the fewest edits count (Levenshtein). The values equal jiwer's on
texts without repeated white space.
"""

from collections.abc import Sequence

import numpy as np

from weft.evaluation.metrics import Counts, ExactMatch, Metric


def edits(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that turn one sequence into the other."""
    row = list(range(len(theirs) + 1))
    for i, mine in enumerate(ours, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(theirs, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (mine != other))
    return row[-1]


class WordErrorRate(Metric):
    """Edits per word of the reference, over all texts. It exceeds 100 if there are many insertions."""

    name = "WER"
    higher_is_better = False
    signature = "edits per reference word|split:whitespace|case:mixed"

    def units(self, text: str) -> Sequence[str]:
        return text.split()

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        pairs = [(self.units(ours), self.units(theirs)) for ours, theirs in zip(hypotheses, references)]
        return np.array([[edits(ours, theirs), len(theirs)] for ours, theirs in pairs], np.float64)

    def value(self, sums: Counts) -> Counts:
        wrong, units = sums[..., 0], sums[..., 1]
        return 100 * np.where(units > 0, wrong / np.where(units > 0, units, 1), wrong > 0)


class CharacterErrorRate(WordErrorRate):
    """Edits per character of the reference, over all texts. A space is a character."""

    name = "CER"
    signature = "edits per reference character|whitespace:one space|case:mixed"

    def units(self, text: str) -> Sequence[str]:
        return " ".join(text.split())


METRICS: tuple[type[Metric], ...] = (WordErrorRate, CharacterErrorRate, ExactMatch)
"""The metrics of transcripts."""
