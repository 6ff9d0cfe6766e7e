"""Texts in a cipher: windows of a running text, and ciphers that replace each symbol by another.

Symbols are the ids of a tokenizer from UNK on, so that symbol 0 is UNK, which takes part in the cipher like any other.

Shapes: B windows · T symbols of a window · V symbols of the vocabulary · P places after which a cipher repeats.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batch import SPECIALS, UNK, Batch
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.data_format import DataFormat, accept_all
from weft.data.formats import Pairs, Texts
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import ConfigError, DataError
from weft.tasks.language_modeling.data import LineFile

Kind = Literal["shift", "vigenere", "substitution"]
Split = Literal["halves", "alternate"]
Symbols = NDArray[np.int64]
Progress = Callable[[int], None]
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


def prepare_windows(
    files: Sequence[Pairs], tokenizer: Tokenizer, extent: int, *, least: int, folder: Path, progress: Progress | None = None
) -> Corpus:
    """Windows of `extent` symbols, one after the other; column `symbols`. The end of each block of lines is left out.

    Raises DataError if there are fewer than `least`.
    """

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        ids = np.array(list(chain.from_iterable(tokenizer.encode_batch([text for text, _ in texts]))), np.int64) - UNK
        return {"symbols": list(ids[: len(ids) // extent * extent].reshape(-1, extent))}, {}

    short = f"too little text for {'one window' if least == 1 else f'{least} windows'} of {extent} symbols; give a longer text."
    key, columns = ["windows", tokenizer.digest(), extent], {"symbols": ids_below(tokenizer.size)}
    encoding = Encoding(key, encode, columns, ["symbols"], unit="lines", made="windows", none=short)
    corpus = encoding.prepare(files, folder=folder, progress=progress)
    if len(corpus) < least:
        raise DataError(f"{', '.join(file.name for file in files)}: {short} {corpus.report.describe()}")
    return corpus


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
