"""The micro-batches of each update, and the seeds that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.batch import Batch, Position
from weft.errors import DataError
from weft.tasks.base import Task


@dataclass(frozen=True)
class Update:
    """What one process needs for one update.

    begin    where the update begins in the stream of all batches
    batches  this process's micro-batches, each with its place 0 … accumulate − 1 in the update
    after    where the next update begins
    """

    begin: Position
    batches: list[tuple[int, Batch]]
    after: Position

    def pin(self) -> Update:
        """In memory from which the copy to a GPU runs beside its work."""
        return Update(self.begin, [(place, batch.pin()) for place, batch in self.batches], self.after)


def updates(task: Task, position: Position, accumulate: int, mine: range) -> Iterator[Update]:
    """Cut the stream from `position` on into updates of `accumulate` batches, of which those in `mine` are kept."""
    stream = task.batches(position)
    begin = position
    while True:
        kept: list[tuple[int, Batch]] = []
        for place in range(accumulate):
            item = next(stream, None)
            if item is None:
                raise DataError(f"the task gave no more training batches after {begin}; a training stream has to be endless")
            batch, after = item
            if place in mine:
                kept.append((place, batch))
        yield Update(begin, kept, after)
        begin = after


def seed_for(seed: int, *place: int) -> int:
    """A seed for torch that depends on `seed` and a place alone: the same in every process and after a resume."""
    return int(np.random.SeedSequence([seed, *place]).generate_state(1, np.uint64)[0] >> 1)
