"""Batches queries from many requests. One thread runs the models; requests wait for it in the event loop."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from starlette.exceptions import HTTPException
from torch import Tensor

from weft.inference.predictor import Prediction
from weft.search.loop import Control
from weft.serve.bounded import BoundedDict, bytes_of
from weft.serve.fair_queue import Batch, FairQueue, Pace
from weft.serve.log import Log
from weft.serve.metrics import Metrics
from weft.serve.models import Query, Served, TranslationQuery
from weft.serve.reading import Job, Ticket, expected_cells, kind, make_jobs, read
from weft.serve.settings import Settings
from weft.serve.threads import Threads

WARM_UP = (("a b", 1), ("a b c d", 1), ("a b c d e f g h", 1), ("a b c d", 8), ("a b c d e f g h", 8))
"""Texts that a model translates before its first request, alone and several at once."""

RETURN = 0.03
"""Seconds in which clients that were answered may send their next request, to be in one batch."""

GUESS = 0.1
"""What a batch of these texts counts for, compared with a batch of real ones."""


class Batcher:
    """Collects parts of texts for a few milliseconds, or while the model is busy, and decodes those of one group as a batch.

    Clients take turns, and a batch takes about `settings.slice` seconds, so that no request holds up another for long.
    """

    def __init__(self, settings: Settings, metrics: Metrics, log: Log = lambda facts: None) -> None:
        self.settings, self.metrics, self.log = settings, metrics, log
        self.clear_cache()
        self.pace = Pace()
        self.busy_since: float | None = None
        self.worked: dict[str, float] = {}  # when each model last gave a result
        self._queue = FairQueue(self.pace)
        self._threads = Threads(settings.threads, settings.alone)
        self._changed = threading.Condition()
        self._closing = False
        self._seconds = 0.05  # per part, a moving average
        self._interludes = 0.0  # seconds of the running batch in which others were answered
        self._ended, self._spent, self._served = 0.0, 0.0, 1  # when the last batch ended, its seconds, and its requests
        self._reader = ThreadPoolExecutor(1, "weft-reader")
        self._thread = threading.Thread(target=self._work, name="weft-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answers all queries in the queue, then ends the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._reader.shutdown()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def clear_cache(self) -> None:
        """Starts a new cache. Answers to queries made before this call go to the old one. Only the event loop uses it."""
        self.cache: BoundedDict[Query, Prediction] = BoundedDict(self.settings.cache, _entry_bytes)

    def warm_up(self, models: Sequence[Served]) -> None:
        """Loads the kernels of these models and measures their pace. Models that do not read text are left out."""
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)  # the setting is per thread
        for model, (text, copies) in itertools.product(models, WARM_UP):
            try:
                model.count_maps()
                (reading,) = self._reader.submit(read, [TranslationQuery(model, text)]).result()
                for part in reading.parts:
                    rows, steps = reading.predictor.effort(part)
                    began = time.monotonic()
                    reading.predictor.run([part] * copies, None)
                    self.pace.learn(kind(reading, part), rows * copies, steps, time.monotonic() - began, GUESS)
            except Exception as error:
                self.log({"event": "warm-up failed", "model": model.name, "error": type(error).__name__})

    @property
    def length(self) -> int:
        """Number of parts in the queue."""
        with self._changed:
            return len(self._queue)

    async def answer(self, queries: Sequence[Query], client: str = "", cells: int | None = None) -> list[Prediction]:
        """Answers each query. Cancelling stops the queries; a full queue raises an HTTP error."""
        answers = {query: self.cache[query] for query in queries if query in self.cache}
        self.metrics.count(cache_hits=len(answers))
        missing = [query for query in dict.fromkeys(queries) if query not in answers]
        cache = self.cache
        if missing:
            answers |= zip(missing, await self._decode(missing, client, cells), strict=True)
        for query, answer in answers.items() if cache.size else ():
            if query.cached:
                cache[query] = answer
        return [answers[query] for query in queries]

    async def _decode(self, queries: Sequence[Query], client: str, cells: int | None) -> list[Prediction]:
        loop = asyncio.get_running_loop()
        self._check_room(client, 1)
        readings = await loop.run_in_executor(self._reader, read, queries)
        if cells is not None and (count := sum(map(expected_cells, readings))) > cells:
            raise too_many_cells(count, cells)
        ticket = Ticket(client, readings, loop.create_future())
        ticket.jobs = make_jobs(ticket)
        for reading in readings:
            if not reading.parts:
                reading.finish()
        if ticket.complete:
            return [reading.answer for reading in readings if reading.answer is not None]
        self._check_room(client, len(ticket.jobs))
        with self._changed:
            self._queue.add(ticket)
            self._changed.notify()
        try:
            return await ticket.future
        except asyncio.CancelledError:
            self.metrics.count(cancelled=sum(reading.answer is None for reading in readings))
            raise
        finally:
            with self._changed:
                self._queue.remove(ticket)

    def _check_room(self, client: str, parts: int) -> None:
        """Makes room for a client that waits for less than another one does. Raises an HTTP error if there is no room."""
        limit = self.settings.queue
        if parts > limit:
            raise HTTPException(400, f"the request has {parts} sentences; this server takes at most {limit} at once")
        with self._changed:
            held = self._queue.held()
            while len(self._queue) + parts > limit:
                greediest, most = held.most_common(1)[0]
                if most <= held[client] + parts:
                    self.metrics.count(refused_busy=1)
                    raise self._full(len(self._queue))
                dropped = self._queue.newest(greediest)
                held[greediest] -= len(dropped.jobs)
                self._queue.remove(dropped)
                self.metrics.count(refused_greedy=1)
                dropped.settle(self._full(len(self._queue)))

    def _full(self, length: int) -> HTTPException:
        wait = max(1, math.ceil(length * self._seconds))
        return HTTPException(503, f"too many texts are waiting; try again in {wait} s", {"Retry-After": str(wait)})

    def _work(self) -> None:
        batch = Batch()
        try:
            while (batch := self._take()).jobs:
                self._run(batch)
        except BaseException as error:  # the thread must not end: all requests would wait for it
            self.metrics.count(worker_restarts=1)
            self.log({"event": "the model's thread ended; starting another", "error": type(error).__name__})
            for ticket in {job.ticket for job in batch.jobs}:
                ticket.settle(RuntimeError("the model's thread ended"))
            self._thread = threading.Thread(target=self._work, name="weft-model", daemon=True)
            self._thread.start()

    def _run(self, batch: Batch) -> None:
        began = self.busy_since = time.monotonic()
        self._interludes = 0.0
        tickets = len({job.ticket for job in batch.jobs})
        self._threads.set(batch, single=tickets == self._served == 1 and not self.length)
        answers = self._answers(batch, began, lambda: self._interlude(batch, began))
        self._ended = time.monotonic()
        self._spent = spent = self._ended - began - self._interludes
        self._served = tickets
        self._threads.learn(batch, spent)
        self.busy_since = None
        self._finish(batch, answers, spent)

    def _interlude(self, batch: Batch, began: float) -> None:
        """Called between two steps of a batch: if it is of one client and takes long, others are answered meanwhile."""
        settings, now = self.settings, time.monotonic()
        if now - began < settings.slice / 4 or len({job.ticket.client for job in batch.jobs}) > 1:
            return
        with self._changed:
            inner = self._queue.take(settings.slice, settings.batch_tokens, before=batch)
        if not inner.jobs:
            return
        try:
            answers = self._answers(inner, now, lambda: None)
            self._finish(inner, answers, time.monotonic() - now)
        except BaseException:
            for ticket in {job.ticket for job in inner.jobs}:
                ticket.settle(RuntimeError("the model's thread ended"))
            raise
        self._interludes += time.monotonic() - now

    def _answers(self, batch: Batch, began: float, between: Callable[[], None]) -> list[Any]:
        reading = batch.jobs[0].reading
        self.metrics.observe("queue_seconds", reading.query.model.name, [began - job.since for job in batch.jobs])
        resolved = getattr(reading.predictor, "resolved", None)
        # On a GPU a recorded search must not run inside another one.
        return _results(batch.jobs, between if resolved is not None and resolved.device.type == "cpu" else lambda: None)

    def _finish(self, batch: Batch, answers: Sequence[Any], spent: float) -> None:
        """Learns from a batch, counts it, and gives the answers to the requests."""
        model = batch.jobs[0].reading.query.model.name
        self._seconds += 0.2 * (spent / len(batch.jobs) - self._seconds)
        if all(job.ticket.wanted for job in batch.jobs):
            self.pace.learn(batch.kind, batch.rows, batch.steps, spent)
        # Count before answering, so that a client with an answer finds it in the metrics.
        tokens, texts = sum(job.part.size for job in batch.jobs), len({id(job.reading) for job in batch.jobs})
        self.metrics.count(texts=texts, tokens=tokens, batches=1, busy_seconds=spent)
        self.metrics.observe("batch_seconds", model, [spent])
        self.metrics.observe("batch_sentences", model, [len(batch.jobs)])
        if any(not isinstance(answer, Exception) for answer in answers):
            self.worked[model] = time.monotonic()
        for job, answer in zip(batch.jobs, answers, strict=True):
            _keep(job, answer)

    def _take(self) -> Batch:
        """Waits for the next batch. Returns an empty batch when the server is closing and the queue is empty."""
        settings = self.settings
        limits = (settings.slice, settings.batch_tokens)
        with self._changed:
            while True:
                while not (self._queue or self._closing):
                    self._changed.wait()
                if not self._queue:
                    return Batch()
                left = max(self._queue.oldest() + settings.window, self._ended + self._pause()) - time.monotonic()
                if left <= 0 or self._closing or self._queue.full(*limits):
                    return self._queue.take(*limits)
                self._changed.wait(left)

    def _pause(self) -> float:
        """Seconds to wait after a batch for the clients that it has answered, which may send their next requests."""
        few = self._queue.tickets < self._served / 2
        return min(RETURN, 0.5 * self._spent) if few else 0.0


def _entry_bytes(query: Query, answer: Prediction) -> int:
    """The memory that a cached answer takes."""
    given = query.fields if isinstance(query, TranslationQuery) else {}
    return bytes_of((query.text, query.options, given, answer))


def too_many_cells(count: int, limit: int) -> HTTPException:
    message = f"about {count:,} attention weights exceed the limit of {limit:,}; send shorter or fewer texts"
    return HTTPException(400, f"{message}, or ask for alignment instead of attention")


class _Pausing(Control):
    """Stops rows that nobody waits for, and lets other requests run between two steps."""

    def __init__(self, jobs: Sequence[Job], between: Callable[[], None]) -> None:
        super().__init__(len(jobs), lambda row: jobs[row].ticket.wanted)
        self._between = between

    def stop_unwanted(self, owner: Tensor, longest: Tensor) -> None:
        self._between()
        super().stop_unwanted(owner, longest)


def _results(jobs: Sequence[Job], between: Callable[[], None]) -> list[Any]:
    """Runs the model on a batch. If that fails, runs each job alone, so that only the bad text gets an error."""
    try:
        control = _Pausing(jobs, between)
        return list(jobs[0].reading.predictor.run([job.part for job in jobs], control))
    except Exception as error:
        if len(jobs) == 1:
            return [error]
        return [result for job in jobs for result in _results([job], between)]


def _keep(job: Job, result: Any) -> None:
    """Keeps the result of a job, and answers its request if that was the last one."""
    if not job.ticket.wanted:
        return  # the result may be cut off
    if not isinstance(result, Exception):
        try:
            job.reading.keep(job.part, result)
        except Exception as error:
            result = error
    if isinstance(result, Exception):
        job.ticket.settle(result)
    elif job.ticket.complete:
        job.ticket.settle()
