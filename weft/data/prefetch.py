"""Prepares the next items of an iterator in a background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetch(iterator: Iterator[Item], depth: int) -> Generator[Item, None, None]:
    """Yields the items of `iterator` in order, while one thread prepares up to `depth` of them ahead.

    An exception of the iterator is raised in place of its item. Closing or dropping the generator ends the thread. A depth of
    0 prepares nothing ahead.
    """
    if depth <= 0:
        yield from iterator
        return
    end = object()
    with ThreadPoolExecutor(1, "prefetch") as worker:
        ahead: deque[Future[Any]] = deque(worker.submit(next, iterator, end) for _ in range(depth))
        try:
            while (item := ahead.popleft().result()) is not end:
                ahead.append(worker.submit(next, iterator, end))
                yield item
        finally:
            worker.shutdown(cancel_futures=True)
