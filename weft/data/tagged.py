"""Sentences with a tag for each word, as files: `word TAB tag` lines with a blank line after each sentence (also .gz).

A sentence is a pair of texts like all other data: its words, each with `WORD_END` behind it, and its lines as in the file. So a
word may contain spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from weft.data.formats import JsonPairs, Pairs
from weft.data.lines import check_file, file_digest, read_lines
from weft.data.pair_source import combine
from weft.data.records import is_json
from weft.errors import DataError

WORD_END = "\x1f"
"""The unit separator of ASCII."""

Change = Callable[[Sequence[str]], list[str]]
"""Rewrites the tags of a sentence in another scheme."""


def join_words(words: Iterable[str]) -> str:
    """Words as one text."""
    return "".join(f"{word}{WORD_END}" for word in words)


def split_words(text: str) -> list[str]:
    """The words of a text: those that `join_words` joined, otherwise what stands between spaces."""
    return text.split(WORD_END)[:-1] if WORD_END in text else text.split()


def join_tags(words: Iterable[str], tags: Iterable[str]) -> str:
    """A sentence as in a file, without the blank line."""
    return "\n".join(f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True))


def split_tags(text: str) -> tuple[list[str], list[str]]:
    """The words and the tags of a sentence as in a file."""
    rows = [line.rpartition("\t") for line in text.split("\n")] if text else []
    return [word for word, _, _ in rows], [tag for _, _, tag in rows]


def open_tagged(spec: str, change: Change | None = None) -> Pairs:
    """The tagged sentences of `file.tsv`, of two columns of it, `file.tsv#1,3`, or of what a run has held out (.jsonl)."""
    if is_json(spec):
        return JsonPairs(spec, spec, None)
    return TaggedSentences(spec, change)


class TaggedSentences(Pairs):
    """The sentences of a table with a word per line. All lines have the same number of columns, separated by tabs.

    change: applied to the tags of every sentence.
    """

    def __init__(self, spec: str, change: Change | None = None) -> None:
        super().__init__(spec)
        path, mark, columns = spec.rpartition("#")
        chosen = mark and path.removesuffix(".gz").endswith(".tsv")
        self.path = str(check_file(path if chosen else spec))
        self.change = change
        numbers = columns.split(",") if chosen else ["1", "2"]
        if len(numbers) != 2 or not all(number.strip().isdecimal() and int(number) for number in numbers):
            raise DataError(
                f"{spec}: write the columns of the word and of its tag as two numbers from 1 on, like file.tsv#1,3."
            )
        self.word, self.tag = (int(number) - 1 for number in numbers)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for first, rows in self._sentences():
            words, tags = [word for word, _ in rows], [tag for _, tag in rows]
            if self.change is not None:
                try:
                    tags = self.change(tags)
                except DataError as error:
                    raise DataError(f"{self.path}, sentence at line {first:,}: {error}") from None
            yield join_words(words), join_tags(words, tags)

    def _sentences(self) -> Iterator[tuple[int, list[tuple[str, str]]]]:
        """The number of the first line of each sentence, and its words with their tags."""
        rows: list[tuple[str, str]] = []
        width, first, empty = 0, 0, True
        for number, line in enumerate(read_lines(self.path), start=1):
            if not line.strip():
                if rows:
                    yield first, rows
                rows = []
                continue
            cells = line.split("\t")
            first, width, empty = first if rows else number, width or len(cells), False
            rows.append(self._row(cells, width, f"{self.path}, line {number:,}"))
        if rows:
            yield first, rows
        if empty:
            raise DataError(f"{self.path} is empty.")

    def _row(self, cells: list[str], width: int, where: str) -> tuple[str, str]:
        shown = repr("\t".join(cells)[:80])
        if len(cells) != width:
            raise DataError(
                f"{where}: {len(cells)} columns, but the lines before it have {width}: {shown}. Write a word, a tab and a tag."
            )
        if max(self.word, self.tag) >= width:
            raise DataError(
                f"{where}: there is no column {max(self.word, self.tag) + 1}, only {width}: {shown}. Write a word, a tab and a "
                f"tag on each line, or choose columns like {self.path}#1,2."
            )
        word, tag = cells[self.word].strip(), cells[self.tag].strip()
        if not word or not tag:
            missing = f"the tag {tag!r} has no word" if tag else f"the word {word!r} has no tag"
            raise DataError(f"{where}: {missing}: {shown}. Complete the line, or remove it.")
        if WORD_END in word:
            raise DataError(f"{where}: a word contains the control character U+001F: {shown}. Remove it.")
        return word, tag

    def digest(self) -> str:
        # What `change` does follows from the task's settings, which are part of the key of a prepared corpus.
        return combine("tagged", str(self.word), str(self.tag), file_digest(self.path))


class Spaced(Pairs):
    """The words of tagged sentences with spaces between them, for training tokenizers."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(pairs.name)
        self.pairs = pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((" ".join(split_words(source)), target) for source, target in self.pairs)

    def digest(self) -> str:
        return combine("spaced", self.pairs.digest())
