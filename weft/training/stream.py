"""The micro-batches of each update, made ready on a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

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


class Prefetch:
    """Runs an iterator on a thread, `ahead` items before they are asked for. An error there is raised here.

    Only the items that were taken count: what lies ready when training stops is simply made again after a resume.
    """

    def __init__(self, items: Iterator[Update], ahead: int = 2, pin: bool = False) -> None:
        self._items, self._pin = items, pin
        self._ready: queue.Queue[Update | BaseException] = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="weft-prefetch", daemon=True)

    def __enter__(self) -> Prefetch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        while self._thread.is_alive():
            self._drain()
            self._thread.join(timeout=0.01)

    def take(self) -> Update:
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _work(self) -> None:
        try:
            for item in self._items:
                self._ready.put(self._pinned(item) if self._pin else item)
                if self._stopped.is_set():
                    return
        except BaseException as error:
            self._ready.put(error)

    def _pinned(self, item: Update) -> Update:
        # Pinned memory lets the copy to the GPU run beside its work.
        return Update(item.begin, [(place, batch.pin()) for place, batch in item.batches], item.after)

    def _drain(self) -> Any:
        while True:
            try:
                self._ready.get_nowait()
            except queue.Empty:
                return
