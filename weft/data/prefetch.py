"""Making the next items in a background thread while the current one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")

WAIT = 0.1
"""Seconds between looks at whether the reader has gone."""


class _End:
    """Says that the items are finished, or why they broke off."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(iterator: Iterator[Item], depth: int) -> Generator[Item, None, None]:
    """The same items in the same order, up to `depth` of them made ahead by one thread.

    An exception of the iterator is raised where its item would have come. Closing the generator (or dropping it) ends the
    thread. With a depth of 0 nothing is made ahead.
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
    except BaseException as error:  # it belongs to whoever reads
        _put(_End(error), ready, gone)


def _put(item: Item | _End, ready: queue.Queue[Item | _End], gone: threading.Event) -> bool:
    """Whether the item was handed over before the reader went away."""
    while not gone.is_set():
        try:
            ready.put(item, timeout=WAIT)
            return True
        except queue.Full:
            pass
    return False
