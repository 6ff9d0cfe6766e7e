"""Tokenizers: their interface, and training, saving and loading those of a run.

Ids 0 to 3 are the special ids of `weft.data.batch` in every tokenizer. `encode` never returns BOS or EOS, which batches add.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from weft.config import registry
from weft.data.batch import SPECIALS, UNK
from weft.data.corpus import find_or_build
from weft.data.formats import Pairs
from weft.data.tokenizers.bpe_dropout import SampledSegmentations
from weft.errors import ConfigError, RunError
from weft.file_access import MALFORMED, replace_file, why_unreadable

Spec = Mapping[str, Any] | str
"""The tokenizer of a configuration: its kind, or a mapping with its options."""

RESERVED = len(SPECIALS)
SPACE = "▁"
"""Represents a space at the start of a piece."""

BYTE = re.compile("<0x[0-9A-F]{2}>")

SAMPLE = 1_000_000
"""Maximum number of texts that a vocabulary is trained on."""

VERSION = 1
"""Changes when training on the same texts gives a different vocabulary than before."""


@dataclass(frozen=True)
class InheritedTokenizers:
    """The tokenizers of the run that a new run starts from, and the most tokens to add to each."""

    source: Tokenizer
    target: Tokenizer
    extend: int = 0


@dataclass(frozen=True)
class ExtraWords:
    """Words besides those of the training data, the most important first, and the most to add to each tokenizer."""

    words: Sequence[str]
    extend: int

    def add_to(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer with the words that it does not know."""
        encoded = tokenizer.encode_batch(self.words)
        new = [word for word, ids in zip(self.words, encoded, strict=True) if ids == [UNK]]
        return tokenizer.extended(new[: self.extend], self.extend)


class Tokenizer(ABC):
    """Text to ids and back. The keyword-only parameters of a constructor are its options in a configuration."""

    suffix: ClassVar[str] = ".json"
    learns: bool = True
    """Whether training uses the texts."""

    added: Sequence[str] = ()
    """Tags and other tokens that no text contains; see `weft.data.tokenizers.added_tokens`."""

    @abstractmethod
    def train(self, texts: Iterable[str], size: int) -> None:
        """Trains a vocabulary of `size` ids, including the special ones, or of as many as the texts allow.

        The same texts always give the same vocabulary. They may be read more than once.
        """

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ids are left out."""

    @abstractmethod
    def piece(self, number: int) -> str:
        """A readable piece of text for an id that is not special."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ids."""

    @abstractmethod
    def dump(self) -> bytes:
        """The trained tokenizer as the bytes of a file."""

    @abstractmethod
    def restore(self, content: bytes) -> None:
        """Restores the result of `dump`. Raises ValueError for anything else."""

    def spelling(self, number: int) -> str:
        """The text that an id adds, including a space before it. A byte that is not a character by itself becomes half of a
        surrogate pair, as with Python's "surrogateescape"."""
        piece = self.piece(number)
        if BYTE.fullmatch(piece):
            return bytes([int(piece[3:5], 16)]).decode("utf-8", "surrogateescape")
        return piece.replace(SPACE, " ")

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that `encode` turns into UNK, in order; empty if a tokenizer cannot tell."""
        return []

    def named(self, words: Sequence[str]) -> Tokenizer:
        """A copy whose `decode` and `tokens` map the ids from `size` on to `words`; itself if it has no UNK."""
        return self

    def tags(self, text: str | None) -> list[int]:
        """The ids of tags, which are separated by spaces."""
        if text:
            raise ConfigError(f"the run was not trained with tags, so it has no tag {text!r}; leave it out")
        return []

    def starts(self) -> NDArray[np.bool_] | None:
        """Whether each id begins a word, if the ids of a word do not depend on its neighbours; else None."""
        return None

    def variants(self, strength: float) -> SampledSegmentations:
        """Random segmentations of words; `strength` is noise.subword in the configuration."""
        raise ConfigError("noise.subword: only the tokenizers bpe and unigram can draw segmentations; leave it out")

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable piece of text for each id, including special ones."""
        return [SPECIALS[i] if i < RESERVED else self.piece(i) for i in ids]

    def encode(self, text: str) -> list[int]:
        """The ids of one text."""
        return self.encode_batch([text])[0]

    def extended(self, texts: Iterable[str], more: int) -> Tokenizer:
        """A tokenizer with at most `more` further ids, for what the texts contain. All ids of this one keep their meaning."""
        raise ConfigError(f"start.extend: {type(self).__name__} has a fixed vocabulary; set it to 0")

    def shares_ids(self, other: Tokenizer) -> bool:
        """Whether every id means the same in the other tokenizer, so that both sides may share their embeddings."""
        return self is other

    def begin(self, tag: str | None) -> list[int]:
        """The ids that begin every translation with this tag (decode.tag), if it names the language of the target."""
        return []

    def spelled(self, piece: str) -> list[int]:
        """The ids that this tokenizer writes the piece of another one with, without UNK."""
        return [number for number in self.encode(piece) if number != UNK]

    def save(self, path: Path) -> None:
        """Writes one file atomically, so that a crash leaves no partial file."""
        replace_file(path, self.dump())

    @classmethod
    def load(cls, path: Path, **options: Any) -> Self:
        """Loads the tokenizer saved at `path`. The options must be those it was trained with."""
        tokenizer = cls(**options)
        try:
            tokenizer.restore(path.read_bytes())
        except OSError as error:
            raise RunError(f"{path}: the tokenizer cannot be read: {error.strerror or error}.") from None
        except MALFORMED as error:
            raise RunError(f"{path}: not a file of {cls.__name__}, or damaged: {error}.") from None
        return tokenizer

    def digest(self) -> str:
        """A hash of the tokenizer. Equal digests mean equal ids for every text."""
        return hashlib.blake2b(type(self).__name__.encode() + b"\0" + self.dump(), digest_size=16).hexdigest()


Start = InheritedTokenizers | ExtraWords
"""Vocabulary that tokenizers start from besides the training data."""


def train_tokenizers(
    spec: Spec,
    pairs: Sequence[Pairs],
    *,
    size: int,
    shared: bool = False,
    only: int | None = None,
    folder: Path | None = None,
    start: Start | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> tuple[Tokenizer, Tokenizer]:
    """Trains a tokenizer for the sources and one for the targets; the same object twice if they share a vocabulary.

    Of more than a million texts, those of every n-th pair are used, at most a million; `report` is told. With a cache
    `folder`, tokenizers are saved there and used again for the same texts and options. With `start`, they are those of another
    run.

    only: trains on the texts of one side, 0 for sources and 1 for targets; the tokenizer is at that place of the result
    """
    sides: list[tuple[int, ...]] = [(0, 1)] if shared else [(0,), (1,)] if only is None else [(only,)]
    options = registry.fill("weft.data:TOKENIZERS", spec, where="data.tokenizer")
    if isinstance(start, ExtraWords):
        if options["kind"] != "words":
            raise ConfigError("start.extend: words of start.vectors can be added to data.tokenizer: words only; set it to 0")
        source, target = train_tokenizers(options, pairs, size=size, shared=shared, only=only, folder=folder, report=report)
        longer = start.add_to(source)
        return longer, longer if source is target else start.add_to(target)
    if start is not None:
        source, target = start.source, start.target
        if not start.extend:
            return source, target
        if source is target:
            longer = source.extended(_Sample(pairs, [side for each in sides for side in each]), start.extend)
            return longer, longer
        return source.extended(_Sample(pairs, sides[0]), start.extend), target.extended(_Sample(pairs, sides[-1]), start.extend)

    def train() -> tuple[Tokenizer, Tokenizer]:
        trained: list[Tokenizer] = []
        for side in sides:
            tokenizer: Tokenizer = registry.build("weft.data:TOKENIZERS", options)
            sample = _Sample(pairs, side) if tokenizer.learns else None
            if sample is not None and sample.step > 1:
                report(f"the tokenizer is trained on the texts of one pair in {sample.step:,}, of {sample.count:,} texts")
            tokenizer.train(sample or [], size)
            trained.append(tokenizer)
        return trained[0], trained[-1]

    if folder is None or not registry.build("weft.data:TOKENIZERS", options).learns:
        return train()
    key = ["tokenizer", VERSION, version("tokenizers"), options, size, sides, [some.digest() for some in pairs]]
    return find_or_build(
        folder, key, lambda place: load_tokenizers(place, options), lambda aside: save_tokenizers(aside, *train())
    )


class _Sample:
    """The texts of the given sides, at most `SAMPLE`, evenly spaced over the pairs. Can be read repeatedly."""

    def __init__(self, pairs: Sequence[Pairs], sides: Sequence[int]) -> None:
        self.pairs, self.sides = pairs, sides
        self.count = sum(1 for some in pairs for _ in some) * len(sides)
        self.step = -(-self.count // SAMPLE) or 1

    def __iter__(self) -> Iterator[str]:
        chosen = islice(chain.from_iterable(self.pairs), 0, None, self.step)
        return (pair[side] for pair in chosen for side in self.sides)


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Writes the tokenizers into a run folder: one file if they are the same object, otherwise two."""
    if source is target:
        source.save(folder / f"tokenizer{source.suffix}")
    else:
        source.save(folder / f"tokenizer.source{source.suffix}")
        target.save(folder / f"tokenizer.target{target.suffix}")


def has_tokenizers(folder: Path) -> bool:
    """Whether a run folder has all files of `save_tokenizers`. A crash may leave only one of two."""
    names = {path.name.removesuffix(path.suffix) for path in folder.glob("tokenizer*")}
    return "tokenizer" in names or {"tokenizer.source", "tokenizer.target"} <= names


def load_tokenizers(folder: Path, spec: Spec) -> tuple[Tokenizer, Tokenizer]:
    """Loads the tokenizers that `save_tokenizers` wrote. `spec` is the tokenizer in the run's configuration."""
    options = registry.fill("weft.data:TOKENIZERS", spec, where="data.tokenizer")
    kind: type[Tokenizer] = registry.load(registry.find_table("weft.data:TOKENIZERS"), options.pop("kind"))
    shared = folder / f"tokenizer{kind.suffix}"
    paths = [shared] if shared.exists() else [folder / f"tokenizer.{side}{kind.suffix}" for side in ("source", "target")]
    if missing := [path.name for path in paths if not path.exists()]:
        raise RunError(f"{folder}: the tokenizer is missing: neither {shared.name} nor {' and '.join(missing)} was found.")
    for path in paths:
        if problem := why_unreadable(path):
            raise RunError(f"{path}: {problem}")
    loaded = [kind.load(path, **options) for path in paths]
    return loaded[0], loaded[-1]
