"""Translation memory: exact matches of a text, and the most similar text of a memory by edit distance on words.

The similarity of two texts is 1 − d / max(n, m): d is the edit distance of their words, n and m are the numbers of their words.
The index follows from it. A text with a similarity of at least t shares ⌈t · max(n, m)⌉ words with the query. So if the words
of both are ordered from the rarest to the most frequent, the first n − ⌈t · n⌉ + 1 words of the query and the first
m − ⌈t · m⌉ + 1 words of the text have one in common (prefix filtering, Chaudhuri et al. 2006). Only these are indexed, so
common words cost little, and no match is missed.
"""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.data.formats import open_pairs
from weft.data.term_automata import UNSPACED
from weft.file_access import plain_name

FUZZY = 0.7
"""The least similarity of a fuzzy match."""

_UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
_PUNCTUATION = r"!-/:-@\[-`{-~\u00a1-\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u3004\u3008-\u3020\uff01-\uff0f\uff1a-\uff20"
WORD = re.compile(rf"[{_UNSPACED}{_PUNCTUATION}]|[^\s{_UNSPACED}{_PUNCTUATION}]+")
"""A word, a punctuation mark, or a character of a script without spaces."""

SLACK = 1e-9


@dataclass(frozen=True)
class MemoryMatch:
    """An entry of a memory for a text. score: the similarity of the two sources · exact: whether they are equal."""

    source: str
    target: str
    score: float
    exact: bool = False


class TranslationMemory:
    """Translations by their sources. Of several with the same source, the last one counts.

    Sources are compared in Unicode's normal form C, and without regard to the amount of whitespace. Pairs of several lines are
    also known line by line, if both sides have as many. threshold: the least similarity of a fuzzy match.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], threshold: float = FUZZY) -> None:
        self.threshold = threshold
        self._targets: dict[str, str] = {}
        for source, target in pairs:
            lines, answers = source.strip().split("\n"), target.strip().split("\n")
            several = len(lines) > 1 and len(lines) == len(answers)
            for one, other in [(source, target), *(zip(lines, answers, strict=True) if several else ())]:
                if (key := normal(one)) and other.strip():
                    self._targets[key] = other.strip()

    def __len__(self) -> int:
        return len(self._targets)

    @cached_property
    def _index(self) -> SimilarityIndex:
        return SimilarityIndex(list(self._targets), self.threshold)

    def prepare(self) -> None:
        """Makes the index now, not when the first text is looked up."""
        self._index  # noqa: B018

    def find(self, text: str) -> MemoryMatch | None:
        """The entry with this source or else the most similar one, if it is similar enough."""
        key = normal(text)
        if (target := self._targets.get(key)) is not None:
            return MemoryMatch(key, target, 1.0, exact=True)
        if found := self._index.find(key):
            source, score = found
            return MemoryMatch(source, self._targets[source], score)
        return None


def memory_pairs(files: Sequence[str], languages: tuple[str | None, str | None] = (None, None)) -> Iterator[tuple[str, str]]:
    """The pairs of files of any data format. languages: those of source and target, for a .tmx after which none are named."""
    chosen = f"#{','.join(filter(None, languages))}" if all(languages) else ""
    specs = [f"{name}{chosen}" if plain_name(name).lower().endswith(".tmx") else name for name in files]
    return (pair for spec in specs for pair in open_pairs(spec))


class SimilarityIndex:
    """Finds the most similar of some texts, if its similarity is at least `threshold`.

    Words have ranks in the order of their frequency, rare ones first. The second occurrence of a word in a text is a word of
    its own.
    """

    def __init__(self, texts: Sequence[str], threshold: float) -> None:
        self.texts, self.threshold = texts, threshold
        self._numbers: dict[tuple[str, int], int] = {}
        words, sizes = array("i"), array("i")
        for text in texts:
            own = [self._numbers.setdefault(word, len(self._numbers)) for word in _occurrences(split_words(text))]
            words.extend(own)
            sizes.append(len(own))
        flat, self._sizes = (np.frombuffer(each, np.int32) if each else np.zeros(0, np.int32) for each in (words, sizes))
        self._starts = np.concatenate([[0], np.cumsum(self._sizes, dtype=np.int64)])
        common = np.argsort(np.bincount(flat, minlength=len(self._numbers)), kind="stable")
        self._ranks = np.empty(len(common), np.int32)
        self._ranks[common] = np.arange(len(common), dtype=np.int32)
        texts_of = np.repeat(np.arange(len(texts), dtype=np.int32), self._sizes)
        ranks = self._ranks[flat]
        self._words = ranks[np.lexsort((ranks, texts_of))]
        needed = np.ceil(threshold * self._sizes - SLACK).astype(np.int64)
        place = np.arange(len(flat)) - self._starts[texts_of]
        first = place < (self._sizes - needed + 1)[texts_of]
        order = np.argsort(self._words[first], kind="stable")
        self._postings = texts_of[first][order]
        self._bounds = np.searchsorted(self._words[first][order], np.arange(len(common) + 1))

    def find(self, text: str) -> tuple[str, float] | None:
        """The most similar text and its similarity; of several, one of the last."""
        words = split_words(text)
        candidates, most = self._candidates(words)
        best: tuple[str, float] | None = None
        for candidate, bound in zip(candidates.tolist(), most.tolist()):
            if bound < self.threshold - SLACK or (best is not None and bound <= best[1]):
                break
            other = split_words(self.texts[candidate])
            score = 1 - edit_distance(words, other) / max(len(words), len(other))
            if score >= self.threshold - SLACK and (best is None or score > best[1]):
                best = self.texts[candidate], score
        return best

    def _candidates(self, words: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The texts that may be similar enough, and the most that each similarity can be, in descending order."""
        size = len(words)
        numbers = [number for word in _occurrences(words) if (number := self._numbers.get(word)) is not None]
        known = np.sort(self._ranks[numbers]) if numbers else np.zeros(0, np.int32)
        wanted = size - math.ceil(self.threshold * size - SLACK) + 1 - (size - len(known))
        lists = [self._postings[self._bounds[each] : self._bounds[each + 1]] for each in known[: max(wanted, 0)].tolist()]
        found = np.unique(np.concatenate(lists)) if lists else np.zeros(0, np.int32)
        sizes = self._sizes[found]
        found = found[np.minimum(sizes, size) >= self.threshold * np.maximum(sizes, size) - SLACK]
        sizes = self._sizes[found]
        if not len(found):
            return found, np.zeros(0)
        begins = np.cumsum(sizes, dtype=np.int64) - sizes
        places = np.arange(int(sizes.sum())) + np.repeat(self._starts[found] - begins, sizes)
        shared = np.add.reduceat(np.isin(self._words[places], known).astype(np.int64), begins)
        most = shared / np.maximum(sizes, size)
        order = np.lexsort((-found, -most))
        return found[order], most[order]


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text."""
    return WORD.findall(text)


def normal(text: str) -> str:
    """A text as it is compared: in Unicode's normal form C, with single spaces."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def edit_distance(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The least number of words to insert, delete or replace (Levenshtein 1966), bit-parallel by columns (Hyyrö 2003)."""
    if not ours:
        return len(theirs)
    equal: dict[str, int] = {}
    for place, word in enumerate(ours):
        equal[word] = equal.get(word, 0) | 1 << place
    every, last = (1 << len(ours)) - 1, 1 << len(ours) - 1
    up, down, distance = every, 0, len(ours)  # vertical steps of +1 and of −1 in the current column
    for word in theirs:
        same = equal.get(word, 0)
        diagonal = (((same & up) + up) ^ up) | same | down
        right, left = down | ~(diagonal | up) & every, up & diagonal
        distance += bool(right & last) - bool(left & last)
        right, left = right << 1 | 1, left << 1
        up, down = (left | ~(diagonal | right)) & every, right & diagonal & every
    return distance


def _occurrences(words: Sequence[str]) -> list[tuple[str, int]]:
    """Each word with the number of its occurrences before."""
    seen: dict[str, int] = {}
    found = []
    for word in words:
        count = seen.get(word, 0)
        seen[word] = count + 1
        found.append((word, count))
    return found
