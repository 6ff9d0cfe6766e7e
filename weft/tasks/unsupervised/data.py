"""Monolingual texts of two languages, named `en=FILE`: one corpus of both, and batches of texts to restore.

Shapes: B texts · T tokens of a text with the tag of its language · S tokens of a source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
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

CORRELATED = 0.5
"""Correlation from which two texts count as translations of each other, line by line: that of how much longer or shorter each
line is than the one before it. Lengths themselves also correlate in texts that consist of the same kinds of parts."""
ENOUGH = 30
"""Lines from which a correlation tells something."""
NEAR = 0.05
"""Share of lines that one of two translations may lack, at its beginning or its end."""

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
    """Raises DataError if a text is empty, or if both are translations line by line or have a file in common.

    Reports if they may be translations in another order, since each sentence then has its partner, which real texts lack.
    """
    sizes = [np.fromiter((len(line.strip()) for line in text.lines()), np.float64) for text in (first, second)]
    for text, lengths in zip((first, second), sizes, strict=True):
        if not lengths.any():
            raise DataError(f"{text.name}: there is no text in it.")
    if {file_digest(path) for path in first.paths} & {file_digest(path) for path in second.paths}:
        raise DataError(f"{first.name} and {second.name} contain the same text: give each language a text of its own.")
    advice = "take one half of the sentences for one language and the other half for the other"
    shortest, longest = sorted(map(len, sizes))
    if shortest >= ENOUGH and longest - shortest <= NEAR * longest:
        for part in (slice(shortest), slice(-shortest, None)):
            changes = [np.diff(each[part]) for each in sizes]
            if min(each.std() for each in changes) > 0 and np.corrcoef(changes[0], changes[1])[0, 1] > CORRELATED:
                raise DataError(f"{first.name} and {second.name} look like translations of each other, line by line: {advice}.")
    if shortest < longest:
        return
    report(
        f"{first.name} and {second.name} have the same number of lines. If one is a translation of the other in another order, "
        f"results do not show what can be learnt without translations: {advice}."
    )


def disjoint_halves(pairs: Sequence[tuple[str, str]], seed: int = 1) -> tuple[list[str], list[str]]:
    """Sources of one random half of the pairs and targets of the other half: texts of which no sentence has its partner."""
    order = np.random.default_rng(seed).permutation(len(pairs)).tolist()
    half = len(order) // 2
    return [pairs[row][0] for row in order[:half]], [pairs[row][1] for row in order[half:]]


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
