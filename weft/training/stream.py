"""Divides the stream of batches into updates, and derives the seed of each micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.batch import Batch, Position
from weft.errors import DataError
from weft.tasks.base import Task


@dataclass(frozen=True)
class Update:
    """The data of one process for one update.

    begin    position of the update in the stream of all batches
    batches  this process's micro-batches, each with its index 0 … accumulate − 1 in the update
    after    position of the next update
    """

    begin: Position
    batches: list[tuple[int, Batch]]
    after: Position

    def pin(self) -> Update:
        """A copy in pinned memory, for asynchronous copies to a GPU."""
        return Update(self.begin, [(place, batch.pin()) for place, batch in self.batches], self.after)


def updates(task: Task, position: Position, accumulate: int, mine: range) -> Iterator[Update]:
    """Divides the stream from `position` on into updates of `accumulate` batches, and keeps those with an index in `mine`."""
    stream = task.batches(position)
    begin = position
    while True:
        kept: list[tuple[int, Batch]] = []
        for place in range(accumulate):
            item = next(stream, None)
            if item is None:
                raise DataError(f"the task ran out of training batches after {begin}; the stream of batches must be endless")
            batch, after = item
            if place in mine:
                kept.append((place, batch))
        yield Update(begin, kept, after)
        begin = after


def seed_for(seed: int, *place: int) -> int:
    """A seed for torch that depends only on `seed` and a position: the same in every process and after resuming."""
    return int(np.random.SeedSequence([seed, *place]).generate_state(1, np.uint64)[0] >> 1)
