"""Asks from many requests, decoded together. One thread owns the models; requests wait for it in the event loop."""

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
from weft.serve.ask import Ask, Explain
from weft.serve.metrics import Metrics
from weft.serve.refusal import Refusal
from weft.serve.settings import Settings

Question = Ask | Explain
Answer = Prediction | str
"""A prediction, or the page that explains one."""


@dataclass(eq=False)
class _Job:
    """A question, how many source tokens it has, who waits for it, and since when."""

    ask: Question
    tokens: int
    future: asyncio.Future[Answer]
    since: float = field(default_factory=time.monotonic)


class Cache:
    """The translations asked for last. Only the event loop touches it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: OrderedDict[Question, Answer] = OrderedDict()

    def find(self, ask: Question) -> Answer | None:
        if ask in self._known:
            self._known.move_to_end(ask)
        return self._known.get(ask)

    def keep(self, ask: Question, found: Answer) -> None:
        if self.most and ask.kept:
            self._known[ask] = found
            while len(self._known) > self.most:
                self._known.popitem(last=False)


class Batcher:
    """Gathers asks for a few milliseconds, or for as long as the model is busy, and decodes those of one group together."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.cache = Cache(settings.cache)
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._pace = 0.05  # seconds a text, lately
        self._thread = threading.Thread(target=self._work, name="weft-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends when everything that waits is done."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def forget(self) -> None:
        """Starts with an empty cache. Answers still to come of asks before this go into the old one, and with it."""
        self.cache = Cache(self.settings.cache)

    @property
    def length(self) -> int:
        """Texts that wait."""
        return len(self._waiting)

    async def answer(self, asks: Sequence[Question]) -> list[Answer]:
        """An answer for each ask. Cancelled, it takes back what has not begun; a full queue is a Refusal."""
        found = {ask: known for ask in asks if (known := self.cache.find(ask)) is not None}
        self.metrics.count("cache_hits", len(found))
        missing = [ask for ask in dict.fromkeys(asks) if ask not in found]
        if missing:
            found |= zip(missing, await self._ask(missing), strict=True)
        return [found[ask] for ask in asks]

    async def _ask(self, asks: Sequence[Question]) -> list[Answer]:
        if self.length + len(asks) > self.settings.queue:
            self.metrics.count("refused_busy", 1)
            wait = max(1, math.ceil(self.length * self._pace))
            raise Refusal(503, f"too many texts are waiting; come back in {wait} s", retry_after=wait)
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
        """Takes back what nobody waits for any more."""
        left = [job for job in jobs if not job.future.done() or job.future.cancelled()]
        if left:
            self.metrics.count("cancelled", len(left))
            with self._changed:
                gone = set(map(id, left))
                self._waiting = deque(job for job in self._waiting if id(job) not in gone)

    def _work(self) -> None:
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)  # each thread has its own number
        while batch := self._take():
            began = time.monotonic()
            answers = _answers(batch)
            spent = time.monotonic() - began
            self._pace += 0.2 * (spent / len(batch) - self._pace)
            # Counted before it is answered: who has an answer finds it in the figures.
            self.metrics.batch(len(batch), sum(job.tokens for job in batch), spent)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                batch[0].future.get_loop().call_soon_threadsafe(_settle, batch, answers)

    def _take(self) -> list[_Job]:
        """The next batch: waits until there is one. Nothing once the server closes and nothing waits."""
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
        """The job that has waited longest and those that can be decoded with it, within the budget; they leave the queue."""
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
    """Those of a batch. If it fails, each is tried alone, so that one bad text harms no other."""
    try:
        return batch[0].ask.model.answer([job.ask for job in batch], lambda number: not batch[number].future.cancelled())
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [answer for job in batch for answer in _answers([job])]


def _settle(batch: Sequence[_Job], answers: Sequence[Answer | Exception]) -> None:
    for job, answer in zip(batch, answers, strict=True):
        if job.future.done():
            continue
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
