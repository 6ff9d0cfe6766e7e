"""Monolingual texts of two languages, named `en=FILE`: one corpus of both, with their translations word by word, and batches.

Shapes: B texts · T tokens of a text with the tag of its language · S tokens of a source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.config.corpus_entries import TrainingCorpus, ValidationCorpus
from weft.data.batch import EOS, PAD, PairBatch, Position, Source
from weft.data.batching import Batches, lay_out, spread
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.formats import Pairs, Texts, combine
from weft.data.sentence_pairs import PairFilters, make_pairs, random_pairs
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.data.tokenizers.added_tokens import BLANK, ExtendedTokenizer, add_tokens
from weft.data.word_noise import CorpusNoise, NoisyEncoder, WordNoise, text_of
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.tasks.base import lower_setting
from weft.tasks.run_tokenizers import TokenizerPair, learn_tokenizer
from weft.tasks.translation.data import ParallelTexts

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

Translate = Callable[[Sequence[tuple[str, str]]], list[str]]
"""Texts with their languages to first translations into the other language."""


class Monolingual(Pairs):
    """Texts of one language, one per line: pairs of a line and the language. first, end: which lines, all by default."""

    def __init__(self, language: str, paths: Sequence[str], first: int = 0, end: int | None = None) -> None:
        super().__init__(", ".join(f"{language}={path}" for path in paths))
        self.language, self.paths = language, [str(check_file(path)) for path in paths]
        self.first, self.end, self.line_files = first, end, self.paths

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


class UnpairedTexts(ParallelTexts):
    """The data of a task on texts of two languages without translations. A row of the corpus is a text of either language.

    held, texts: the texts that are held out for validation, and those to train on, by language · marked: the tokenizer, with
    marks of the languages and of blanks · noise: the probabilities that a word is dropped and blanked out, and the most places
    by which it moves.
    """

    held: Sequence[Monolingual] = ()
    texts: Sequence[Monolingual] = ()
    marked: ExtendedTokenizer
    noise: tuple[float, float, int] = (0.0, 0.0, 0)

    def prepare(self) -> Sizes:
        data = self.config.data
        if not data.train:
            raise ConfigError(f"there is no training data: give --data {self.example}, or set data.train")
        if data.valid:
            raise ConfigError("data.valid: this task validates without translated text, on data.hold_out lines; remove it")
        if not all(isinstance(spec, str) for spec in data.train):
            raise ConfigError("data.train: the task unsupervised reads en=FILE and fr=FILE; name files without braces")
        both = open_languages(data.files, self.report)
        for text in both:
            if (count := sum(1 for _ in text.lines())) <= data.hold_out:
                raise ConfigError(
                    f"data.hold_out: {data.hold_out:,} lines of {text.name} are to be held out, which has {count:,}; lower it"
                )
        parts = [text.held_out(data.hold_out) for text in both]
        self.held, self.texts = [held for held, _ in parts], [rest for _, rest in parts]
        self.learn(list(self.texts))
        sizes = self.reopen()
        lower_setting(self, "data.vocabulary", self.target.size)
        corpus = TrainingCorpus(files=data.files)
        self.train = self._read(corpus, list(self.texts), "training")
        if data.hold_out:
            self.directions = [self._direction("held out", corpus, list(self.held))]
            self.valid = self.directions[0].corpus
        return sizes

    def tokenizers(self, train: list[Pairs]) -> TokenizerPair:
        own, _ = learn_tokenizer(self.config, train, self.report)
        return add_tokens(own, own, [*languages_of(self.config.data.files), BLANK], needs_tag=False)

    def reopen(self) -> Sizes:
        sizes = super().reopen()
        assert isinstance(self.source, ExtendedTokenizer)
        self.marked, self.languages = self.source, languages_of(self.config.data.files)
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

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        """The corpus of texts, pairs of a line and its language. Texts that are too long are left out.

        Columns: the tokens of each text, those of its translation word by word, both also as text, and its language's number.
        """
        tokenizer, max_length = self.marked, self.config.data.max_length
        translators, key = self.first_translations()
        filters, translate = PairFilters(max_length), cache(translators)

        def encode(pairs: Texts) -> tuple[Columns, dict[str, int]]:
            sides = [text for text, _ in pairs], translate()(pairs)
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
        encoding = Encoding(whole, encode, columns, [TOKENS, WORDS], unit="texts")
        return encoding.prepare(pairs, folder=self.cache, processes=self.config.data.processes, progress=progress)

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
        pairs = replace(pairs, labels=pairs.labels.masked_fill(hidden, PAD))
        clean, word_by_word, other = lay_out_tokens(plain, lengths), lay_out_tokens(words, counts), marks[1 - numbers]
        return UnpairedBatch(**vars(pairs), clean=clean, words=word_by_word, other=torch.from_numpy(other))

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

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, **layout: bool) -> UnpairedBatch:
        pairs = random_pairs((sizes.source - 3, sizes.target - 3), (length, length), rows)
        other = torch.full((rows,), sizes.target - 2)
        clean, words = (Source(pairs.source.values.clone(), pairs.source.layout) for _ in range(2))
        return UnpairedBatch(**vars(pairs), clean=clean, words=words, other=other)

    def first_translations(self) -> tuple[Callable[[], Translate], Any]:
        """Makes what translates texts at first, and plain data that identifies it; by default, texts stay as they are."""
        return lambda: lambda pairs: [text for text, _ in pairs], None
