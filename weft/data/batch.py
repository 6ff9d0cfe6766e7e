"""Batches: token ids with a `Layout` that says which of them belong together.

Shapes: B rows · T or S positions. In a padded batch each row is a sentence. A packed batch is a single row of many sentences,
each with its segment number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from weft.errors import ConfigError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
"""The special ids, which are the same in every tokenizer."""

T = TypeVar("T")

NO_LABEL = -100
"""The label of a row that only fills up a batch; torch ignores it by default."""

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


def power_of_two(least: int) -> int:
    """The smallest power of two that is at least `least`."""
    return 1 << (least - 1).bit_length()


def pad(rows: Sequence[Sequence[int]], multiple: int = 1) -> Tensor:
    """Rows of ids as one block, padded with PAD to a multiple of `multiple` tokens."""
    extent = -(-max(len(row) for row in rows) // multiple) * multiple
    return torch.tensor([[*row, *[PAD] * (extent - len(row))] for row in rows])


def unpad(block: Tensor, layout: Layout | None) -> list[list[int]]:
    """The rows of a padded block of ids [B, T], without padding."""
    lengths = [block.size(1)] * block.size(0) if layout is None else layout.lengths.tolist()
    return [row[:length] for row, length in zip(block.tolist(), lengths, strict=True)]


class Position(NamedTuple):
    """A place in the endless stream of training batches, from which training can resume."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


@dataclass(frozen=True)
class TensorFields:
    """A frozen dataclass whose fields are tensors, other classes of this kind, and plain values."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with every tensor changed, including those of its parts."""
        changed: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, Tensor):
                changed[part.name] = change(value)
            elif isinstance(value, TensorFields):
                changed[part.name] = value._map(change)
        return replace(self, **changed)

    def _leaves(self) -> Iterator[Any]:
        """The tensors and plain values of all fields and their parts, in order."""
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, TensorFields):
                yield from value._leaves()
            elif part.init:
                yield value


@dataclass(frozen=True)
class Layout(TensorFields):
    """The tokens of a `[B, T]` block that are real, and those that belong together.

    A query may attend to a key if their segments are equal and not 0. Padding is always on the right.

    segments   [B, T] int32, 0 where there is no token. Padded: 1 on real tokens. Packed: sentences 1…n, the same number
               in source and target.
    positions  [B, T] int64, counted from 0 inside each sentence.
    offsets    packed only, [m + 1] int32 with m > n, as fused kernels need it: where each of the n sentences begins, then the
               padding in pieces no longer than `longest`, then empty pieces.
    longest    at least the length of the longest sentence (an int known on the host).
    known      padded only: the lengths of rows; None if only the device knows them, so that batches of one shape can replay
               the same work.
    graph      padded only, [B, T, T] bool: the neighbours of each token, if the data has edges; attentions whose
               `reads_graph` is true look at them alone.
    """

    segments: Tensor
    positions: Tensor
    offsets: Tensor | None = None
    longest: int = 0
    known: tuple[int, ...] | None = None
    graph: Tensor | None = None
    _memory: dict[Hashable, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached result of `make`, for values that every layer derives from a layout."""
        if key not in self._memory:
            self._memory[key] = make()
        value: T = self._memory[key]
        return value

    @property
    def mask(self) -> Tensor:
        """[B, T] bool: True on real tokens."""
        return self.segments > 0

    @property
    def packed(self) -> bool:
        return self.offsets is not None

    @property
    def lengths(self) -> Tensor:
        """[B] number of real tokens per row."""
        return self.mask.sum(1)

    @property
    def counts(self) -> tuple[int, ...]:
        """The lengths on the host, without a synchronisation if they are known."""
        return tuple(self.lengths.tolist()) if self.known is None else self.known

    @property
    def shortest(self) -> int:
        """A lower bound of the lengths that the host knows."""
        return min(self.known, default=0) if self.known else 0

    def select(self, rows: Tensor) -> Layout:
        """The layout of the given rows (of a padded batch)."""
        graph = None if self.graph is None else self.graph[rows]
        return replace(self, segments=self.segments[rows], positions=self.positions[rows], known=None, graph=graph)

    def repeat(self, times: int) -> Layout:
        """Each row (of a padded batch) `times` times, one after the other."""
        known = None if self.known is None else tuple(count for count in self.known for _ in range(times))
        segments, positions = (each.repeat_interleave(times, 0) for each in (self.segments, self.positions))
        graph = None if self.graph is None else self.graph.repeat_interleave(times, 0)
        return replace(self, segments=segments, positions=positions, known=known, graph=graph)

    def shorten(self, stride: int, extent: int) -> Layout:
        """The layout (of a padded batch) after a convolution that turns n positions into ⌈n / stride⌉, in rows of `extent`."""
        if self.graph is not None:
            raise ConfigError(
                "task.graph: this encoder makes sequences shorter, and then edges name no positions; choose another"
            )
        lengths = -(-self.lengths // stride)
        place = torch.arange(extent, device=lengths.device).expand(len(lengths), extent)
        known = None if self.known is None else tuple(-(-count // stride) for count in self.known)
        segments = (place < lengths[:, None]).to(torch.int32)
        return Layout(segments, place.contiguous(), None, -(-self.longest // stride), known)

    @staticmethod
    def padded(lengths: Sequence[int] | np.ndarray | Tensor, extent: int | None = None) -> Layout:
        """Rows of the given lengths, each filled up to `extent` (by default the longest)."""
        count = torch.as_tensor(lengths, dtype=torch.int64)
        longest = int(count.max()) if count.numel() else 0
        extent = longest if extent is None else extent
        if longest > extent:
            raise ValueError(f"a row of {longest} tokens does not fit into {extent}")
        place = torch.arange(extent, device=count.device).expand(len(count), extent)
        known = tuple(count.tolist())
        return Layout((place < count[:, None]).to(torch.int32), place.contiguous(), None, longest, known)

    @staticmethod
    def pack(lengths: Sequence[int] | np.ndarray, budget: int, *, longest: int = 1, pieces: int = 0) -> Layout:
        """One row of `budget` tokens with sentences of the given lengths, one after the other.

        `longest` and `pieces` are minimum values, so that layouts of other sentences have the same sizes, as compiled and
        captured code needs.
        """
        count = np.asarray(lengths, dtype=np.int64)
        total = int(count.sum())
        if total > budget:
            raise ValueError(f"{total} tokens do not fit into a packed row of {budget}")
        longest = max(longest, int(count.max(initial=0)))
        segments, positions = np.zeros(budget, np.int32), np.zeros(budget, np.int64)
        starts = np.concatenate([[0], count.cumsum()])
        segments[:total] = np.repeat(np.arange(1, len(count) + 1, dtype=np.int32), count)
        positions[:total] = np.arange(total) - np.repeat(starts[:-1], count)
        positions[total:] = np.arange(budget - total) % longest
        behind = np.append(np.arange(total + longest, budget, longest), budget)
        missing = max(0, pieces - len(count) - len(behind))
        offsets = np.concatenate([starts, behind, np.full(missing, budget)]).astype(np.int32)
        return Layout(torch.from_numpy(segments)[None], torch.from_numpy(positions)[None], torch.from_numpy(offsets), longest)


@dataclass(frozen=True)
class Source(TensorFields):
    """The input of a model: token ids [B, S], words [B, W, 1 + P], feature vectors [B, S, F], or images [B, C, H, W].

    A layout of None means that every row is full. If the inputs are documents, rows of `values` are sentences, and `documents`
    is the layout of sentences in documents [B, sentences]; the sentences of all documents follow each other.
    """

    values: Tensor
    layout: Layout | None = None
    documents: Layout | None = None

    def repeat(self, times: int) -> Source:
        """Each row (of a padded batch) `times` times, one after the other."""
        return Source(self.values.repeat_interleave(times, 0), None if self.layout is None else self.layout.repeat(times))


@dataclass(frozen=True)
class Batch(TensorFields):
    """The base of all batches. rows: [n] int64, the corpus rows of this batch in order, for reports and tests."""

    rows: Tensor

    def pin(self) -> Self:
        """The batch in pinned host memory, from which copies to a GPU are asynchronous."""
        return self._map(Tensor.pin_memory)

    def continued(self) -> Self:
        """The batch as it is in the middle of training, where rows of running text continue earlier ones."""
        return self

    def outline(self) -> tuple[Any, ...]:
        """Shapes and types of all tensors, and all plain values, which determine the operations that the batch needs."""
        return tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves())

    def tensors(self) -> list[Tensor]:
        """All tensors, those of layouts and sources included, in a fixed order."""
        return [leaf for leaf in self._leaves() if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class PairBatch(Batch):
    """Sources and targets. `target` [B, T] begins with BOS and `labels` [B, T] end with EOS; both have `target_layout`."""

    source: Source
    target: Tensor
    target_layout: Layout
    labels: Tensor

    def repeat(self, times: int) -> PairBatch:
        """Each pair (of a padded batch) `times` times, one after the other."""
        if times == 1:
            return self
        rows, target, labels = (each.repeat_interleave(times, 0) for each in (self.rows, self.target, self.labels))
        return PairBatch(rows, self.source.repeat(times), target, self.target_layout.repeat(times), labels)


@dataclass(frozen=True)
class FertilityBatch(PairBatch):
    """Sources and targets, and how many target tokens each source token stands for, [B, S]."""

    fertilities: Tensor


@dataclass(frozen=True)
class LabelBatch(Batch):
    """Sources, each with a label [B], or with ones for its labels among zeros [B, C]; `NO_LABEL` in rows that only fill up."""

    source: Source
    labels: Tensor


@dataclass(frozen=True)
class TwoTextBatch(LabelBatch):
    """Two texts in each row, `source` and `second`, with a label [B], a number [B], or several of them [B, k]."""

    second: Source


@dataclass(frozen=True)
class QualityBatch(TwoTextBatch):
    """Sources with translations, and how good these are: a number [B], and a tag for each word.

    spans: [B, W, 2] the first and the last token, exclusive, of each word of a translation · tags: [B, W], 1 for a word that is
    right, 0 for a wrong one, `NO_LABEL` on padding.
    """

    spans: Tensor
    tags: Tensor


@dataclass(frozen=True)
class TagBatch(Batch):
    """Sentences with a tag for each word.

    source: words [B, W, 1 + P] (the id of a word, then those of its subwords), or all subwords [B, S] · words: the layout of
    words · starts: [B, W] where each word begins in a source of subwords · labels: [B, W], `NO_LABEL` on padding.
    """

    source: Source
    words: Layout
    starts: Tensor | None
    labels: Tensor


@dataclass(frozen=True)
class TextBatch(Batch):
    """Segments of running text: `tokens` [B, T] and the token after each of them, `labels` [B, T].

    group: batches of one group continue each other row by row · fresh: the first batch of its group in an epoch.
    """

    tokens: Tensor
    labels: Tensor
    group: int = 0
    fresh: bool = True

    def continued(self) -> TextBatch:
        return replace(self, fresh=False)
