"""Tasks from lines of text to lines of text: their data."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from weft.batch import Batch, Position
from weft.data.batching import Batches, evaluation_batches
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs, open_pairs
from weft.data.held_out import HELD_OUT, split
from weft.data.tokenizer import Tokenizer, has_tokenizers
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.tasks.base import Task

DISTILLED = "distilled.jsonl"
"""The training pairs that a teacher translated, in the folder of a run; a file for `--data` like any other."""

PAUSE = 5.0
"""Seconds between messages about one piece of work."""


class TextTask(Task):
    """A task from lines of text to lines of text, which are scored against references.

    example: what to give as --data.
    sentences: which texts of a held-out pair may not occur in training: 0 for sources, 1 for targets.
    references: the validation pairs, as texts.
    """

    commands = ('weft translate {run} "a sentence"', "weft evaluate {run} --data SOURCE,TARGET")
    example: ClassVar[str]
    sentences: ClassVar[Sequence[int]] = (0, 1)
    references: Sequence[Pairs] = ()
    source: Tokenizer
    target: Tokenizer
    train: Corpus
    valid: Corpus | None = None

    def prepare(self) -> Sizes:
        data = self.config.data
        if not data.train:
            raise ConfigError(f"there is no training data: give --data {self.example}, or set data.train")
        train, valid = [[self.open(spec) for spec in specs] for specs in (data.train, data.valid)]
        new = not has_tokenizers(self.run)  # a run that is resumed keeps its data
        if new:
            for pairs in (*train, *valid):
                self.inspect(pairs, self.tell)
        if data.hold_out:
            train, held = self._hold_out(train)
            valid = valid or [held]
        self.references = valid
        if data.teacher:
            train = [self._distilled(train)]
        self.learn(train)
        sizes = self.reopen()
        if new and has_tokenizers(self.run) and self.source.learns:
            self.limit("data.vocabulary", self.vocabulary_size(sizes))
        self.check(valid)
        self.train = self._read(train, "training")
        self.valid = self._read(valid, "validation") if valid else None
        if len(self.train) < self.config.train.batch_tokens:  # each row has at least one token
            self.limit("train.batch_tokens", len(self.train) * int(self.train.lengths.max()))
        return sizes

    def vocabulary_size(self, sizes: Sizes) -> int:
        """The size of the larger tokenizer."""
        own = sizes.source if sizes.reads in ("tokens", "words", "sentences") else 0  # else features or channels
        return max(own, sizes.target, sizes.pieces)

    def identity(self) -> str:
        return self.train.folder.name

    def _hold_out(self, train: list[Pairs]) -> tuple[list[Pairs], Pairs]:
        """The training pairs without those that are held out for validation, and these."""
        new = not (self.run / HELD_OUT).exists()
        train, held = split(train, self.run, self.config.data.hold_out, self.config.train.seed, self.sentences)
        if new:
            count = sum(1 for _ in held)
            self.limit("data.hold_out", count)
            self.tell(f"held out {count:,} pairs for validation (seed {self.config.train.seed}): {self.run / HELD_OUT}")
        return train, held

    def _distilled(self, train: list[Pairs]) -> Pairs:
        """The training pairs with the teacher's translations as targets: those saved in the run, or made now."""
        file = self.run / DISTILLED
        if not file.exists():
            if self.teacher is None:
                raise ConfigError(f"data.teacher: {file} is missing, and no other run can be opened here; train the run again")
            self.teacher.translate(self.config, train, file, self.tell)
        return open_pairs(str(file))

    def learn(self, train: list[Pairs]) -> None:
        """Trains the tokenizers of a new run and saves them, so that resuming never changes them."""

    def check(self, valid: list[Pairs]) -> None:
        """Raises an error if the validation data does not suit the training data."""

    @abstractmethod
    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        """The corpus of these pairs, from the cache `folder` if it is there. `progress` receives the number of lines read."""

    @abstractmethod
    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> Batch:
        """The batch of some rows of a corpus; see `lay_out` for the options."""

    def batches(self, position: Position) -> Iterator[tuple[Any, Position]]:
        train = self.config.train
        # "auto" is resolved where the model is built; without a model, rows are padded.
        packed, rounded = train.packed is True, train.rounded is True
        batches = Batches(self.train.lengths, train.batch_tokens, seed=train.seed, packed=packed, rounded=rounded)
        for rows, following in batches.stream(position):
            yield self.collate(self.train, rows, packed=packed, budget=train.batch_tokens, rounded=rounded), following

    def validation(self, model: nn.Module) -> Iterator[Any]:
        """The validation data in padded batches, on the device of the model; each row once."""
        device = next(model.parameters()).device
        if self.valid is not None:
            for rows in evaluation_batches(self.valid, self.config.train.batch_tokens):
                yield self.collate(self.valid, rows).to(device)

    def _read(self, pairs: list[Pairs], what: str) -> Corpus:
        self.tell(f"reading {what} data: {', '.join(some.name for some in pairs)}")
        told = time.monotonic()

        def progress(read: int) -> None:
            nonlocal told
            if time.monotonic() - told > PAUSE:
                told = time.monotonic()
                self.tell(f"tokenising {what} data: {read:,} lines")

        corpus = self.encode(pairs, training=what == "training", folder=self.cache, progress=progress)
        self.tell(f"{what} data: {corpus.report.describe()}")
        return corpus
