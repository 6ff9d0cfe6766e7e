"""What flows from data to model: token ids with a `Layout` that says which of them belong together.

Shapes: B rows · T or S positions. In a padded batch a row is a sentence; in a packed one B is 1 and the row
holds many sentences one after the other, each with its segment number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3
"""The special ids. Every tokenizer keeps these four places free, so nobody has to pass them around."""

T = TypeVar("T")

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


def power_of_two(least: int) -> int:
    """The smallest power of two that is at least this many: sizes are rounded up to it where few of them are wanted."""
    return 1 << (least - 1).bit_length()


class Position(NamedTuple):
    """A place in the endless stream of training batches: everything that resuming needs to know of the data."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Layout:
    """Which tokens of a `[B, T]` block are real and which belong together.

    A query may look at a key if their segments are equal and not 0. Real tokens come first in a row: nothing is ever
    padded on the left.

    segments   [B, T] int32, 0 where there is no token. Padded: 1 on real tokens. Packed: sentences 1…n, the same number
               in source and target.
    positions  [B, T] int64, counted from 0 inside each sentence.
    offsets    packed only, [m + 1] int32 with m > n: where each of the n sentences begins, then the padding cut into pieces no
               longer than `longest`, then empty pieces up to the end of the row. This is how fused kernels want it.
    longest    at least the length of the longest sentence (an int known on the host).
    known      padded only: the lengths of rows as the host knows them; None: only the device shall know, so that all
               batches of one shape ask it for the same work.
    """

    segments: Tensor
    positions: Tensor
    offsets: Tensor | None = None
    longest: int = 0
    known: tuple[int, ...] | None = None
    _memory: dict[Hashable, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """What every layer derives from a layout alike (angles of positions) is made once and kept here."""
        if key not in self._memory:
            self._memory[key] = make()
        found: T = self._memory[key]
        return found

    @property
    def ok(self) -> Tensor:
        """[B, T] bool: True on real tokens."""
        return self.segments > 0

    @property
    def packed(self) -> bool:
        return self.offsets is not None

    @property
    def lengths(self) -> Tensor:
        """[B] number of real tokens a row."""
        return self.ok.sum(1)

    @property
    def counts(self) -> tuple[int, ...]:
        """The same on the host, which need not ask the device if it made the layout itself."""
        return tuple(self.lengths.tolist()) if self.known is None else self.known

    @property
    def shortest(self) -> int:
        """The tokens that every row has, as far as the host knows."""
        return min(self.known, default=0) if self.known else 0

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Layout:
        return _move(self, device, non_blocking)

    def select(self, rows: Tensor) -> Layout:
        """The layout of the given rows (of a padded batch)."""
        return replace(self, segments=self.segments[rows], positions=self.positions[rows], known=None)

    def repeat(self, times: int) -> Layout:
        """Each row (of a padded batch) `times` times, one after the other."""
        known = None if self.known is None else tuple(count for count in self.known for _ in range(times))
        segments, positions = (each.repeat_interleave(times, 0) for each in (self.segments, self.positions))
        return replace(self, segments=segments, positions=positions, known=known)

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
        """One row of `budget` tokens holding sentences of the given lengths one after the other.

        `longest` and `pieces` are least values of what would follow from the lengths: with the same ones, layouts of other
        sentences have the same sizes, which compiled and captured code wants.
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
class Batch:
    """Pairs ready for a model. `target` begins with BOS and `labels` ends with EOS; both have the target layout.

    rows  [n] int64: which rows of the corpus these are, in order, for reports and tests.
    group, fresh  where rows go on from batch to batch, as in running text: which batches they go on in, and whether they begin.
    """

    source: Tensor
    source_layout: Layout
    target: Tensor
    target_layout: Layout
    labels: Tensor
    rows: Tensor
    group: int = 0
    fresh: bool = True

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return _move(self, device, non_blocking)

    def repeat(self, times: int) -> Batch:
        """Each pair (of a padded batch) `times` times, one after the other."""
        if times == 1:
            return self
        source, target, labels, rows = (
            each.repeat_interleave(times, 0) for each in (self.source, self.target, self.labels, self.rows)
        )
        return Batch(source, self.source_layout.repeat(times), target, self.target_layout.repeat(times), labels, rows)

    def pin(self) -> Batch:
        """The batch in pinned host memory, from which a copy to the GPU need not wait."""
        return _each(self, Tensor.pin_memory)


def _move(item: Any, device: torch.device | str, non_blocking: bool) -> Any:
    return _each(item, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def _each(item: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`item` with every tensor of it, and of its layouts, changed."""
    changed = {}
    for part in fields(item):
        value = getattr(item, part.name)
        if isinstance(value, Tensor):
            changed[part.name] = change(value)
        elif isinstance(value, Layout):
            changed[part.name] = _each(value, change)
    return replace(item, **changed)
