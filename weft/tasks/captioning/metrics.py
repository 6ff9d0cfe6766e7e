"""Metrics of captions against several references each: BLEU-4 and CIDEr-D. Case and punctuation do not count.

The references of a picture are the lines of one text.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

from weft.evaluation.metrics import Bleu, Counts, Metric

ORDERS = 4
WORD = re.compile(r"\w+(?:-\w+)*|'\w+")
"""A word, with hyphens inside; what follows an apostrophe is a word of its own."""

Grams = Counter[tuple[str, ...]]


def words(text: str) -> list[str]:
    """The words of a caption, in lower case and without punctuation."""
    return WORD.findall(text.lower().replace("’", "'"))


class CaptionBleu(Metric):
    """BLEU (Papineni et al. 2002) with n-grams up to 4 against all references, of which the nearest in length counts."""

    name = "BLEU-4"
    several_references = True

    def __init__(self) -> None:
        self.bleu = Bleu(tokenize="none")

    @property
    def signature(self) -> str:
        changes = {"nrefs:1": "nrefs:var", "case:mixed": "case:lc", "tok:none": "tok:words without punctuation"}
        return "|".join(changes.get(part, part) for part in self.bleu.signature.split("|"))

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        ours = [" ".join(words(text)) for text in hypotheses]
        theirs = [[" ".join(words(line)) for line in text.split("\n")] for text in references]
        most = max(map(len, theirs))
        # sacreBLEU wants as many references for each; it ignores None.
        columns = [[lines[place] if place < len(lines) else None for lines in theirs] for place in range(most)]
        return np.array(self.bleu.inner._extract_corpus_statistics(ours, columns), np.float64)

    def value(self, sums: Counts) -> Counts:
        return self.bleu.value(sums)


class CiderD(Metric):
    """CIDEr-D (Vedantam et al. 2015): cosine similarity of n-grams up to 4, weighted by how few pictures have them, times 10.

    It is the implementation of COCO: document frequencies are those of the references that are scored, counts are clipped to
    the reference, and a difference in length costs exp(−δ² / 2σ²), σ = 6.
    """

    name = "CIDEr-D"
    several_references = True
    signature = "CIDEr-D|n:4|sigma:6|df:references|scale:10|case:lc|punctuation:no"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 2]: the score of each picture, and 1."""
        theirs = [[_grams(line) for line in text.split("\n")] for text in references]
        pictures = Counter(chain.from_iterable({gram for grams in each for gram in grams} for each in theirs))
        scores = [self._similarity(_grams(text), each, pictures, len(theirs)) for text, each in zip(hypotheses, theirs)]
        return np.array([[score, 1.0] for score in scores])

    def value(self, sums: Counts) -> Counts:
        return sums[..., 0] / np.maximum(sums[..., 1], 1)

    def _similarity(self, ours: Grams, references: Sequence[Grams], pictures: Grams, total: int) -> float:
        def weights(grams: Grams) -> dict[tuple[str, ...], float]:
            return {gram: count * (math.log(total) - math.log(max(1, pictures[gram]))) for gram, count in grams.items()}

        mine, score = weights(ours), 0.0
        for each in references:
            other = weights(each)
            far = math.exp(-((_length(ours) - _length(each)) ** 2) / (2 * 6.0**2))
            for order in range(1, ORDERS + 1):
                shared = sum(
                    min(value, other.get(gram, 0.0)) * other.get(gram, 0.0)
                    for gram, value in mine.items()
                    if len(gram) == order
                )
                norm = _norm(mine, order) * _norm(other, order)
                score += far * (shared / norm if norm else shared)
        return 10 * score / ORDERS / len(references)


def _grams(text: str) -> Grams:
    """The n-grams of a caption with their counts."""
    tokens = words(text)
    return Counter(tuple(tokens[at : at + order]) for order in range(1, ORDERS + 1) for at in range(len(tokens) - order + 1))


def _length(grams: Grams) -> int:
    """The number of bigrams, which COCO's implementation takes for the length."""
    return sum(count for gram, count in grams.items() if len(gram) == 2)


def _norm(weights: dict[tuple[str, ...], float], order: int) -> float:
    return math.sqrt(sum(value**2 for gram, value in weights.items() if len(gram) == order))
