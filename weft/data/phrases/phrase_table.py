"""Phrase tables: translations of n-grams with their features, from mapped vectors or from texts with their translations.

From translations, phrases are those of Och & Ney 2004 (consistent with the word alignment), with the features of Koehn et al.
2003: relative frequencies and lexical weights, in both directions.

Shapes: V, W n-grams of both texts · S, T words of a source and its target.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.data.ibm_model_2 import TranslationTable
from weft.data.text_lines import read_lines
from weft.data.word_vectors.mapping import MappedVectors
from weft.data.word_vectors.vectors import Vectors
from weft.errors import DataError
from weft.file_access import replacing_file

BEST = 10
"""Translations of a phrase."""
TEMPERATURE = 0.03
"""By which scores of mapped vectors are divided to become logarithms of probabilities."""
LONGEST = 5
"""Words of a phrase that is taken from translations."""
LEAST = 1e-7
"""The least lexical weight."""

Words = Sequence[str]
Links = frozenset[tuple[int, int]]
"""Numbers of a source and a target word that are aligned."""
NOTHING = ""
"""Stands for the word that words without a link are aligned with."""


@dataclass(frozen=True)
class PhraseTable:
    """The translations of each phrase, with the logarithms of their features; words are separated by spaces."""

    entries: Mapping[str, Sequence[tuple[str, Sequence[float]]]]

    def write(self, file: Path) -> None:
        """Writes the file that `read` reads."""
        with replacing_file(file) as out:
            for phrase, some in self.entries.items():
                for written, features in some:
                    out.write(("\t".join([phrase, written, *(f"{value:.5g}" for value in features)]) + "\n").encode())

    @staticmethod
    def read(file: Path) -> PhraseTable:
        """Reads what `write` wrote. Raises DataError with the line that is something else."""
        entries: dict[str, list[tuple[str, Sequence[float]]]] = {}
        count = 0
        for number, line in enumerate(read_lines(file), start=1):
            phrase, *rest = line.split("\t")
            try:
                features = [float(value) for value in rest[1:]]
            except ValueError:
                features = []
            count = count or len(features)
            if not features or len(features) != count or not all(map(math.isfinite, features)):
                raise DataError(f"{file}, line {number:,}: this is no phrase with its translation and numbers: {line[:80]!r}")
            entries.setdefault(phrase, []).append((rest[0], features))
        return PhraseTable(entries)

    @staticmethod
    def from_vectors(mapped: MappedVectors, best: int = BEST) -> PhraseTable:
        """The nearest n-grams of each n-gram, with log p(target | source) and log p(source | target) (Lample et al. 2018b)."""
        scores = mapped.scores()
        scores /= TEMPERATURE
        forth, back = _log_sums(scores), _log_sums(scores.T)
        order = np.argpartition(-scores, best - 1, 1)[:, :best] if best < scores.shape[1] else np.argsort(-scores, 1)
        found = np.take_along_axis(scores, order, 1)
        features = np.stack([found - forth[:, None], found - back[order]], 2).tolist()
        words = mapped.target.words
        rows = zip(mapped.source.words, order.tolist(), features, strict=True)
        return PhraseTable({name: [(words[place], each) for place, each in zip(*row, strict=True)] for name, *row in rows})

    @staticmethod
    def from_pairs(pairs: Sequence[tuple[Words, Words]], best: int = BEST) -> PhraseTable:
        """The phrases of texts and their translations, whose words are aligned here."""
        pairs = [pair for pair in pairs if all(pair)]
        aligned = [(source, target, links) for (source, target), links in zip(pairs, align(pairs), strict=True)]
        forth, back = lexicon(aligned), lexicon([(target, source, _turned(links)) for source, target, links in aligned])
        together: Counter[tuple[str, str]] = Counter()
        inside: dict[tuple[str, str], Links] = {}
        for source, target, links in aligned:
            for (first, last), (begin, end), own in phrases(len(source), len(target), links):
                pair = " ".join(source[first:last]), " ".join(target[begin:end])
                together[pair] += 1
                inside.setdefault(pair, own)
        of_source, of_target = Counter[str](), Counter[str]()
        for (source, target), count in together.items():
            of_source[source] += count
            of_target[target] += count
        found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for (source, target), count in together.items():
            found[source].append((count, target))
        entries: dict[str, list[tuple[str, Sequence[float]]]] = {}
        for source, some in found.items():
            some.sort(key=lambda each: (-each[0], each[1]))
            entries[source] = []
            for count, target in some[:best]:
                own, sides = inside[source, target], (source.split(" "), target.split(" "))
                weights = lexical_weight(*sides, own, forth), lexical_weight(*sides[::-1], _turned(own), back)
                shares = count / of_source[source], count / of_target[target], *weights
                entries[source].append((target, np.log(shares).tolist()))
        return PhraseTable(entries)


def _log_sums(scores: Vectors) -> Vectors:
    """[V]: log Σ exp of each row of scores [V, W], row by row, so that no second table is needed."""
    return np.array([(top := row.max()) + np.log(np.exp(row - top).sum()) for row in scores], scores.dtype)


def align(pairs: Sequence[tuple[Words, Words]]) -> Iterator[Links]:
    """The links between the words of each pair: both directions of IBM Model 2, symmetrized."""
    numbers: list[dict[str, int]] = [{}, {}]
    rows = [
        tuple(np.array([own.setdefault(word, len(own)) for word in side]) for own, side in zip(numbers, pair, strict=True))
        for pair in pairs
    ]
    forth = TranslationTable.count([(one, other) for one, other in rows], len(numbers[1]))
    back = TranslationTable.count([(other, one) for one, other in rows], len(numbers[0]))
    for one, other in rows:
        yield symmetrized(forth.links(one, other).tolist(), back.links(other, one).tolist())


def symmetrized(forth: Sequence[int], back: Sequence[int]) -> Links:
    """The links that both directions have, and beside them those of one that link a word without a link (grow-diag).

    forth: the source word of each target word · back: the target word of each source word.
    """
    first = {(source, target) for target, source in enumerate(forth)}
    second = set(enumerate(back))
    links, either = first & second, sorted(first ^ second)
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    grown = True
    while grown:
        grown = False
        for source, target in either:
            if (source, target) in links or (source in sources and target in targets):
                continue
            if any((source + i, target + j) in links for i in (-1, 0, 1) for j in (-1, 0, 1)):
                links.add((source, target))
                sources.add(source)
                targets.add(target)
                grown = True
    return frozenset(links)


def _turned(links: Links) -> Links:
    return frozenset((target, source) for source, target in links)


def phrases(sources: int, targets: int, links: Links) -> Iterator[tuple[tuple[int, int], tuple[int, int], Links]]:
    """Phrases of a pair, from and to a word on both sides, with their links, counted from the phrases' first words.

    No word of a phrase is linked with a word outside. Words without links may be at the borders.
    """
    of_source = [sorted(j for i, j in links if i == word) for word in range(sources)]
    of_target = [sorted(i for i, j in links if j == word) for word in range(targets)]
    for first in range(sources):
        low, high = targets, -1
        for last in range(first, min(sources, first + LONGEST)):
            if of_source[last]:
                low, high = min(low, of_source[last][0]), max(high, of_source[last][-1])
            if high < 0 or high - low >= LONGEST:
                continue
            if any(not first <= i <= last for word in range(low, high + 1) for i in of_target[word]):
                continue
            own = frozenset((i, j) for i in range(first, last + 1) for j in of_source[i])
            begin = low
            while begin >= 0 and high - begin < LONGEST and (begin == low or not of_target[begin]):
                end = high
                while end < targets and end - begin < LONGEST and (end == high or not of_target[end]):
                    inner = frozenset((i - first, j - begin) for i, j in own)
                    yield (first, last + 1), (begin, end + 1), inner
                    end += 1
                begin -= 1


def lexicon(aligned: Iterable[tuple[Words, Words, Links]]) -> dict[tuple[str, str], float]:
    """w(target word | source word) of all links; words without one are linked with `NOTHING`."""
    links: Counter[tuple[str, str]] = Counter()
    for source, target, some in aligned:
        linked = {j for _, j in some}
        links.update((source[i], target[j]) for i, j in some)
        links.update((NOTHING, word) for j, word in enumerate(target) if j not in linked)
    total: Counter[str] = Counter()
    for (word, _), count in links.items():
        total[word] += count
    return {pair: count / total[pair[0]] for pair, count in links.items()}


def lexical_weight(source: Words, target: Words, links: Links, weights: Mapping[tuple[str, str], float]) -> float:
    """Π over target words of the mean w(target word | source word) of its links (Koehn et al. 2003, equation 8)."""
    product = 1.0
    for j, word in enumerate(target):
        own = [weights.get((source[i], word), 0.0) for i, other in links if other == j] or [weights.get((NOTHING, word), 0.0)]
        product *= sum(own) / len(own)
    return max(LEAST, product)
