"""A cache that keeps the entries that were set last, up to a total size."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(OrderedDict[K, V]):
    """Keeps the entries that were set last, up to a total `size`. An entry that is larger than that is not kept.

    Several threads may get and set entries.

    measure: the size of an entry, by default 1.
    """

    def __init__(self, size: int, measure: Callable[[K, V], int] = lambda key, value: 1) -> None:
        super().__init__()
        self.size, self.used, self._measure = size, 0, measure
        self._sizes: dict[K, int] = {}
        self._lock = threading.Lock()

    def __setitem__(self, key: K, value: V) -> None:
        size = self._measure(key, value)
        with self._lock:
            if key in self:
                self._forget(key)
            if size > self.size:
                return
            super().__setitem__(key, value)
            self._sizes[key] = size
            self.used += size
            while self.used > self.size:
                self._forget(next(iter(self)))

    def _forget(self, key: K) -> None:
        super().__delitem__(key)
        self.used -= self._sizes.pop(key)


def bytes_of(value: Any) -> int:
    """The bytes of memory that a value takes, with all that it contains. Shared values count each time."""
    own = sys.getsizeof(value)
    if isinstance(value, np.ndarray):
        return own if value.base is None else own + value.nbytes
    contained: Iterable[Any] = ()
    if is_dataclass(value):
        contained = (vars(value),)
    elif isinstance(value, dict):
        contained = (*value, *value.values())
    elif isinstance(value, list | tuple):
        contained = value
    return own + sum(map(bytes_of, contained))
