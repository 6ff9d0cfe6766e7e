"""Added tokens, which no text contains, such as the tag of a target language, or the blank in place of a word."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.config.registry import suggest
from weft.data.tokenizers import Spec, Tokenizer, load_tokenizers, save_tokenizers
from weft.data.tokenizers.bpe_dropout import SampledSegmentations
from weft.errors import ConfigError, RunError
from weft.file_access import MALFORMED, replace_file

FILE = "marks.json"
BLANK = "blank"
"""The token in place of a word that noise has blanked out."""


class ExtendedTokenizer(Tokenizer):
    """Another tokenizer with ids for added tokens from its size on.

    needs_tag: whether every source begins with a tag · directed: tags are two languages, "en de": the first begins the
    source, the second the translation.
    """

    def __init__(self, inner: Tokenizer, added: Sequence[str], *, needs_tag: bool = False, directed: bool = False) -> None:
        self.inner, self.added, self.needs_tag, self.directed = inner, tuple(added), needs_tag, directed
        self.learns = inner.learns
        self._first = inner.size

    def added_id(self, name: str) -> int:
        """The id of an added token."""
        if name not in self.added:
            raise ConfigError(f"the run was not trained with the tag {name!r}; {suggest(name, set(self.added) - {BLANK})}")
        return self._first + self.added.index(name)

    def tags(self, text: str | None) -> list[int]:
        if self.needs_tag and not text:
            known = ", ".join(name for name in self.added if name != BLANK)
            raise ConfigError(
                f"the run was trained with tags ({known}): say which one to use, with --tag, decode.tag or the tag of "
                "an entry of data.valid"
            )
        names = (text or "").split()
        if self.directed and len(names) not in (0, 2):
            raise ConfigError(f"the tag {text!r}: this model needs two languages, that of the source and that of the target")
        return [self.added_id(name) for name in (names[:1] if self.directed else names)]

    def begin(self, tag: str | None) -> list[int]:
        return [self.added_id(name) for name in (tag or "").split()[1:]] if self.directed else []

    def shares_ids(self, other: Tokenizer) -> bool:
        if not isinstance(other, ExtendedTokenizer):
            return False
        return self.added == other.added and self.inner.shares_ids(other.inner)

    def train(self, texts: Iterable[str], size: int) -> None:
        self.inner.train(texts, size)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.inner.encode_batch(texts)

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode([token for token in ids if not self._is_added(token)])

    def piece(self, number: int) -> str:
        return f"<{self.added[number - self._first]}>" if self._is_added(number) else self.inner.piece(number)

    def spelling(self, number: int) -> str:
        return "" if self._is_added(number) else self.inner.spelling(number)

    def unknown(self, text: str) -> list[str]:
        return self.inner.unknown(text)

    def extended(self, texts: Iterable[str], more: int) -> Tokenizer:
        """Added tokens stay behind all other ids, so that their ids change."""
        inner = self.inner.extended(texts, more)
        return ExtendedTokenizer(inner, self.added, needs_tag=self.needs_tag, directed=self.directed)

    def spelled(self, piece: str) -> list[int]:
        return self.inner.spelled(piece)

    def starts(self) -> NDArray[np.bool_] | None:
        inner = self.inner.starts()
        return None if inner is None else np.pad(inner, (0, len(self.added)), constant_values=True)

    def variants(self, strength: float) -> SampledSegmentations:
        return self.inner.variants(strength)

    def named(self, words: Sequence[str]) -> Tokenizer:
        other = copy(self)
        other.inner = self.inner.named([*self.added, *words])
        return other

    @property
    def size(self) -> int:
        return self._first + len(self.added)

    def dump(self) -> bytes:
        return self.inner.dump()

    def restore(self, content: bytes) -> None:
        self.inner.restore(content)

    def digest(self) -> str:
        return hashlib.blake2b(json.dumps([self.inner.digest(), *self.added]).encode(), digest_size=16).hexdigest()

    def _is_added(self, token: int) -> bool:
        return self._first <= token < self.size


def add_tokens(
    source: Tokenizer, target: Tokenizer, tokens: Sequence[str], *, needs_tag: bool, directed: bool = False
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers with further tokens, which the source has, and the target if it has the same ids."""
    inner, other = (each.inner if isinstance(each, ExtendedTokenizer) else each for each in (source, target))
    directed = directed or (isinstance(source, ExtendedTokenizer) and source.directed)
    every = [*source.added, *(token for token in tokens if token not in source.added)]
    if not every:
        return source, target
    extended = ExtendedTokenizer(inner, every, needs_tag=needs_tag, directed=directed)
    if source is target or not inner.shares_ids(other):
        return extended, extended if source is target else target
    return extended, ExtendedTokenizer(other, every, needs_tag=needs_tag, directed=directed)


def save_extended(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Writes tokenizers and their added tokens into a run folder; see `save_tokenizers`."""
    if isinstance(source, ExtendedTokenizer):
        content = {"marks": source.added, "needs_tag": source.needs_tag}
        if source.directed:
            content["directed"] = True
        replace_file(folder / FILE, json.dumps(content) + "\n")
    save_tokenizers(folder, *(each.inner if isinstance(each, ExtendedTokenizer) else each for each in (source, target)))


def load_extended(folder: Path, spec: Spec) -> tuple[Tokenizer, Tokenizer]:
    """Loads what `save_extended` wrote; see `load_tokenizers`."""
    source, target = load_tokenizers(folder, spec)
    if not (folder / FILE).exists():
        return source, target
    try:
        saved = json.loads((folder / FILE).read_text("utf-8"))
        marks = saved["marks"]
        if not isinstance(marks, list) or not all(isinstance(mark, str) for mark in marks):
            raise ValueError("the marks are no list of texts")
        return add_tokens(source, target, marks, needs_tag=saved["needs_tag"], directed=saved.get("directed", False))
    except (OSError, *MALFORMED) as error:
        raise RunError(f"{folder / FILE}: the added tokens cannot be read: {error}") from None
