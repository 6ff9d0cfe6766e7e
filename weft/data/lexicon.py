"""The words of the training data: how often each occurs, and with which tag most often."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.batch import UNK
from weft.data.tagged import split_tags
from weft.data.tokenizer import RESERVED
from weft.errors import RunError


@dataclass(frozen=True)
class Vocabulary:
    """Which words have ids: those that occur at least `least` times, capitals ignored with `lowercase`; at most `most` ids."""

    least: int
    lowercase: bool
    most: int

    def form(self, word: str) -> str:
        return word.lower() if self.lowercase else word

    def choose(self, counts: dict[str, int]) -> dict[str, int]:
        """The ids of forms, most frequent first."""
        forms: Counter[str] = Counter()
        for word, count in counts.items():
            forms[self.form(word)] += count
        kept = sorted((form for form, count in forms.items() if count >= self.least), key=lambda form: (-forms[form], form))
        return {form: number for number, form in enumerate(kept[: max(0, self.most - RESERVED)], start=RESERVED)}


class Lexicon:
    """Words with their counts and their most frequent tags. Words without an id are UNK."""

    def __init__(self, counts: dict[str, int], tags: dict[str, str], vocabulary: Vocabulary) -> None:
        self.counts, self.tags, self.vocabulary = counts, tags, vocabulary
        self.ids = vocabulary.choose(counts)
        rare = [word for word, count in counts.items() if count == 1]
        self._usual = {capital: _first(tags[word] for word in rare if _capital(word) == capital) for capital in (True, False)}
        self._usual_of_all = _first(tags.values())

    @property
    def size(self) -> int:
        """The number of ids, special ones included."""
        return RESERVED + len(self.ids)

    def find(self, words: Iterable[str]) -> list[int]:
        """The id of each word."""
        return [self.ids.get(self.vocabulary.form(word), UNK) for word in words]

    def guess(self, word: str) -> str:
        """The most frequent tag of a word; of an unknown one, that of most words that occur once, with or without a capital."""
        return self.tags.get(word) or self._usual[_capital(word)] or self._usual_of_all

    @staticmethod
    def count(sentences: Iterable[str], vocabulary: Vocabulary) -> Lexicon:
        """The lexicon of sentences as in a file (see `weft.data.tagged`)."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for word, tag in zip(*split_tags(sentence), strict=True):
                found[word][tag] += 1
        words = sorted(found, key=lambda word: (-found[word].total(), word))
        tags = {word: _first(found[word].elements()) for word in words}
        return Lexicon({word: found[word].total() for word in words}, tags, vocabulary)

    def save(self, path: Path) -> None:
        rows = [[word, count, self.tags[word]] for word, count in self.counts.items()]
        path.write_text(json.dumps({"words": rows}, ensure_ascii=False, indent=0), encoding="utf-8")

    @staticmethod
    def load(path: Path, vocabulary: Vocabulary) -> Lexicon:
        try:
            rows: Sequence[tuple[str, int, str]] = json.loads(path.read_text(encoding="utf-8"))["words"]
            counts, tags = {word: count for word, count, _ in rows}, {word: tag for word, _, tag in rows}
        except FileNotFoundError:
            raise RunError(f"{path}: there is no such file") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: this file does not hold words with their tags: {error}") from None
        return Lexicon(counts, tags, vocabulary)


def _capital(word: str) -> bool:
    return word[:1].isupper()


def _first(tags: Iterable[str]) -> str:
    """The most frequent tag, of several the first in the alphabet; empty if there is none."""
    counts = Counter(tags)
    return min(counts, key=lambda tag: (-counts[tag], tag), default="")
