"""Running text for language models: whole files as one long row of tokens, read in parallel streams or in windows.

The text is every line of every file with a line feed behind it, one after the other. Shapes: N tokens of the text · B rows ·
T tokens of a segment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.batch import PAD, Position, TextBatch
from weft.data.cache import find_or_build
from weft.data.formats import Pairs
from weft.data.lines import check_file, file_digest, read_lines
from weft.data.tokenizer import Tokenizer
from weft.errors import DataError

VERSION = 1
CHUNK = 1 << 14

Tokens = NDArray[Any]


class TextFile(Pairs):
    """A file of text, also .gz. To what reads pairs it is its lines, line ends included, each with nothing as its target."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if "," in path and not Path(path).exists():
            raise DataError(f"{path!r}: a language model learns from text, not from pairs; give each file by itself.")
        self.path = str(check_file(path))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((f"{line}\n", "") for line in read_lines(self.path))

    def digest(self) -> str:
        return file_digest(self.path)


class Text:
    """Tokens [N] on disk, of which only what is looked at is read; how many characters and bytes of UTF-8 they stand for."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "about.json").read_text())
        self.characters, self.bytes = int(about["characters"]), int(about["bytes"])
        self.tokens: Tokens = np.memmap(folder / "tokens", about["token"], "r", shape=(about["tokens"],))

    def __len__(self) -> int:
        return len(self.tokens)


def read_text(
    files: Sequence[TextFile], tokenizer: Tokenizer, *, folder: Path, progress: Callable[[int], None] | None = None
) -> Text:
    """The text of all files, out of the cache in `folder` or tokenised now; `progress` is told how many lines were read."""
    about = ["text", VERSION, [file.digest() for file in files], tokenizer.digest()]

    def build(aside: Path) -> None:
        _build(aside, files, tokenizer, progress)

    return find_or_build(folder, about, Text, build)


def _build(aside: Path, files: Sequence[TextFile], tokenizer: Tokenizer, progress: Callable[[int], None] | None) -> None:
    token = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    lines, read = (line for line, _ in chain.from_iterable(files)), 0
    counts = {"tokens": 0, "characters": 0, "bytes": 0}
    with open(aside / "tokens", "wb") as out:
        while chunk := list(islice(lines, CHUNK)):
            ids = np.fromiter(chain.from_iterable(tokenizer.encode_batch(chunk)), token)
            out.write(ids.data)
            counts["tokens"] += len(ids)
            counts["characters"] += sum(map(len, chunk))
            counts["bytes"] += sum(len(line.encode()) for line in chunk)
            read += len(chunk)
            if progress is not None:
                progress(read)
        out.flush()
        os.fsync(out.fileno())
    if counts["tokens"] < 2:
        raise DataError(f"{', '.join(file.name for file in files)}: there is no text to learn from.")
    (aside / "about.json").write_text(json.dumps({**counts, "token": token.name}, indent=1))


def keeps_lines(tokenizer: Tokenizer) -> bool:
    """Whether a text with line ends comes back with them."""
    return tokenizer.decode(tokenizer.encode("a\n")).endswith("\n")


@dataclass(frozen=True)
class Streams:
    """Training batches of a text that is read at `groups` × `rows` places at once, each going on where it was.

    A batch is the next segment of the streams of one group; groups take turns. The places move a little with every epoch, so
    that the text is not always cut at the same tokens; of an epoch, less than what one step of all streams reads is left out.
    """

    tokens: Tokens
    segment: int
    rows: int
    groups: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.tokens) <= self._step:
            raise DataError(
                f"the text has {len(self.tokens):,} tokens, too few for {self.rows * self.groups:,} streams with a segment of "
                f"{self.segment:,} each; lower train.batch_tokens, train.accumulate or task.segment, or give more text"
            )

    @property
    def _step(self) -> int:
        """Tokens that all streams read at one step."""
        return self.segment * self.rows * self.groups

    @property
    def steps(self) -> int:
        """Segments that each stream reads in an epoch. One is left over where there are two, for the places to move in."""
        return max(1, (len(self.tokens) - 1 - self.segment) // self._step)

    def stream(self, position: Position) -> Iterator[tuple[TextBatch, Position]]:
        """Batches without end, with each the position of the one after it."""
        epoch, _, number = position
        while True:
            following = number + 1
            after = (epoch, following) if following < self.steps * self.groups else (epoch + 1, 0)
            yield self._batch(epoch, number), Position(after[0], 0, after[1])
            epoch, number = after

    def _batch(self, epoch: int, number: int) -> TextBatch:
        step, group = divmod(number, self.groups)
        left = len(self.tokens) - 1 - self.steps * self._step
        moved = np.random.default_rng([self.seed, epoch]).integers(0, left + 1)
        streams = np.arange(group * self.rows, (group + 1) * self.rows)
        begins = moved + (streams * self.steps + step) * self.segment
        block = _block(self.tokens, begins.tolist(), self.segment + 1)
        inputs, labels = block[:, :-1].contiguous(), block[:, 1:].contiguous()
        return TextBatch(torch.from_numpy(streams), inputs, labels, group, fresh=step == 0)


def windows(tokens: Tokens, extent: int, stride: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of inputs and labels [B, T]: windows of `extent` tokens, each `stride` tokens further than the one before.

    In the first window every label counts, in the others those that none before it had: the last ones. Labels that do not count
    are PAD. The last window ends with the text.
    """
    known = len(tokens) - 1
    extent = min(extent, known)
    ends = [*range(extent, known, stride), known]
    counted = np.diff([0, *ends])
    for first in range(0, len(ends), rows):
        chosen = slice(first, first + rows)
        block = _block(tokens, [end - extent for end in ends[chosen]], extent + 1)
        new = torch.from_numpy(extent - counted[chosen])[:, None] <= torch.arange(extent)
        yield block[:, :-1], block[:, 1:].where(new, PAD)


def in_streams(tokens: Tokens, extent: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of inputs and labels [count, T] of `extent` tokens each, the rows of a block going on in those of the next.

    Every label of the text counts once; where a stream has ended before the others, there is PAD.
    """
    known = len(tokens) - 1
    length = -(-known // count)
    for first in range(0, length, extent):
        size = min(extent, length - first)
        inputs, labels = (torch.full((count, size), PAD) for _ in range(2))
        for row in range(count):
            begin, end = row * length + first, min(row * length + first + size, (row + 1) * length, known)
            if begin < end:
                part = _block(tokens, [begin], end - begin + 1)[0]
                inputs[row, : end - begin], labels[row, : end - begin] = part[:-1], part[1:]
        yield inputs, labels


def _block(tokens: Tokens, begins: Sequence[int], extent: int) -> Tensor:
    """[B, extent] ids from the given places on."""
    return torch.from_numpy(np.stack([tokens[begin : begin + extent] for begin in begins]).astype(np.int64))
