"""Counters of the server, in Prometheus's text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

HELP = {
    "cache_hits": "texts answered from the cache",
    "texts": "texts decoded",
    "tokens": "source tokens decoded",
    "batches": "batches decoded",
    "busy_seconds": "time spent decoding",
    "cancelled": "texts cancelled because the client disconnected or the request timed out",
    "refused_busy": "requests refused because the queue was full",
    "refused_rate": "requests refused by the rate limit",
    "refused_key": "requests refused because the API key was missing or invalid",
    "refused_greedy": "requests dropped from a full queue because their client had most texts in it",
    "reloads": "times the models were reloaded",
    "worker_restarts": "times the model's thread ended unexpectedly and was started again",
}


class Metrics:
    """Counters and a histogram of response times. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(HELP, 0)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count(self, **counts: float) -> None:
        """Adds to the counters with these names."""
        with self._lock:
            for name, by in counts.items():
                self._counts[name] += by

    def request(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, status] += 1
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def text(self) -> str:
        """Returns all metrics, one sample per line."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, description in HELP.items():
            yield from _header(f"{name}_total", "counter", description)
            yield f"weft_{name}_total {self._counts[name]}"
        yield from _header("requests_total", "counter", "requests answered")
        for (route, status), number in sorted(self._requests.items()):
            yield f'weft_requests_total{{route="{route}",status="{status}"}} {number}'
        yield from _header("request_seconds", "histogram", "time to answer")
        for bound, total in zip((*map(str, BOUNDS), "+Inf"), accumulate(self._buckets), strict=True):
            yield f'weft_request_seconds_bucket{{le="{bound}"}} {total}'
        yield f"weft_request_seconds_sum {self._seconds:.6f}"
        yield f"weft_request_seconds_count {sum(self._buckets)}"
        for name, (description, value) in self.gauges.items():
            yield from _header(name, "gauge", description)
            yield f"weft_{name} {value():g}"


def _header(name: str, kind: str, description: str) -> Iterator[str]:
    yield f"# HELP weft_{name} {description}"
    yield f"# TYPE weft_{name} {kind}"
