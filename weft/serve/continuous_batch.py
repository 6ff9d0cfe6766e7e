"""A batch that others join: as long as it runs, each job that is done makes room for one that waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.decoding.continuous_search import Feed
from weft.decoding.predictor import BatchItem
from weft.serve.fair_queue import Batch, Job


@dataclass
class Done:
    """Some jobs that are done, with their results, the jobs that ran side by side, and the seconds since others were done.

    took: the seconds that each of them ran. Pauses of the batch are not among them.
    """

    jobs: list[Job]
    results: Sequence[Any]
    running: Batch
    seconds: float
    took: list[float]


@dataclass(eq=False)
class JobFeed(Feed[BatchItem]):
    """Jobs for the stream of a predictor.

    join: removes up to so many jobs from the queue that may run beside these · done: keeps results · meanwhile: called every
    few steps with the jobs that run and the seconds that the first of them has run. The batch pauses until it returns.
    """

    join: Callable[[Sequence[Job], int], Sequence[Job]]
    done: Callable[[Done], None]
    meanwhile: Callable[[Batch, float], None]
    joined: int = 0
    _running: dict[BatchItem, tuple[Job, float]] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)
    _paused: float = 0.0

    def begin(self, jobs: Sequence[Job]) -> list[BatchItem]:
        """The batch items of jobs, which run from now on."""
        now = self._clock()
        self._running.update({job.item: (job, now) for job in jobs})
        return [job.item for job in jobs]

    def _clock(self) -> float:
        """The time without pauses."""
        return time.monotonic() - self._paused

    @property
    def running(self) -> Batch:
        batch = Batch()
        for job, _ in self._running.values():
            batch.add(job)
        return batch

    def take(self, room: int) -> list[BatchItem]:
        jobs = self.join([job for job, _ in self._running.values()], room) if self._running else []
        self.joined += len(jobs)
        return self.begin(jobs)

    def finish(self, parts: Sequence[BatchItem], results: Callable[[], Sequence[Any]]) -> None:
        found, batch, now = results(), self.running, self._clock()
        jobs, began = zip(*(self._running.pop(part) for part in parts), strict=True)
        self.done(Done(list(jobs), found, batch, now - self._since, [now - since for since in began]))
        self._since = now

    def wanted(self, part: BatchItem) -> bool:
        return self._running[part][0].ticket.wanted

    def between(self) -> None:
        if self._running:
            now = time.monotonic()
            self.meanwhile(self.running, self._clock() - min(began for _, began in self._running.values()))
            self._paused += time.monotonic() - now
