"""The words of the training data: how often each occurs, and with which tag most often."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from weft.batch import UNK
from weft.data.tagged import split_tags
from weft.data.tokenizer import RESERVED
from weft.errors import RunError


class Lexicon:
    """Words with their counts and their most frequent tags.

    A word has an id if it occurs at least `least` times, capitals ignored with `lowercase`, and there are not yet `most` ids.
    All others are UNK.
    """

    def __init__(self, counts: dict[str, int], tags: dict[str, str], *, least: int, lowercase: bool, most: int) -> None:
        self.counts, self.tags, self.lowercase = counts, tags, lowercase
        forms: Counter[str] = Counter()
        for word, count in counts.items():
            forms[self._form(word)] += count
        kept = sorted((form for form, count in forms.items() if count >= least), key=lambda form: (-forms[form], form))
        self.ids = {form: number for number, form in enumerate(kept[: max(0, most - RESERVED)], start=RESERVED)}
        self.usual = Counter(tags.values()).most_common(1)[0][0] if tags else ""

    @property
    def size(self) -> int:
        """The number of ids, special ones included."""
        return RESERVED + len(self.ids)

    def _form(self, word: str) -> str:
        return word.lower() if self.lowercase else word

    def find(self, words: Iterable[str]) -> list[int]:
        """The id of each word."""
        return [self.ids.get(self._form(word), UNK) for word in words]

    def guess(self, word: str) -> str:
        """The most frequent tag of a word; of an unknown one, the tag that is most frequent for most words."""
        return self.tags.get(word, self.usual)

    @staticmethod
    def count(sentences: Iterable[str], *, least: int, lowercase: bool, most: int) -> Lexicon:
        """The lexicon of sentences as in a file (see `weft.data.tagged`)."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for word, tag in zip(*split_tags(sentence), strict=True):
                found[word][tag] += 1
        words = sorted(found, key=lambda word: (-found[word].total(), word))
        tags = {word: min(found[word], key=lambda tag, of=found[word]: (-of[tag], tag)) for word in words}
        counts = {word: found[word].total() for word in words}
        return Lexicon(counts, tags, least=least, lowercase=lowercase, most=most)

    def save(self, path: Path) -> None:
        rows = [[word, count, self.tags[word]] for word, count in self.counts.items()]
        path.write_text(json.dumps({"words": rows}, ensure_ascii=False, indent=0), encoding="utf-8")

    @staticmethod
    def load(path: Path, *, least: int, lowercase: bool, most: int) -> Lexicon:
        try:
            rows: Sequence[tuple[str, int, str]] = json.loads(path.read_text(encoding="utf-8"))["words"]
            counts, tags = {word: count for word, count, _ in rows}, {word: tag for word, _, tag in rows}
        except FileNotFoundError:
            raise RunError(f"{path}: there is no such file") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: this file does not hold words with their tags: {error}") from None
        return Lexicon(counts, tags, least=least, lowercase=lowercase, most=most)
