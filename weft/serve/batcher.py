"""Batches queries from many requests. One thread runs the models; requests wait for it in the event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from starlette.exceptions import HTTPException

from weft.inference.predictor import Prediction
from weft.serve.metrics import Metrics
from weft.serve.models import Query
from weft.serve.settings import Settings

K = TypeVar("K")
V = TypeVar("V")


@dataclass(eq=False)
class _Job:
    """A query in the queue, with its number of source tokens, the future of its answer, and the time it was added."""

    query: Query
    tokens: int
    future: asyncio.Future[Prediction]
    since: float = field(default_factory=time.monotonic)


class BoundedDict(OrderedDict[K, V]):
    """Keeps the `size` entries that were set last."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.size:
            self.popitem(last=False)


class Batcher:
    """Collects queries for a few milliseconds, or while the model is busy, and decodes those of one group as a batch."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.clear_cache()
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._pace = 0.05  # seconds per text, a moving average
        self._thread = threading.Thread(target=self._work, name="weft-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answers all queries in the queue, then ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def clear_cache(self) -> None:
        """Starts a new cache. Answers to queries made before this call go to the old one. Only the event loop uses it."""
        self.cache: BoundedDict[Query, Prediction] = BoundedDict(self.settings.cache)

    @property
    def length(self) -> int:
        """Number of queries in the queue."""
        return len(self._waiting)

    async def answer(self, queries: Sequence[Query]) -> list[Prediction]:
        """Answers each query. Cancelling removes queries that are not being decoded yet; a full queue raises an HTTP error."""
        answers = {query: self.cache[query] for query in queries if query in self.cache}
        self.metrics.count(cache_hits=len(answers))
        missing = [query for query in dict.fromkeys(queries) if query not in answers]
        cache = self.cache
        answers |= zip(missing, await self._decode(missing), strict=True)
        for query, answer in answers.items():
            if query.cached:
                cache[query] = answer
        return [answers[query] for query in queries]

    async def _decode(self, queries: Sequence[Query]) -> list[Prediction]:
        if self.length + len(queries) > self.settings.queue:
            self.metrics.count(refused_busy=1)
            wait = max(1, math.ceil(self.length * self._pace))
            retry = {"Retry-After": str(wait)}
            raise HTTPException(503, f"too many texts are waiting; try again in {wait} s", retry)
        loop = asyncio.get_running_loop()
        jobs = [_Job(query, query.model.count(query.text), loop.create_future()) for query in queries]
        with self._changed:
            self._waiting.extend(jobs)
            self._changed.notify()
        try:
            return await asyncio.gather(*(job.future for job in jobs))
        finally:
            cancelled = [job for job in jobs if not job.future.done() or job.future.cancelled()]
            self.metrics.count(cancelled=len(cancelled))
            with self._changed:
                self._remove(cancelled)

    def _work(self) -> None:
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)  # the setting is per thread
        while batch := self._take():
            began = time.monotonic()
            answers = _answers(batch)
            spent = time.monotonic() - began
            self._pace += 0.2 * (spent / len(batch) - self._pace)
            # Count before answering, so that a client with an answer finds it in the metrics.
            tokens = sum(job.tokens for job in batch)
            self.metrics.count(texts=len(batch), tokens=tokens, batches=1, busy_seconds=spent)
            with suppress(RuntimeError):  # the event loop is closed, so no request is waiting
                batch[0].future.get_loop().call_soon_threadsafe(_resolve, batch, answers)

    def _take(self) -> list[_Job]:
        """Waits for the next batch. Returns an empty list when the server is closing and the queue is empty."""
        settings = self.settings
        with self._changed:
            while True:
                while not (self._waiting or self._closing):
                    self._changed.wait()
                if not self._waiting:
                    return []
                left = self._waiting[0].since + settings.window - time.monotonic()
                if left <= 0 or self._closing or sum(job.tokens for job in self._waiting) >= settings.batch_tokens:
                    return self._first_group()
                self._changed.wait(left)

    def _first_group(self) -> list[_Job]:
        """Removes from the queue the oldest job and those that fit into a batch with it."""
        group, budget = self._waiting[0].query.group, self.settings.batch_tokens
        taken: list[_Job] = []
        for job in self._waiting:
            if not taken or (job.query.group == group and job.tokens <= budget):
                taken.append(job)
                budget -= job.tokens
        self._remove(taken)
        return taken

    def _remove(self, jobs: Sequence[_Job]) -> None:
        removed = set(jobs)
        self._waiting = deque(job for job in self._waiting if job not in removed)


def _answers(batch: Sequence[_Job]) -> Sequence[Prediction | Exception]:
    """Runs the model on a batch. If that fails, runs each job alone, so that only the bad text gets an error."""
    try:
        return batch[0].query.model.answer([job.query for job in batch], lambda number: not batch[number].future.cancelled())
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [answer for job in batch for answer in _answers([job])]


def _resolve(batch: Sequence[_Job], answers: Sequence[Prediction | Exception]) -> None:
    for job, answer in zip(batch, answers, strict=True):
        if job.future.done():
            continue
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
