"""Existing SentencePiece models, with their pieces numbered after the special ids of weft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from weft.data.batch import UNK
from weft.data.text_lines import check_file
from weft.data.tokenizers.base import RESERVED, Tokenizer
from weft.errors import ConfigError, DataError
from weft.version import install


class SentencePieceTokenizer(Tokenizer):
    """An existing SentencePiece model (Kudo & Richardson, 2018, arXiv:1808.06226), copied into the run.

    The special ids of weft replace its control and unknown pieces; all other pieces keep their order.

    model  path of the .model file; a trained run uses its own copy
    """

    suffix: ClassVar[str] = ".model"
    learns = False

    def __init__(self, *, model: str) -> None:
        self.model = model
        self._content = b""
        self._inner: Any = None

    def train(self, texts: Iterable[str], size: int) -> None:
        """Reads the model file. The texts and the size are ignored: the model determines the vocabulary."""
        path = check_file(Path(self.model))
        try:
            self.restore(path.read_bytes())
        except ValueError as error:
            raise DataError(f"{path}: not a SentencePiece model: {error}.") from None

    def restore(self, content: bytes) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise ConfigError(f"the package `sentencepiece` is missing: {install('sentencepiece')}") from None
        inner = SentencePieceProcessor()
        try:
            inner.LoadFromSerializedProto(content)
        except RuntimeError:
            raise ValueError("its content cannot be parsed") from None
        if inner.get_piece_size() == 0:
            raise ValueError("it is empty")
        self._inner, self._content = inner, content
        numbers = range(inner.get_piece_size())
        pieces = [i for i in numbers if not (inner.IsControl(i) or inner.IsUnknown(i) or inner.IsUnused(i))]
        self._outer = np.full(len(numbers), UNK, np.int64)
        self._outer[pieces] = np.arange(len(pieces)) + RESERVED
        self._pieces = pieces

    def dump(self) -> bytes:
        return self._content

    @property
    def size(self) -> int:
        return RESERVED + len(self._pieces)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._outer[ids].tolist() if ids else [] for ids in self._inner.encode(list(texts), out_type=int)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode([self._pieces[i - RESERVED] for i in ids if i >= RESERVED]))

    def piece(self, number: int) -> str:
        return str(self._inner.id_to_piece(self._pieces[number - RESERVED]))
