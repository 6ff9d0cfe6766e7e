"""Monolingual texts of two languages, named `en=FILE`: one corpus of both, and batches of texts to restore.

Shapes: B texts · T tokens of a text with the tag of its language · S tokens of a source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.config.corpus_entries import ValidationCorpus, names
from weft.data.batch import EOS, PAD, PairBatch, Position, Source
from weft.data.batching import Batches, lay_out, spread
from weft.data.corpus import Columns, Corpus, Rows, ids_below, prepare
from weft.data.formats import Pairs, Texts, combine
from weft.data.sentence_pairs import PairFilters, make_pairs, random_pairs
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import BLANK, ExtendedTokenizer, add_tokens
from weft.data.word_noise import CorpusNoise, NoisyEncoder, WordNoise, text_of
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.tasks.tokenizer_setup import learn_tokenizer
from weft.tasks.translation.data import ParallelTexts

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


def _source(tokens: NDArray[Any], lengths: Rows) -> Source:
    (layout,) = lay_out(lengths[:, None])
    return Source(spread(tokens.astype(np.int64), layout), layout)


class UnpairedTexts(ParallelTexts):
    """The data of a task on texts of two languages. A tokenizer of both has a mark for each language, and the blank.

    noise: the probability that a word is dropped, the probability that it is blanked out, and the most places it moves.
    """

    texts: Sequence[Monolingual] = ()
    noise: tuple[float, float, int]

    def tokenizers(self, train: list[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        own = learn_tokenizer(self.config, train, self.report)
        return add_tokens(own, own, [*languages_of(names(self.config.data.train)), BLANK], needs_tag=False)

    def reopen(self) -> Sizes:
        sizes = super().reopen()
        assert isinstance(self.source, ExtendedTokenizer)
        self.marked, self.languages = self.source, languages_of(names(self.config.data.train))
        if [mark for mark in self.marked.added if mark in self.languages] != self.languages:
            trained = " and ".join(mark for mark in self.marked.added if mark != BLANK)
            raise ConfigError(
                f"data.train: the run was trained with texts of {trained}, in this order, not with texts of "
                f"{' and '.join(self.languages)}; name the same languages in the same order"
            )
        return sizes

    @property
    def tags(self) -> Sequence[str]:
        """None: decode.into names the target language, not a tag of the source."""
        return ()

    @property
    def marks(self) -> list[int]:
        """The ids of the two languages and of the blank."""
        return [self.marked.added_id(name) for name in (*self.languages, BLANK)]

    def word_translations(self) -> tuple[Callable[[], Translate], Any]:
        """Makes what translates texts word by word, and plain data that identifies it; by default, texts stay as they are."""
        return lambda: lambda text, language: text, None

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        """The corpus of texts, pairs of a line and its language. Texts that are too long are left out.

        Columns: the tokens of each text, those of its translation word by word, both also as text, and its language's number.
        """
        tokenizer, max_length = self.marked, self.config.data.max_length
        translators, key = self.word_translations()
        filters, translate = PairFilters(max_length), cache(translators)

        def encode(pairs: Texts) -> tuple[Columns, dict[str, int]]:
            sides = [text for text, _ in pairs], [translate()(*pair) for pair in pairs]
            ids = [tokenizer.encode_batch(side) for side in sides]
            kept, reasons = filters(pairs, *ids)
            columns: Columns = {LANGUAGE_COLUMN: [[self.languages.index(pairs[row][1])] for row in kept]}
            for name, side, tokens in zip((TOKENS, WORDS), sides, ids, strict=True):
                columns[name] = [[*tokens[row], EOS] for row in kept]
                columns[text_of(name)] = [np.frombuffer(side[row].encode(), np.uint8) for row in kept]
            return columns, reasons

        kind = ids_below(tokenizer.size)
        columns = {TOKENS: kind, WORDS: kind, text_of(TOKENS): "uint8", text_of(WORDS): "uint8", LANGUAGE_COLUMN: "uint8"}
        whole = ["unpaired", tokenizer.digest(), list(self.languages), max_length, key]
        sized = [TOKENS, WORDS]
        return prepare(pairs, whole, encode, columns, sized=sized, folder=self.cache, unit="texts", progress=progress)

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> UnpairedBatch:
        """A batch for validation, always with the same noise."""
        return self._collate(corpus, rows, np.random.default_rng(0))

    def _collate(self, corpus: Corpus, rows: Rows, draw: np.random.Generator) -> UnpairedBatch:
        """The batch of some rows. draw: from which the noise follows."""
        plain, lengths = corpus.gather(TOKENS, rows)
        noisy, sources = self._noising(corpus, TOKENS, rows, plain, lengths, draw)
        words, counts = self._noising(corpus, WORDS, rows, *corpus.gather(WORDS, rows), draw)
        numbers, marks = corpus.gather(LANGUAGE_COLUMN, rows)[0].astype(np.int64), np.asarray(self.marks[:2])
        labels = np.insert(plain.astype(np.int64), lengths.cumsum() - lengths, marks[numbers])
        pairs = make_pairs(noisy.astype(np.int64), labels, np.stack([sources, lengths + 1], 1), rows)
        hidden = torch.isin(pairs.labels, torch.from_numpy(marks))
        return UnpairedBatch(
            pairs.rows,
            pairs.source,
            pairs.target,
            pairs.target_layout,
            pairs.labels.masked_fill(hidden, PAD),
            _source(plain, lengths),
            _source(words, counts),
            torch.from_numpy(marks[1 - numbers]),
        )

    @cached_property
    def _noising(self) -> CorpusNoise:
        drop, blank, shuffle = self.noise
        both = WordNoise(drop, blank, shuffle), WordNoise(drop, 0.0, shuffle)
        first, second = (NoisyEncoder(self.marked, noise, blank=self.marks[2]) for noise in both)
        return CorpusNoise({TOKENS: first, WORDS: second}, self.config.data.max_length + 1)

    def batches(self, position: Position) -> Iterator[tuple[UnpairedBatch, Position]]:
        train, begin = self.config.train, position
        for rows, following in Batches(self.train.lengths, train.batch_tokens, seed=train.seed).stream(position):
            yield self._collate(self.train, rows, np.random.default_rng((train.seed, *begin))), following
            begin = following

    def describe(self) -> dict[str, Any]:
        return {"vocabulary": self.marked.size, "training texts": len(self.train)}

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> UnpairedBatch:
        pairs = random_pairs((sizes.source - 3, sizes.target - 3), (length, length), rows)
        other = torch.full((rows,), sizes.target - 2)
        clean, words = (Source(pairs.source.values.clone(), pairs.source.layout) for _ in range(2))
        return UnpairedBatch(pairs.rows, pairs.source, pairs.target, pairs.target_layout, pairs.labels, clean, words, other)
