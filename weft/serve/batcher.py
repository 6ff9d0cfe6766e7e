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

import torch

from weft.inference.predictor import Prediction
from weft.serve.metrics import Metrics
from weft.serve.queries import Ask, Explain
from weft.serve.refusal import Refusal
from weft.serve.settings import Settings

Question = Ask | Explain
Answer = Prediction | str
"""A prediction, or an HTML page that explains one."""


@dataclass(eq=False)
class _Job:
    """A query in the queue, with its number of source tokens, the future of its answer, and the time it was added."""

    ask: Question
    tokens: int
    future: asyncio.Future[Answer]
    since: float = field(default_factory=time.monotonic)


class AnswerCache:
    """A least-recently-used cache of answers. Only the event loop uses it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._answers: OrderedDict[Question, Answer] = OrderedDict()

    def find(self, ask: Question) -> Answer | None:
        if ask in self._answers:
            self._answers.move_to_end(ask)
        return self._answers.get(ask)

    def keep(self, ask: Question, answer: Answer) -> None:
        if self.size and ask.kept:
            self._answers[ask] = answer
            while len(self._answers) > self.size:
                self._answers.popitem(last=False)


class Batcher:
    """Collects queries for a few milliseconds, or while the model is busy, and decodes those of one group as a batch."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.cache = AnswerCache(settings.cache)
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

    def forget(self) -> None:
        """Empties the cache. Answers to queries made before this call go to the discarded cache."""
        self.cache = AnswerCache(self.settings.cache)

    @property
    def length(self) -> int:
        """Number of queries in the queue."""
        return len(self._waiting)

    async def answer(self, asks: Sequence[Question]) -> list[Answer]:
        """Answers each query. Cancelling removes queries that are not being decoded yet; a full queue raises a Refusal."""
        answers = {ask: cached for ask in asks if (cached := self.cache.find(ask)) is not None}
        self.metrics.count("cache_hits", len(answers))
        missing = [ask for ask in dict.fromkeys(asks) if ask not in answers]
        if missing:
            answers |= zip(missing, await self._ask(missing), strict=True)
        return [answers[ask] for ask in asks]

    async def _ask(self, asks: Sequence[Question]) -> list[Answer]:
        if self.length + len(asks) > self.settings.queue:
            self.metrics.count("refused_busy", 1)
            wait = max(1, math.ceil(self.length * self._pace))
            raise Refusal(503, f"too many texts are waiting; try again in {wait} s", retry_after=wait)
        loop, cache = asyncio.get_running_loop(), self.cache
        jobs = [_Job(ask, ask.model.count(ask.text), loop.create_future()) for ask in asks]
        with self._changed:
            self._waiting.extend(jobs)
            self._changed.notify()
        try:
            done = await asyncio.gather(*(job.future for job in jobs))
        finally:
            self._forget(jobs)
        for ask, answer in zip(asks, done, strict=True):
            cache.keep(ask, answer)
        return done

    def _forget(self, jobs: Sequence[_Job]) -> None:
        """Removes jobs from the queue whose request was cancelled."""
        cancelled = [job for job in jobs if not job.future.done() or job.future.cancelled()]
        if cancelled:
            self.metrics.count("cancelled", len(cancelled))
            with self._changed:
                ids = set(map(id, cancelled))
                self._waiting = deque(job for job in self._waiting if id(job) not in ids)

    def _work(self) -> None:
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)  # the setting is per thread
        while batch := self._take():
            began = time.monotonic()
            answers = _answers(batch)
            spent = time.monotonic() - began
            self._pace += 0.2 * (spent / len(batch) - self._pace)
            # Count before answering, so that a client with an answer finds it in the metrics.
            self.metrics.batch(len(batch), sum(job.tokens for job in batch), spent)
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
        group, budget = self._waiting[0].ask.group, self.settings.batch_tokens
        taken: list[_Job] = []
        staying: deque[_Job] = deque()
        for job in self._waiting:
            fits = job.ask.group == group and job.tokens <= budget
            if not taken or fits:
                taken.append(job)
                budget -= job.tokens
            else:
                staying.append(job)
        self._waiting = staying
        return taken


def _answers(batch: Sequence[_Job]) -> Sequence[Answer | Exception]:
    """Runs the model on a batch. If that fails, runs each job alone, so that only the bad text gets an error."""
    try:
        return batch[0].ask.model.answer([job.ask for job in batch], lambda number: not batch[number].future.cancelled())
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [answer for job in batch for answer in _answers([job])]


def _resolve(batch: Sequence[_Job], answers: Sequence[Answer | Exception]) -> None:
    for job, answer in zip(batch, answers, strict=True):
        if job.future.done():
            continue
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
