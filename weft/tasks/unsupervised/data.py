"""Monolingual texts of two languages, named `en=FILE`: one corpus of both, and batches of texts to restore.

Shapes: B texts · T tokens of a text with the tag of its language · S tokens of a source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batch import EOS, PairBatch, Source
from weft.data.batching import lay_out, spread
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs, combine
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.data.tokenizers.added_tokens import BLANK
from weft.errors import DataError

LANGUAGE = re.compile(r"([A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*)=(.+)", re.DOTALL)
"""As `weft.config.corpus_entries` reads it."""

WORD = re.compile(r"\w+")

CORRELATED = 0.5
"""Correlation from which two texts count as translations of each other: of how much longer or shorter each line is than the one
before it, if they are in the same order, and of the numbers of words in lines that have a rare word in common, if they are not.
Lengths themselves also correlate in texts that consist of the same kinds of parts."""
ENOUGH = 30
"""Lines from which a correlation tells something."""
LINKS = 8
"""Lines with a rare word in common from which the correlation of their lengths, less two standard errors, tells something."""
LENGTHS = 5
"""Different numbers of words per line from which it tells something that two texts have the same."""
NEAR = 0.05
"""Share of lines that one of two translations may lack, at its beginning or its end."""
READ = 1_000_000
"""Lines of a text whose words are compared."""

TOKENS, WORDS, LANGUAGE_COLUMN = "tokens", "words", "language"

FOREIGN = 10.0
"""A token belongs to the other language if it is this many times as frequent there."""

Translate = Callable[[str, str], str]
"""A text and its language to a first translation into the other language."""


class Monolingual(Pairs):
    """Texts of one language, one per line: pairs of a line and the language. first, end: which lines, all by default."""

    def __init__(self, language: str, paths: Sequence[str], first: int = 0, end: int | None = None) -> None:
        super().__init__(", ".join(f"{language}={path}" for path in paths))
        self.language, self.paths = language, [str(check_file(path)) for path in paths]
        self.first, self.end = first, end

    def lines(self) -> Iterator[str]:
        return islice(chain.from_iterable(read_lines(path) for path in self.paths), self.first, self.end)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((line, self.language) for line in self.lines())

    def digest(self) -> str:
        return combine(self.language, str(self.first), str(self.end), *(file_digest(path) for path in self.paths))

    def held_out(self, count: int) -> tuple[Monolingual, Monolingual]:
        """The first `count` lines, and the others."""
        return Monolingual(self.language, self.paths, 0, count), Monolingual(self.language, self.paths, count)


def split_language(spec: str) -> tuple[str, str]:
    """The language and the file of `en=FILE`."""
    match = LANGUAGE.fullmatch(spec)
    if match is None:
        raise DataError(f"{spec!r} names no language: write, for example, en=FILE for an English text.")
    return match[1], match[2]


def languages_of(specs: Sequence[str]) -> list[str]:
    """The languages that texts are in, in the order in which they come first."""
    return list(dict.fromkeys(split_language(spec)[0] for spec in specs))


def open_languages(
    specs: Sequence[str], report: Callable[[str], None] = lambda message: None
) -> tuple[Monolingual, Monolingual]:
    """The texts of two languages, in the order in which the languages come first. Refuses texts that look parallel."""
    files: dict[str, list[str]] = {}
    for spec in specs:
        language, path = split_language(spec)
        if language.lower() == BLANK:
            raise DataError(f"{spec!r}: {BLANK} is the mark of a blank in the vocabulary: give the language another name.")
        files.setdefault(language, []).append(path)
    if len({language.lower() for language in files}) < len(files):
        raise DataError(f"the languages {', '.join(files)} differ only in case: write each language in one way.")
    if len(files) != 2:
        names = ", ".join(files) or "none"
        raise DataError(f"texts of two languages are needed, such as en=FILE and fr=FILE; there is {names}.")
    first, second = (Monolingual(language, paths) for language, paths in files.items())
    check_unpaired(first, second, report)
    return first, second


def check_unpaired(first: Monolingual, second: Monolingual, report: Callable[[str], None]) -> None:
    """Raises DataError if a text is empty, or if both have a file in common or look like translations, in any order.

    Reports if they may be translations in another order, since each sentence then has its partner, which real texts lack.
    """
    sizes = [np.fromiter((len(line.strip()) for line in text.lines()), np.float64) for text in (first, second)]
    for text, lengths in zip((first, second), sizes, strict=True):
        if not lengths.any():
            raise DataError(f"{text.name}: there is no text in it.")
    if {file_digest(path) for path in first.paths} & {file_digest(path) for path in second.paths}:
        raise DataError(f"{first.name} and {second.name} contain the same text: give each language a text of its own.")
    advice = "take one half of the sentences for one language and the other half for the other"
    if _same_order(*sizes):
        raise DataError(f"{first.name} and {second.name} look like translations of each other, line by line: {advice}.")
    texts = [_LineWords.of(islice(text.lines(), READ)) for text in (first, second)]
    if _same_lengths(*texts) or _linked_lengths(*texts):
        raise DataError(
            f"{first.name} and {second.name} look like translations of each other, in another order, so that each sentence has "
            f"its partner: {advice}."
        )
    if len(sizes[0]) == len(sizes[1]):
        report(
            f"{first.name} and {second.name} have the same number of lines. If one is a translation of the other in another "
            f"order, results do not show what can be learnt without translations: {advice}."
        )


def _same_order(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """Whether the lengths of lines go together, from the first line or from the last line on."""
    shortest, longest = sorted((len(first), len(second)))
    if shortest < ENOUGH or longest - shortest > NEAR * longest:
        return False
    parts = slice(shortest), slice(-shortest, None)
    return any(_correlation(np.diff(first[part]), np.diff(second[part])) > CORRELATED for part in parts)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """0 if one of them is constant."""
    return float(np.corrcoef(one, other)[0, 1]) if min(one.std(), other.std()) > 0 else 0.0


@dataclass(frozen=True)
class _LineWords:
    """The number of words of each line, and the line of each word that occurs once."""

    counts: NDArray[np.int64]
    lines: dict[str, int]

    @staticmethod
    def of(lines: Iterable[str]) -> _LineWords:
        counts: list[int] = []
        place: dict[str, int] = {}
        for number, line in enumerate(lines):
            words = WORD.findall(line.lower())
            counts.append(len(words))
            for word in words:
                place[word] = -1 if word in place else number
        return _LineWords(np.array(counts), {word: number for word, number in place.items() if number >= 0})


def _same_lengths(first: _LineWords, second: _LineWords) -> bool:
    """Whether nearly all lines of one text can be matched with lines of the other that have as many words.

    Two samples of lengths leave at least about √n lines of n without a match.
    """
    shortest, longest = sorted((len(first.counts), len(second.counts)))
    if shortest < ENOUGH or longest - shortest > NEAR * longest or len(np.unique(first.counts)) < LENGTHS:
        return False
    size = 1 + max(int(text.counts.max()) for text in (first, second))
    matched = np.minimum(*(np.bincount(text.counts, minlength=size) for text in (first, second))).sum()
    return bool(shortest - matched <= 0.1 * shortest**0.5)


def _linked_lengths(first: _LineWords, second: _LineWords) -> bool:
    """Whether lines that share a word that occurs once in each text, such as a name or a number, are as long as each other.

    They are if they are translations; in texts without translations, only the word is the same.
    """
    links = {(line, second.lines[word]) for word, line in first.lines.items() if word in second.lines}
    if len(links) < LINKS:
        return False
    here, there = np.array(sorted(links)).T
    found = _correlation(first.counts[here].astype(np.float64), second.counts[there].astype(np.float64))
    # Two standard errors of Fisher's transformation below the correlation.
    return bool(np.arctanh(min(found, 0.999)) - 2 / (len(links) - 3) ** 0.5 > np.arctanh(CORRELATED))


def disjoint_halves(pairs: Sequence[tuple[str, str]], seed: int = 1) -> tuple[list[str], list[str]]:
    """Sources of about one half of the pairs and targets of the others: texts of which no sentence has its partner.

    Pairs that have a sentence in common, on either side and also through other pairs, stay together: a sentence may have
    several translations, and none of them may be on the other side.
    """
    groups = _connected(pairs)
    order = np.random.default_rng(seed).permutation(len(pairs)).tolist()
    sizes, half, taken = Counter(groups), len(pairs) // 2, 0
    first: dict[int, bool] = {}
    for row in order:
        group = groups[row]
        if group not in first:
            first[group] = taken + sizes[group] <= half
            taken += sizes[group] * first[group]
    return [pairs[row][0] for row in order if first[groups[row]]], [pairs[row][1] for row in order if not first[groups[row]]]


def _connected(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """The number of the group of each pair, given that pairs with a common source or a common target are connected."""
    parents = list(range(len(pairs)))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    seen: dict[tuple[int, str], int] = {}
    for row, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            other = seen.setdefault((side, " ".join(text.split())), row)
            parents[root(row)] = root(other)
    return [root(row) for row in range(len(pairs))]


@dataclass(frozen=True)
class UnpairedBatch(PairBatch):
    """Texts of either language. Targets begin with BOS and the tag of the language, which is not predicted.

    source: the texts with noise · clean: the texts as they are · words: their translations word by word, with noise · other:
    [B] the tag of the language that a text is not in.
    """

    clean: Source
    words: Source
    other: Tensor


def foreign_tokens(corpus: Corpus, size: int) -> NDArray[np.bool_]:
    """[2, size]: the tokens that are at least `FOREIGN` times as frequent in the other language as in this one."""
    rows = np.arange(len(corpus))
    tokens, lengths = corpus.gather(TOKENS, rows)
    languages = np.repeat(corpus.gather(LANGUAGE_COLUMN, rows)[0], lengths)
    counts = np.stack([np.bincount(tokens[languages == language], minlength=size) for language in (0, 1)])
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    foreign: NDArray[np.bool_] = (shares[::-1] >= FOREIGN * shares) & (shares[::-1] > 0)
    foreign[:, : EOS + 1] = False
    return foreign


def lay_out_tokens(tokens: NDArray[Any], lengths: Rows) -> Source:
    """Texts as a source, given all their tokens and their lengths."""
    (layout,) = lay_out(lengths[:, None])
    return Source(spread(tokens.astype(np.int64), layout), layout)
