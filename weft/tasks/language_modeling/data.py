"""Running text for language models: all lines of all files as one sequence of tokens, read in parallel streams or in windows.

Shapes: N tokens of the text · B rows · T tokens of a segment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batch import PAD, Position, TextBatch
from weft.data.corpus import Columns, Corpus, Encoding, Processes, cache_folder, ids_below
from weft.data.formats import Pairs, Texts
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import DataError

Tokens = NDArray[Any]


class LineFile(Pairs):
    """A file of text, also .gz, as pairs of a line and an empty target."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if "," in path and not Path(path).exists():
            raise DataError(f"{path!r}: text is needed here, not pairs; give each file by itself.")
        self.path = str(check_file(path))
        self.line_files = [self.path]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((line, "") for line in read_lines(self.path))

    def digest(self) -> str:
        return file_digest(self.path)


class TextFile(LineFile):
    """A file of running text, whose lines include a line feed."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((f"{line}\n", "") for line, _ in super().__iter__())


class Text:
    """Tokens [N] on disk, and the number of characters and UTF-8 bytes that they encode."""

    def __init__(self, corpus: Corpus) -> None:
        self.identity = corpus.folder.name
        self.tokens: Tokens = corpus.values["tokens"]
        self.characters, self.bytes = (int(corpus.values[name].sum()) for name in ("characters", "bytes"))

    def __len__(self) -> int:
        return len(self.tokens)


def read_text(files: Sequence[TextFile], tokenizer: Tokenizer, cache: str | None, processes: Processes = "auto") -> Text:
    """The text of all files, from the folder `cache` (data.cache) or tokenised now.

    Each row of the corpus is a block of many lines.
    """

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        lines = [line for line, _ in texts]
        ids = list(chain.from_iterable(tokenizer.encode_batch(lines)))
        sizes = {"characters": sum(map(len, lines)), "bytes": sum(len(line.encode()) for line in lines)}
        return {"tokens": [ids], **{name: [[size]] for name, size in sizes.items()}}, {}

    columns = {"tokens": ids_below(tokenizer.size), "characters": "uint64", "bytes": "uint64"}
    encoding = Encoding(["text", tokenizer.digest()], encode, columns, ["tokens"], unit="lines")
    corpus = encoding.prepare(files, folder=cache_folder(cache), processes=processes)
    text = Text(corpus)
    if len(text) < 2:
        raise DataError(f"{', '.join(file.name for file in files)}: there is no text to learn from.")
    return text


def keeps_lines(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer restores line ends."""
    return tokenizer.decode(tokenizer.encode("a\n")).endswith("\n")


@dataclass(frozen=True)
class Streams:
    """Training batches of a text, which `groups` × `rows` streams read in parallel.

    Each batch is the next segment of the streams of one group; groups take turns. Every epoch starts at another offset, so that
    the text is cut at different tokens. An epoch leaves out fewer tokens than all streams read in one step.
    """

    tokens: Tokens
    segment: int
    rows: int
    groups: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.tokens) <= self._step:
            raise DataError(
                f"the text has {len(self.tokens):,} tokens, too few for segments of {self.segment:,} in "
                f"{self.rows * self.groups:,} stream(s); lower train.accumulate or task.segment, or give more text"
            )

    @property
    def _step(self) -> int:
        """Tokens that all streams read in one step."""
        return self.segment * self.rows * self.groups

    @property
    def steps(self) -> int:
        """Segments per stream and epoch. If there are two or more, one is left out to make room for the offset."""
        return max(1, (len(self.tokens) - 1 - self.segment) // self._step)

    def stream(self, position: Position) -> Iterator[tuple[TextBatch, Position]]:
        """Endless batches from `position` on, each with the position of the next."""
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


def random_streams(length: int, rows: int, vocabulary: int) -> TextBatch:
    """A batch of random streams, each with a segment of `length` tokens."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(RESERVED, max(RESERVED + 1, vocabulary), (rows * length + 1,), generator=generator).numpy()
    return next(Streams(tokens, length, rows, 1, 0).stream(Position()))[0]


def windows(tokens: Tokens, extent: int, stride: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of inputs and labels [B, T]: windows of `extent` tokens, each `stride` tokens after the one before.

    The last window ends with the text. Labels of earlier windows are PAD, so that every label counts once.
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
    """Blocks of inputs and labels [count, T] of `extent` tokens; each row continues in the next block.

    Every label of the text counts once. Streams that end before the others are padded.
    """
    known = len(tokens) - 1
    length = -(-known // count)
    sides = [np.pad(side, (0, count * length - known)).reshape(count, length) for side in (tokens[:-1], tokens[1:])]
    for first in range(0, length, extent):
        inputs, labels = (torch.from_numpy(side[:, first : first + extent].astype(np.int64)) for side in sides)
        yield inputs, labels


def _block(tokens: Tokens, begins: Sequence[int], extent: int) -> Tensor:
    """[B, extent] ids from the given positions on."""
    return torch.from_numpy(np.stack([tokens[begin : begin + extent] for begin in begins]).astype(np.int64))
