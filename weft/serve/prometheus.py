"""Counters and histograms of the server, in Prometheus's text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

COUNTERS = {
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
    "failed_reloads": "times reloading failed and the old models stayed",
    "worker_restarts": "times the model's thread ended unexpectedly and was started again",
}


class Histogram(NamedTuple):
    """A histogram: its description, the upper bounds of its buckets, and the name of its label."""

    description: str
    bounds: tuple[float, ...]
    label: str


HISTOGRAMS = {
    "request_seconds": Histogram("time to answer", SECONDS, "route"),
    "queue_seconds": Histogram("time that a sentence waits for its batch", SECONDS, "model"),
    "batch_seconds": Histogram("time that the model takes for a batch", SECONDS, "model"),
    "batch_sentences": Histogram("sentences per batch", SIZES, "model"),
}


class Metrics:
    """Counters, histograms and gauges. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._sums: Counter[tuple[str, str]] = Counter()
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count(self, **counts: float) -> None:
        """Adds to the counters with these names."""
        with self._lock:
            for name, by in counts.items():
                self._counts[name] += by

    def observe(self, name: str, label: str, values: Iterable[float]) -> None:
        """Adds values to the histogram with this name."""
        bounds = HISTOGRAMS[name].bounds
        with self._lock:
            buckets = self._buckets.setdefault((name, label), [0] * (len(bounds) + 1))
            for value in values:
                buckets[bisect_left(bounds, value)] += 1
                self._sums[name, label] += value  # type: ignore[assignment]

    def request(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, status] += 1
        self.observe("request_seconds", route, [seconds])

    def text(self) -> str:
        """Returns all metrics, one sample per line."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, description in COUNTERS.items():
            yield from _header(f"{name}_total", "counter", description)
            yield f"weft_{name}_total {self._counts[name]}"
        yield from _header("requests_total", "counter", "requests answered")
        for (route, status), number in sorted(self._requests.items()):
            yield f'weft_requests_total{{route="{route}",status="{status}"}} {number}'
        for name, histogram in HISTOGRAMS.items():
            yield from _header(name, "histogram", histogram.description)
            for label in sorted(label for each, label in self._buckets if each == name):
                yield from self._histogram(name, label)
        for name, (description, value) in self.gauges.items():
            yield from _header(name, "gauge", description)
            yield f"weft_{name} {value():g}"

    def _histogram(self, name: str, label: str) -> Iterator[str]:
        histogram, buckets = HISTOGRAMS[name], self._buckets[name, label]
        labels = f'{histogram.label}="{label}"'
        for bound, total in zip((*map(str, histogram.bounds), "+Inf"), accumulate(buckets), strict=True):
            yield f'weft_{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"weft_{name}_sum{{{labels}}} {self._sums[name, label]:.6f}"
        yield f"weft_{name}_count{{{labels}}} {sum(buckets)}"


def _header(name: str, kind: str, description: str) -> Iterator[str]:
    yield f"# HELP weft_{name} {description}"
    yield f"# TYPE weft_{name} {kind}"


def summed(texts: Iterable[str]) -> str:
    """The metrics of several processes as one: samples with the same name and labels are added."""
    lines: dict[str, float | None] = {}
    for line in (line for text in texts for line in text.splitlines()):
        if line.startswith("#"):
            lines[line] = None
        else:
            name, _, value = line.rpartition(" ")
            lines[name] = (lines.get(name) or 0.0) + float(value)
    return "".join(f"{line}\n" if value is None else f"{line} {value:.12g}\n" for line, value in lines.items())
