"""Prepares the next items of an iterator in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")

WAIT = 0.1
"""Seconds between checks whether the consumer has gone."""


class _End:
    """Marks the end of the items, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(iterator: Iterator[Item], depth: int) -> Generator[Item, None, None]:
    """Yields the items of `iterator` in order, while one thread prepares up to `depth` of them ahead.

    An exception of the iterator is raised in place of its item. Closing or dropping the generator ends the thread. A depth of
    0 prepares nothing ahead.
    """
    if depth <= 0:
        yield from iterator
        return
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    gone = threading.Event()
    worker = threading.Thread(target=_fill, args=(iterator, ready, gone), name="prefetch", daemon=True)
    worker.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        gone.set()
        worker.join()


def _fill(iterator: Iterator[Item], ready: queue.Queue[Item | _End], gone: threading.Event) -> None:
    try:
        for item in iterator:
            if not _put(item, ready, gone):
                return
        _put(_End(None), ready, gone)
    except BaseException as error:  # raised again in the consumer
        _put(_End(error), ready, gone)


def _put(item: Item | _End, ready: queue.Queue[Item | _End], gone: threading.Event) -> bool:
    """Passes an item on. Returns False if the consumer has gone."""
    while not gone.is_set():
        try:
            ready.put(item, timeout=WAIT)
            return True
        except queue.Full:
            pass
    return False
