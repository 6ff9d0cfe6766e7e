"""Counters, histograms and gauges of the server, in Prometheus's text format.

The processes of a server share them through files, if the environment names a folder for these (`FOLDER`) before this module
is imported.
"""

import os
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client with the folder through which processes share their metrics."""

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
    "refused_greedy": "requests dropped from a full queue because their client had the most texts in it",
    "retried": "requests taken over from another worker that was killed",
    "reloads": "times the models were reloaded",
    "failed_reloads": "times reloading failed and the old models stayed",
    "worker_restarts": "times the model's thread ended unexpectedly and was started again",
}


HISTOGRAMS = {
    "request_seconds": ("time to answer", SECONDS, "route"),
    "queue_seconds": ("time that a sentence waits for its batch", SECONDS, "model"),
    "batch_seconds": ("time that the model takes for a batch, or for a sentence that joins others", SECONDS, "model"),
    "batch_sentences": ("sentences per batch, or side by side when some join", SIZES, "model"),
}
"""Description, upper bounds of the buckets, and label of each histogram."""

disable_created_metrics()


class Metrics:
    """Counters, histograms and gauges. Thread-safe."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._counters = {name: Counter(f"weft_{name}", description, registry=own) for name, description in COUNTERS.items()}
        self._requests = Counter("weft_requests", "requests answered", ["route", "status"], registry=own)
        self._histograms = {
            name: Histogram(f"weft_{name}", description, [label], buckets=bounds, registry=own)
            for name, (description, bounds, label) in HISTOGRAMS.items()
        }
        self._gauges: list[tuple[Gauge, Callable[[], float]]] = []

    def count(self, **counts: float) -> None:
        """Adds to the counters with these names."""
        for name, by in counts.items():
            self._counters[name].inc(by)

    def observe(self, name: str, label: str, values: Iterable[float]) -> None:
        """Adds values to the histogram with this name."""
        histogram = self._histograms[name].labels(label)
        for value in values:
            histogram.observe(value)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, status).inc()
        self.observe("request_seconds", route, [seconds])

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Adds a gauge, which shows the sum over all processes."""
        gauge = Gauge(f"weft_{name}", description, registry=self._registry, multiprocess_mode="livesum")
        self._gauges.append((gauge, value))

    def refresh_gauges(self) -> None:
        """Shows the present values of this process to the others."""
        for gauge, value in self._gauges:
            gauge.set(value())

    def text(self) -> str:
        """The metrics of all processes, one sample per line."""
        self.refresh_gauges()
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry).decode()
