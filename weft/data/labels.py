"""Labels in the place of target texts, and texts of which only the beginning is read: what classification needs of data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice

from weft.batch import SPECIALS
from weft.data.formats import Pairs
from weft.data.tokenizer import RESERVED, Tokenizer
from weft.errors import DataError

SHOWN = 10
"""The most labels that a message names."""


class Labels(Tokenizer):
    """One id for each label, in alphabetical order. White space around a label does not count."""

    def __init__(self) -> None:
        self._set([])

    def _set(self, names: list[str]) -> None:
        self.names = names
        self.ids = {name: number for number, name in enumerate(names, start=RESERVED)}

    def train(self, texts: Iterable[str], size: int) -> None:
        """Every label there is; the size follows from them."""
        self._set(sorted({text.strip() for text in texts} - {""}))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """A blank label has no id. Raises DataError for a label that is not known."""
        return [[self._find(text.strip())] if text.strip() else [] for text in texts]

    def _find(self, name: str) -> int:
        if name not in self.ids:
            raise DataError(f"there is no label {name!r} in the training data; {self.describe()}")
        return self.ids[name]

    def check(self, pairs: Pairs) -> None:
        """Raises DataError at the first pair whose label is not known."""
        for number, (_, label) in enumerate(pairs, start=1):
            try:
                self.encode(label)
            except DataError as error:
                raise DataError(f"{pairs.name}, pair {number:,}: {error}") from None

    def describe(self) -> str:
        """The labels as half a sentence."""
        shown = ", ".join(repr(name) for name in islice(self.names, SHOWN))
        return f"known are {shown}" + (f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else "")

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.names[i - RESERVED] for i in ids if i >= RESERVED)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [SPECIALS[i] if i < RESERVED else self.names[i - RESERVED] for i in ids]

    @property
    def size(self) -> int:
        return RESERVED + len(self.names)

    def dump(self) -> bytes:
        return json.dumps({"labels": self.names}, ensure_ascii=False, indent=0).encode()

    def restore(self, content: bytes) -> None:
        saved = json.loads(content)
        if not isinstance(saved, dict) or not isinstance(saved.get("labels"), list):
            raise ValueError("it holds no labels")
        self._set([str(name) for name in saved["labels"]])


class Beginnings(Tokenizer):
    """Another tokenizer, of whose ids only the first `longest` of a text are kept."""

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self.tokenizer, self.longest = tokenizer, longest

    def train(self, texts: Iterable[str], size: int) -> None:
        self.tokenizer.train(texts, size)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids[: self.longest] for ids in self.tokenizer.encode_batch(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return self.tokenizer.tokens(ids)

    @property
    def size(self) -> int:
        return self.tokenizer.size

    def dump(self) -> bytes:
        """The longest length counts: it changes what a text is to the model."""
        return f"{self.longest}\n".encode() + self.tokenizer.dump()

    def restore(self, content: bytes) -> None:
        longest, _, rest = content.partition(b"\n")
        self.longest = int(longest)
        self.tokenizer.restore(rest)
