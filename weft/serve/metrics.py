"""Counters of the server, in Prometheus's text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

HELP = {
    "cache_hits": "texts answered from the cache",
    "texts": "texts decoded",
    "tokens": "source tokens decoded",
    "batches": "batches decoded",
    "cancelled": "texts cancelled because the client disconnected or the request timed out",
    "refused_busy": "requests refused because the queue was full",
    "refused_rate": "requests refused by the rate limit",
    "refused_key": "requests refused because the API key was missing or invalid",
    "reloads": "times the models were reloaded",
}


class Metrics:
    """Counters and a histogram of response times. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(HELP, 0))
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = self._busy = 0.0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count(self, name: str, by: int) -> None:
        with self._lock:
            self._counts[name] += by

    def batch(self, texts: int, tokens: int, seconds: float) -> None:
        with self._lock:
            self._counts.update({"texts": texts, "tokens": tokens, "batches": 1})
            self._busy += seconds

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
            yield from (f"# HELP weft_{name}_total {description}", f"# TYPE weft_{name}_total counter")
            yield f"weft_{name}_total {self._counts[name]}"
        yield from ("# HELP weft_busy_seconds_total time spent decoding", "# TYPE weft_busy_seconds_total counter")
        yield f"weft_busy_seconds_total {self._busy:.6f}"
        yield from ("# HELP weft_requests_total requests answered", "# TYPE weft_requests_total counter")
        for (route, status), number in sorted(self._requests.items()):
            yield f'weft_requests_total{{route="{route}",status="{status}"}} {number}'
        yield from ("# HELP weft_request_seconds time to answer", "# TYPE weft_request_seconds histogram")
        total = 0
        for bound, number in zip((*map(str, BOUNDS), "+Inf"), self._buckets, strict=True):
            total += number
            yield f'weft_request_seconds_bucket{{le="{bound}"}} {total}'
        yield from (f"weft_request_seconds_sum {self._seconds:.6f}", f"weft_request_seconds_count {total}")
        for name, (description, value) in self.gauges.items():
            yield from (f"# HELP weft_{name} {description}", f"# TYPE weft_{name} gauge", f"weft_{name} {value():g}")
