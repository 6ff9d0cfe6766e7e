"""Texts in a cipher: windows of a running text, and ciphers that replace each symbol by another.

Symbols are the ids of a tokenizer from UNK on, so that symbol 0 is UNK, which takes part in the cipher like any other.

Shapes: B windows · T symbols of a window · V symbols of the vocabulary · P places after which a cipher repeats.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.batch import SPECIALS, UNK, Batch, Position
from weft.data.batching import Batches
from weft.data.column_checks_and_listed_files import DataFormat, accept_all
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.formats import Pairs, Texts
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.tasks.corpus_task import CorpusTask, Direction
from weft.tasks.language_modeling.data import LineFile

Kind = Literal["shift", "vigenere", "substitution"]
Split = Literal["halves", "alternate"]
Symbols = NDArray[np.int64]
SIDES = ("plain", "cipher")
LEAST = -8.0
"""The logit of symbols with very different frequencies, which evidence can still overcome."""
PRIVATE = range(0xE000, 0xF900)
"""Characters without a meaning of their own (Unicode's private use area)."""


@dataclass(frozen=True)
class Cipher:
    """Replaces symbol v at place t by table[t mod P, v]. table: [P, V], a permutation in each row."""

    table: Symbols

    def __call__(self, symbols: Symbols) -> Symbols:
        """Texts [..., T] in the cipher, each from place 0 on."""
        places = np.arange(symbols.shape[-1]) % len(self.table)
        enciphered: Symbols = self.table[places, symbols]
        return enciphered


def make_cipher(kind: Kind, key: Sequence[int], size: int) -> Cipher:
    """A cipher of `size` symbols. The numbers of the key shift symbols in turn; of a substitution, they are the seed."""
    if kind == "substitution":
        return Cipher(np.random.default_rng(list(key)).permutation(size)[None])
    return Cipher((np.arange(size) + np.array(key)[:, None]) % size)


@dataclass(frozen=True)
class CipherBatch(Batch):
    """Windows [B, T] of plain text, and windows in the cipher: other ones in training, the same ones in validation."""

    plain: Tensor
    cipher: Tensor


class Alphabet:
    """Symbols as texts, in which each symbol, also UNK, is one unit. unknown: the unit of UNK.

    separator: what stands between units: a space between words, nothing between characters.
    """

    def __init__(self, tokenizer: Tokenizer, separator: str) -> None:
        self.tokenizer, self.separator = tokenizer, separator
        known = tokenizer.tokens(range(RESERVED, tokenizer.size))
        usual = SPECIALS[UNK] if separator else "\N{REPLACEMENT CHARACTER}"
        # A text may contain the usual mark itself.
        self.unknown = next(mark for mark in (usual, *map(chr, PRIVATE)) if mark not in known)
        self.units = [self.unknown, *known]
        self._symbols = {unit: [symbol] for symbol, unit in enumerate(self.units)}

    def tokens(self, symbols: Sequence[int]) -> list[str]:
        """Symbols as they are shown."""
        return self.tokenizer.tokens([symbol + UNK for symbol in symbols])

    def write(self, symbols: Sequence[int]) -> str:
        """Symbols as a text that `read` reads back."""
        return self.separator.join(self.units[symbol] for symbol in symbols)

    def read(self, text: str) -> list[int]:
        """The symbols of a text. The tokenizer divides what is not a unit, such as a word with a comma."""
        units = text.lower().split() if self.separator else text.lower()
        return [symbol for unit in units for symbol in self._symbols.get(unit) or self._divided(unit)]

    def _divided(self, text: str) -> list[int]:
        return [number - UNK for number in self.tokenizer.encode(text)]


class CipherText(LineFile):
    """A file of text in lower case, whose lines end with a space."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((f"{line.lower()} ", "") for line, _ in super().__iter__())


FORMAT = DataFormat(CipherText, check=accept_all)


def windows(corpus: Corpus, rows: Rows, extent: int) -> Symbols:
    """Windows [B, T] of a corpus."""
    return corpus.gather("symbols", rows)[0].astype(np.int64).reshape(-1, extent)


def divide_windows(count: int, split: Split) -> tuple[Rows, Rows]:
    """The windows, of `count`, that are plain, and as many others that are in the cipher."""
    every = np.arange(count // 2)
    return (every, count // 2 + every) if split == "halves" else (2 * every, 2 * every + 1)


def compare_frequencies(plain: Symbols, cipher: Symbols, size: int, places: int, spread: float) -> Tensor:
    """How likely plain symbols [V] become symbols of the cipher [V] at each place [P], as logits [P, V, V].

    A cipher keeps frequencies, so the logarithms of two frequencies differ by a normal distribution of width `spread`.
    """
    ours = _log_frequencies(plain, size)
    theirs = np.stack([_log_frequencies(cipher[:, place::places], size) for place in range(places)])
    apart = (ours[:, None] - theirs[:, None, :]) / spread
    return torch.from_numpy(np.maximum(-(apart**2) / 2, LEAST)).float()


def _log_frequencies(symbols: Symbols, size: int) -> NDArray[np.float64]:
    counts = np.bincount(symbols.ravel(), minlength=size) + 1.0  # or a symbol that never occurs would have none
    frequencies: NDArray[np.float64] = np.log(counts / counts.sum())
    return frequencies


def make_batch(rows: Rows, plain: Symbols, cipher: Symbols) -> CipherBatch:
    return CipherBatch(torch.from_numpy(rows), torch.from_numpy(plain), torch.from_numpy(cipher))


def check_tokenizer(spec: Mapping[str, Any]) -> None:
    """Raises an error if texts could not be divided into the same symbols again."""
    if spec["kind"] != "words" and (spec["kind"] != "characters" or spec["byte_fallback"]):
        raise ConfigError(
            f"data.tokenizer: {dict(spec)}: the symbols of a cipher are whole words or characters; use {{kind: words}}, "
            "{kind: words, punctuation: false} or {kind: characters, byte_fallback: false}"
        )


class CipherTexts(CorpusTask):
    """The data of a task on ciphers: windows of a running text, half of them plain and the others in the cipher.

    kind, key: of the cipher, see `make_cipher` · extent: symbols of a window · split: which windows are plain.
    """

    example = "text.txt"
    sentences = (0,)
    tokenized = 0
    data_format = FORMAT
    kind: Kind
    key: Sequence[int]
    extent: int
    split: Split

    def reopen(self) -> Sizes:
        super().reopen()
        self.alphabet = Alphabet(self.source, "" if self.config.data.tokenizer["kind"] == "characters" else " ")
        self.cipher = make_cipher(self.kind, self.key, len(self.symbols))
        if (self.cipher.table == self.symbols).all():
            raise ConfigError(f"task.key: {self.key} changes none of the {len(self.symbols)} symbols; choose another key")
        return Sizes(len(self.symbols), self.extent)

    def vocabulary_size(self, sizes: Sizes) -> int:
        return self.source.size

    @property
    def symbols(self) -> range:
        """The symbols: UNK and all units of the tokenizer."""
        return range(self.source.size - UNK)

    def placeholder_sizes(self) -> Sizes:
        return Sizes(8, self.extent)

    def examples(self, data: Sequence[str], report: Callable[[str], None] = lambda message: None) -> list[tuple[str, str]]:
        """Windows of the data in the cipher, each with its plain text."""
        corpus = self.encode(
            [self.data_format.open(spec) for spec in data], training=False, folder=self.cache, progress=lambda read: None
        )
        plain = windows(corpus, np.arange(len(corpus)), self.extent)
        texts = zip(self.cipher(plain).tolist(), plain.tolist(), strict=True)
        return [(self.alphabet.write(cipher), self.alphabet.write(window)) for cipher, window in texts]

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        """Windows of `extent` symbols, one after the other; column `symbols`. The end of each block of lines is left out."""
        tokenizer, extent, least = self.source, self.extent, len(SIDES) if training else 1

        def cut(texts: Texts) -> tuple[Columns, dict[str, int]]:
            ids = np.array(list(chain.from_iterable(tokenizer.encode_batch([text for text, _ in texts]))), np.int64) - UNK
            return {"symbols": list(ids[: len(ids) // extent * extent].reshape(-1, extent))}, {}

        needed = "one window" if least == 1 else f"{least} windows"
        short = f"too little text for {needed} of {extent} symbols; give a longer text."
        key, columns = ["windows", tokenizer.digest(), extent], {"symbols": ids_below(tokenizer.size)}
        encoding = Encoding(key, cut, columns, ["symbols"], unit="lines", made="windows", none=short)
        corpus = encoding.prepare(pairs, folder=folder, processes=self.config.data.processes, progress=progress)
        if len(corpus) < least:
            raise DataError(f"{', '.join(file.name for file in pairs)}: {short} {corpus.report.describe()}")
        return corpus

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> CipherBatch:
        """Windows, and the same windows in the cipher, for validation."""
        plain = windows(corpus, rows, self.extent)
        return make_batch(rows, plain, self.cipher(plain))

    def batches(self, position: Position) -> Iterator[tuple[CipherBatch, Position]]:
        """Plain windows, and other ones in the cipher."""
        lengths, train = self.train.lengths[: len(self.train) // 2], self.config.train
        for rows, following in Batches(lengths, train.batch_tokens, seed=train.seed).stream(position):
            plain, hidden = (windows(self.train, side[rows], self.extent) for side in self.sides)
            yield make_batch(rows, plain, self.cipher(hidden)), following

    @cached_property
    def sides(self) -> tuple[Rows, Rows]:
        """The windows of the training text that are plain, and those that are in the cipher."""
        return divide_windows(len(self.train), self.split)

    def validation(self, model: nn.Module, directions: Sequence[Direction] | None = None) -> Iterator[CipherBatch]:
        """Windows of the validation data or, if there is none, of the training text that are in the cipher."""
        train, device = self.config.train, next(model.parameters()).device
        corpus, every = (self.train, self.sides[1]) if self.valid is None else (self.valid, np.arange(len(self.valid)))
        count = min(len(every), train.validate_sentences or len(every))
        some = every[np.arange(count) * len(every) // count]  # from all over the text, whose kind may change
        for rows in np.array_split(some, min(count, -(-count * self.extent // train.batch_tokens))):
            yield self.collate(corpus, rows).to(device)

    def describe(self) -> dict[str, Any]:
        return {"symbols": len(self.symbols), "training texts": len(self.train)}

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, **layout: bool) -> CipherBatch:
        plain, cipher = np.random.default_rng(length).integers(0, sizes.source, (2, rows, self.extent))
        return make_batch(np.arange(rows), plain, cipher)
