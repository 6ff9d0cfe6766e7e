"""Labels of translations that have a reference: sentence chrF, and for each word whether it is right (OK) or wrong (BAD).

A word is OK if an alignment of least edits (insertions, deletions and substitutions of words) matches it with an equal word of
the reference. Words are those of `weft.tasks.translation.attention_alignment.units`: runs of letters and digits, punctuation
marks, single ideographs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import DataError
from weft.evaluation.metrics import Chrf
from weft.tasks.translation.attention_alignment import Span, units

OK, BAD = "OK", "BAD"
TAGS = (BAD, OK)
"""The tags by their numbers."""

LONGEST = 1_000
"""Words of a text that is labelled: the alignment of least edits takes the product of two lengths in time and memory."""


@dataclass(frozen=True)
class QualityLabel:
    """score: chrF2 of the sentence, from 0 to 100 · tags: OK or BAD for each word of the translation."""

    score: float
    tags: list[str]

    @property
    def joined(self) -> str:
        """The tags as the data has them, with spaces between them."""
        return " ".join(self.tags)


def words_of(text: str) -> list[str]:
    """The words that tags belong to."""
    return [text[start:end] for start, end in units(text)]


def too_long(text: str) -> bool:
    """Whether a text has more words than are labelled."""
    return len(text) > LONGEST and len(units(text)) > LONGEST


def label_translations(translations: Sequence[str], references: Sequence[str]) -> list[QualityLabel]:
    """The labels of translations."""
    metric = Chrf()
    scores = metric.value(metric.count(translations, references)).tolist() if translations else []
    return [
        QualityLabel(score, word_tags(words_of(translation), words_of(reference)))
        for score, translation, reference in zip(scores, translations, references, strict=True)
    ]


def word_tags(words: Sequence[str], reference: Sequence[str]) -> list[str]:
    """The tag of each word, by the alignment of least edits with the words of a reference.

    Of several such alignments, the one is taken that substitutes rather than inserts and deletes, from the end on.
    """
    costs = _edit_costs(words, reference)
    tags = [BAD] * len(words)
    row, column = len(words), len(reference)
    while row and column:
        equal = words[row - 1] == reference[column - 1]
        if costs[row, column] == costs[row - 1, column - 1] + (not equal):
            if equal:
                tags[row - 1] = OK
            row, column = row - 1, column - 1
        elif costs[row, column] == costs[row - 1, column] + 1:
            row -= 1
        else:
            column -= 1
    return tags


def _edit_costs(words: Sequence[str], reference: Sequence[str]) -> np.ndarray:
    """[W + 1, R + 1]: the least edits between each beginning of one text and each of the other."""
    places = np.arange(len(reference) + 1)
    costs = np.empty((len(words) + 1, len(reference) + 1), np.int64)
    costs[0] = places
    known = np.array(reference, dtype=object)
    for row, word in enumerate(words, start=1):
        best = costs[row - 1] + 1  # the word has no counterpart
        best[1:] = np.minimum(best[1:], costs[row - 1, :-1] + (known != word))
        # A word of the reference without a counterpart costs 1: the running minimum of best[j] − j, plus j.
        costs[row] = np.minimum.accumulate(best - places) + places
    return costs


def parse_tags(text: str, translation: str) -> list[str]:
    """The tag of each word of a translation, from a text of tags: one for each word, or one for each run without spaces.

    Raises DataError for other tags and other numbers of tags.
    """
    tags = text.split()
    if wrong := next((tag for tag in tags if tag not in TAGS), None):
        raise DataError(f"the tag {wrong!r} is neither {OK} nor {BAD}: {text[:80]!r}")
    spans = units(translation)
    if len(tags) == len(spans):
        return tags
    if len(tags) == len(translation.split()):
        return [tags[number] for number in _runs(translation, spans)]
    raise DataError(
        f"there are {len(tags)} tags for the {len(spans)} words (and marks) of the translation {translation[:80]!r}; write "
        f"{OK} or {BAD} for each"
    )


def _runs(text: str, spans: Sequence[Span]) -> list[int]:
    """For each word, the number of the run without spaces that it is in."""
    begins = [run.start() for run in re.finditer(r"\S+", text)]
    return [bisect_left(begins, end) - 1 for _, end in spans]
