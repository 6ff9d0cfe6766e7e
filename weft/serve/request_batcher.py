"""Batches queries from many requests. One thread runs the models; requests wait for it in the event loop."""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, product
from typing import Any, TypeVar

import torch
from starlette.exceptions import HTTPException

from weft.decoding.continuous_search import STEPS
from weft.decoding.predictor import BatchItem, Prediction, Predictor
from weft.decoding.search_loop import Cancellation
from weft.serve.bounded_cache import BoundedCache, bytes_of
from weft.serve.continuous_batch import Done, JobFeed
from weft.serve.document_reader_processes import Readers
from weft.serve.fair_queue import SHORT, Batch, BatchTimeModel, FairQueue, Job, Parts, PendingQuery, RequestTicket
from weft.serve.middleware import Log
from weft.serve.prometheus import Metrics
from weft.serve.recent_traffic import RECENT, RecentTraffic, magnitude
from weft.serve.served_model import BatchResult, ServedModel, TranslationQuery
from weft.serve.settings import Settings
from weft.worker_processes import LINUX

WARM_UP = (("a b", 1), ("a b c d", 1), ("a b c d e f g h", 1), ("a b c d", 8), ("a b c d e f g h", 8))
"""Texts that a model translates before its first request, alone and several at once."""

WARM_UP_WEIGHT = 0.1
"""The weight of a batch of these texts in the estimate of times, compared with a batch of real ones."""

RETURN = 0.03
"""Seconds in which clients that were answered may send their next request, to be in one batch."""

TOKENIZED_AT_ONCE = 16
"""Texts of a request that are tokenized before those of the next one."""

T = TypeVar("T")

LANES, AHEAD = 2, 0.7
"""Batches at once if another process runs the models; the second is sent when the first has run for this share of its time."""

TICKETS = 64
"""Requests at once if another process runs the models and they join each other there."""

CHECK = 0.5
"""Seconds after which a lane looks again whether the others have ended."""

INTERLUDE = 0.1
"""The share of a batch's time after which others may be answered in the middle of it, and that this may take."""

PIECE = 0.025
"""The share of a batch's time that the steps between two interruptions may take for jobs of one client, beside others."""

ADMITTED = 512
"""Source tokens that begin at once in a batch that others join, since nobody is answered while they are encoded."""

TRIES = 16
"""Single requests between two that try the number of threads that was slower so far, since that may have changed."""


class CpuThreads:
    """Gives `usual` threads to batches, which leaves a core for reading requests.

    A single request for which nothing else waits gets `alone` threads, unless that turns out to be slower, as it is if other
    programs use the cores. 0: the number stays as it is.
    """

    def __init__(self, usual: int, alone: int, lanes: int = 1) -> None:
        self.usual, self.alone, self.lanes = usual, alone or usual, lanes
        self._times = BatchTimeModel(first=0.0)  # so that each number is tried
        self._turns = count(1)
        self._here = threading.local()

    def set(self, batch: Batch, single: bool, joined: bool = False) -> int:
        """Sets the threads of the calling thread for a batch; returns their number. joined: several lanes run side by side."""
        usual = max(1, self.alone // self.lanes) if joined and self.lanes > 1 else self.usual
        self._here.single, chosen = single and self.alone != usual, usual
        if self._here.single:
            numbers = sorted((self.alone, usual), key=lambda n: self._times.seconds(n, batch.rows, batch.steps))
            chosen = numbers[next(self._turns) % TRIES == 0]
        if chosen and chosen != torch.get_num_threads():
            torch.set_num_threads(chosen)  # the setting is per thread
        return chosen

    def learn(self, batch: Batch, seconds: float) -> None:
        """Remembers how long the batch took."""
        if self._here.single:
            self._times.learn(torch.get_num_threads(), batch.rows, batch.steps, seconds)


class Batcher:
    """Collects batch items for a few milliseconds, or while the model is busy, and decodes those of one group as a batch.

    Clients take turns, and a batch takes about `settings.slice` seconds, so that no request holds up another for long.
    """

    def __init__(self, settings: Settings, metrics: Metrics, log: Log = lambda facts: None, *, forks: bool = LINUX) -> None:
        self.settings, self.metrics, self.log = settings, metrics, log
        self.clear_cache()
        self.times = BatchTimeModel()
        self.worked: dict[str, float] = {}  # when each model last gave a result
        self._queue = FairQueue(self.times)
        self._threads = CpuThreads(settings.threads, settings.alone, settings.lanes)
        self._changed = threading.Condition()
        self._closing = False
        self._seconds = 0.05  # per batch item, a moving average
        self._interludes: dict[int, float] = {}  # seconds of the running batch of a lane in which others were answered
        self._joined: dict[int, int] = {}  # how many jobs run side by side in each lane that others join
        self._traffic = RecentTraffic(settings.lanes)
        self._ended, self._spent, self._served = 0.0, 0.0, 1  # when the last batch ended, its seconds, and its requests
        self._tokenizer = ThreadPoolExecutor(1, "weft-tokenizer")
        self._running: dict[int, float] = {}  # since when the batch of each lane runs
        self._lanes: list[threading.Thread] = []
        self._own = threading.RLock()  # held by the thread that runs a model in this process
        self.readers = Readers(self._own, forks=forks)

    def start(self, remote: bool = False) -> None:
        """Starts the threads that run batches. If another process runs the models, one batch is made while one runs."""
        for number in range(TICKETS if remote else self.settings.lanes):
            self._lanes.append(self._start(number))

    def _start(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._work, args=(number,), name="weft-model", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Answers all queries in the queue, then ends the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._lanes:
            thread.join()
        self._tokenizer.shutdown()
        self.readers.close()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._lanes)

    @property
    def busy_since(self) -> float | None:
        """When the batch that has been running longest began; None if no batch is running."""
        with self._changed:
            return min(self._running.values(), default=None)

    def clear_cache(self) -> None:
        """Starts a new cache. Answers to queries made before this call go to the old one. Only the event loop uses it."""
        self.cache: BoundedCache[Any, Prediction] = BoundedCache(
            self.settings.cache, lambda query, answer: bytes_of((query.text, query.options, query.fields, answer))
        )

    def warm_up(self, models: Sequence[ServedModel]) -> None:
        """Loads the kernels of these models and measures their speed. Models that do not read text are left out."""
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)  # the setting is per thread
        for model, (text, copies) in product(models, WARM_UP):
            try:
                _ = model.attention_maps  # runs the model, so that no request has to wait for it
                (pending,) = self._tokenizer.submit(tokenize, [TranslationQuery(model, model.sample(text))]).result()
                for item in pending.items:
                    pending.predictor.continuous(item)  # is tried once
                    rows, steps = pending.predictor.expected_cost(item)
                    result = pending.run([item] * copies, None)
                    self.times.learn(kind(pending, item), rows * copies, steps, result.batch_seconds, WARM_UP_WEIGHT)
            except Exception as error:
                self.log({"event": "warm-up failed", "model": model.name, "error": type(error).__name__})

    @property
    def length(self) -> int:
        """Number of batch items in the queue."""
        with self._changed:
            return len(self._queue)

    async def answer(
        self, queries: Sequence[TranslationQuery], client: str = "", cells: int | None = None, *, cached: bool = True
    ) -> list[Prediction]:
        """Answers each query. Cancelling stops the queries; a full queue raises an HTTP error.

        cells: the most attention weights that the queries may compute · cached: whether to use the cache.
        """
        cache = self.cache if cached else BoundedCache[Any, Prediction](0)
        answers = {query: cache[query] for query in queries if query in cache}
        self.metrics.count(cache_hits=len(answers))
        missing = [query for query in dict.fromkeys(queries) if query not in answers]
        if missing:
            answers |= zip(missing, await self._decode(missing, client, cells), strict=True)
        for query, answer in answers.items() if cache.size else ():
            if not query.attention:  # weights are large and rarely requested twice
                cache[query] = answer
        return [answers[query] for query in queries]

    async def _decode(self, queries: Sequence[TranslationQuery], client: str, cells: int | None) -> list[Prediction]:
        self._check_room(client, 1)
        pending = await self._read(queries, client)
        if cells is not None and (count := sum(map(expected_cells, pending))) > cells:
            raise too_many_cells(count, cells)
        ticket = RequestTicket(client, pending, asyncio.get_running_loop().create_future())
        ticket.jobs = make_jobs(ticket)
        if ticket.jobs:
            await self._wait(ticket)
        return await self._join(pending, client)

    async def _read(self, queries: Sequence[TranslationQuery], client: str) -> list[PendingQuery]:
        """Splits and tokenizes texts, some at a time. Long texts and markup are left to another process."""
        if len(queries) > self.settings.queue:
            raise self._too_many(len(queries))
        long = any(query.marks for query in queries) or sum(len(query.text) + len(query.prefix) for query in queries) > SHORT
        pending: list[PendingQuery] = []
        for some in _slices(queries):
            read = await self.readers.do(client, encode, some) if long else None
            work = tokenize if read is None else partial(tokenize, read=read)
            pending += await asyncio.get_running_loop().run_in_executor(self._tokenizer, work, some)
        return pending

    async def _wait(self, ticket: RequestTicket) -> None:
        """Puts a ticket into the queue and waits until all results are known."""
        self._check_room(ticket.client, len(ticket.jobs))
        with self._changed:
            self._queue.add(ticket)
            self._changed.notify()
        try:
            await ticket.future
        except asyncio.CancelledError:
            self.metrics.count(cancelled=sum(len(each.results) < len(each.items) for each in ticket.queries))
            raise
        finally:
            with self._changed:
                self._queue.remove(ticket)

    async def _join(self, pending: Sequence[PendingQuery], client: str) -> list[Prediction]:
        """Joins the results of each query. If that takes the model or much work, it is left to another process."""
        answers = {id(each): join(each.predictor, *each.parts) for each in pending if each.plain}
        for some in _slices([each for each in pending if not each.plain]):
            joined = await self.readers.do(client, join_all, [(each.query, each.parts) for each in some])
            answers |= zip(map(id, some), joined, strict=True)
        return [answers[id(each)] for each in pending]

    def _check_room(self, client: str, items: int) -> None:
        """Makes room for a client that waits for less than another one does. Raises an HTTP error if there is no room."""
        limit = self.settings.queue
        if items > limit:
            raise self._too_many(items)
        with self._changed:
            held = self._queue.held() if len(self._queue) + items > limit else Counter()
            while len(self._queue) + items > limit:
                greediest, most = held.most_common(1)[0]
                if most <= held[client] + items:
                    self.metrics.count(refused_busy=1)
                    raise self._full(len(self._queue))
                dropped = self._queue.newest(greediest)
                held[greediest] -= len(dropped.jobs)
                self._queue.remove(dropped)
                self.metrics.count(refused_greedy=1)
                dropped.settle(self._full(len(self._queue)))

    def _too_many(self, items: int) -> HTTPException:
        return HTTPException(400, f"the request has {items} sentences; this server takes at most {self.settings.queue} at once")

    def _full(self, length: int) -> HTTPException:
        wait = max(1, math.ceil(length * self._seconds))
        return HTTPException(503, f"too many texts are waiting; try again in {wait} s", {"Retry-After": str(wait)})

    def _work(self, lane: int) -> None:
        batch = Batch()
        try:
            while (batch := self._take(lane)).jobs:
                self._run(batch, lane)
        except BaseException as error:  # the thread must not end: all requests would wait for it
            self.metrics.count(worker_restarts=1)
            self.log({"event": "the model's thread ended; starting another", "error": type(error).__name__})
            for ticket in batch.tickets:
                ticket.settle(RuntimeError("the model's thread ended"))
            with self._changed:
                self._running.pop(lane, None)
                self._joined.pop(lane, None)
                self._traffic.end(lane)
            self._lanes[lane] = self._start(lane)

    def _run(self, batch: Batch, lane: int) -> None:
        began = time.monotonic()
        with self._changed:
            self._running[lane] = began
        self._interludes[lane] = 0.0
        tickets = len(batch.tickets)
        single, joined = tickets == self._served == 1 and len(self._running) == 1 and not self.length, joins(batch.jobs[0])
        self._threads.set(batch, single=single, joined=joined)
        result = None
        if joined and batch.jobs[0].pending.query.model.remote is None:
            self._stream(batch, lane)
            self._ended = time.monotonic()
        else:
            result = self._decode_batch(batch, began, lambda: self._interlude(batch, began, lane))
            result = replace(result, seconds=result.seconds - self._interludes[lane])
            self._ended, self._spent, self._served = time.monotonic(), result.batch_seconds, tickets
            self._threads.learn(batch, result.seconds)
        with self._changed:
            del self._running[lane]
            self._joined.pop(lane, None)
            self._traffic.end(lane)
            # The model process runs one batch after the other: that of the other lane begins now.
            self._running.update(dict.fromkeys(self._running, self._ended))
            self._changed.notify_all()
        if result is not None:
            self._finish(batch, result)

    def _stream(self, batch: Batch, lane: int) -> None:
        """Runs a batch that others join. If that fails, runs each job that is not done alone."""
        settings, began = self.settings, time.monotonic()
        model, limits = batch.jobs[0].pending.query.model, (settings.slice, settings.batch_tokens)

        def join(running: Sequence[Job], room: int) -> list[Job]:
            with self._changed:
                most, short = min(room, self._share(lane)), self._traffic.reserved(lane)
                piece = settings.slice * PIECE / STEPS if self._traffic.several else math.inf
                jobs = self._queue.join(*limits, running, most, ADMITTED, short=short, piece=piece) if self._queue else []
                self._traffic.begin(lane, jobs)
                self._joined[lane] = len(running) + len(jobs)
            self._begin(model, jobs, len(running))
            return jobs

        def done(some: Done) -> None:
            for job, took in zip(some.jobs, some.took, strict=True):
                self.times.learn(job.kind, some.running.rows, job.cost.steps, took, 1 / len(some.running.jobs))
                self.metrics.observe("batch_seconds", model.name, [took])
            self._spent, self._served = some.took[0], len({job.ticket for job in some.jobs})
            with self._changed:
                self._running[lane], self._joined[lane] = time.monotonic(), len(some.running.jobs) - len(some.jobs)
            self._deliver(some.jobs, some.results, some.seconds)

        def meanwhile(running: Batch, seconds: float) -> None:
            # On a GPU a captured search must not run inside another one.
            if batch.jobs[0].pending.predictor.options.device.type == "cpu":
                self._interlude(running, time.monotonic() - seconds, lane)

        feed = JobFeed(join, done, meanwhile)
        self._begin(model, batch.jobs, 0)
        try:
            # Without processes that read texts, threads do it, which may use the model.
            with nullcontext() if self.readers.forks else self._own:
                batch.jobs[0].pending.predictor.stream(feed.begin(batch.jobs), feed)
        except Exception as error:
            self.log({"event": "a batch failed; its texts run one by one", "model": model.name, "error": type(error).__name__})
            for job in feed.running.jobs:
                self._deliver([job], run_jobs([job], lambda: None).results, 0.0)
        except BaseException:
            for ticket in feed.running.tickets:
                ticket.settle(RuntimeError("the model's thread ended"))
            raise
        if not feed.joined:
            self._threads.learn(batch, time.monotonic() - began)

    def _share(self, lane: int) -> int:
        """The number of waiting jobs that a lane may take, so that all lanes have about as many."""
        running = sum(self._joined.values()) + len(self._queue)
        return -(-running // max(1, len(self._lanes))) - self._joined.get(lane, 0)

    def _begin(self, model: ServedModel, jobs: Sequence[Job], running: int) -> None:
        """Counts jobs that begin beside running ones."""
        if jobs:
            now = time.monotonic()
            self.metrics.observe("queue_seconds", model.name, [now - job.since for job in jobs])
            self.metrics.observe("batch_sentences", model.name, [running + len(jobs)])
            self.metrics.count(batches=1)

    def _interlude(self, batch: Batch, began: float, lane: int, depth: int = 0) -> None:
        """Called between two steps of a batch that began then: if it is long, others are answered meanwhile.

        It is if it is of one client, or takes longer than batches may. This is short, since whoever waits for the batch waits
        for it, too: several jobs that take a tenth of a batch, or one, which is interrupted once more. It does not wait until
        another lane has run its batch.
        """
        settings, now, inner = self.settings, time.monotonic(), Batch()
        if now - began < settings.slice * INTERLUDE:
            return
        if len(batch.clients) > 1 and self.times.seconds(batch.kind, batch.rows, batch.steps) <= settings.slice:
            return
        if not self._own.acquire(blocking=False):
            return
        try:
            with self._changed:
                take = partial(self._queue.take, tokens=settings.batch_tokens, before=batch, short=self._traffic.short)
                inner = take(settings.slice * INTERLUDE)
                if not inner.jobs:
                    inner = take(settings.slice, most=1)
                self._traffic.begin(lane, [job for job in inner.jobs if not magnitude(job.item)])
            if inner.jobs:
                before = self._interludes[lane]
                again = partial(self._interlude, inner, now, lane, depth + 1) if depth == 0 else lambda: None
                result = self._decode_batch(inner, now, again)
                self._finish(inner, replace(result, seconds=result.seconds - (self._interludes[lane] - before)))
                self._interludes[lane] = before + time.monotonic() - now
        except BaseException:
            for ticket in inner.tickets:
                ticket.settle(RuntimeError("the model's thread ended"))
            raise
        finally:
            self._own.release()

    def _decode_batch(self, batch: Batch, began: float, between: Callable[[], None]) -> BatchResult:
        pending = batch.jobs[0].pending
        model = pending.query.model
        self.metrics.observe("queue_seconds", model.name, [began - job.since for job in batch.jobs])
        predictor = pending.predictor
        # On a GPU a captured search must not run inside another one.
        inside = predictor.options.device.type == "cpu" and model.remote is None
        with self._own if model.remote is None else nullcontext():
            return run_jobs(batch.jobs, between if inside else lambda: None)

    def _finish(self, batch: Batch, result: BatchResult) -> None:
        """Learns from a batch, counts it, and gives the answers to the requests."""
        model, jobs = batch.jobs[0].pending.query.model.name, batch.jobs
        if all(job.ticket.wanted for job in jobs):
            self.times.learn(batch.kind, batch.rows * result.together / len(jobs), batch.steps, result.batch_seconds)
        # Count before answering, so that a client with an answer finds it in the metrics.
        self.metrics.count(batches=1)
        self.metrics.observe("batch_seconds", model, [result.batch_seconds])
        self.metrics.observe("batch_sentences", model, [result.together])
        self._deliver(jobs, result.results, result.seconds)

    def _deliver(self, jobs: Sequence[Job], results: Sequence[Any], seconds: float) -> None:
        """Counts jobs that took these seconds, and gives the answers to the requests."""
        self._seconds += 0.2 * (seconds / len(jobs) - self._seconds)
        found = Counter(id(job.pending) for job in jobs)
        texts = sum(len(each.results) + found[id(each)] >= len(each.items) for each in {job.pending for job in jobs})
        self.metrics.count(texts=texts, tokens=sum(job.item.size for job in jobs), busy_seconds=seconds)
        if any(not isinstance(answer, Exception) for answer in results):
            self.worked[jobs[0].pending.query.model.name] = time.monotonic()
        for job, answer in zip(jobs, results, strict=True):
            keep_result(job, answer)

    def _take(self, lane: int) -> Batch:
        """Waits for the next batch. Returns an empty batch when the server is closing and the queue is empty."""
        settings = self.settings
        limits = (settings.slice, settings.batch_tokens)
        with self._changed:
            while True:
                while not (self._queue or self._closing):
                    self._changed.wait()
                if not self._queue:
                    return Batch()
                short = self._traffic.reserved(lane)
                head = self._queue.head(short=short)
                if head is None:
                    self._changed.wait(RECENT / 2)
                    continue
                remote, joined = head.pending.query.model.remote is not None, joins(head)
                if joined and remote:
                    self._joined[lane] = 1
                    return self._queue.take(*limits, alone=True)
                batches = [since for other, since in self._running.items() if other not in (lane, *self._joined)]
                # While another batch runs, this one can grow.
                others = [] if joined else [since + AHEAD * self._spent for since in batches]
                left = max(self._queue.oldest() + settings.window, self._ended + self._pause(), *others) - time.monotonic()
                blocked = not joined and len(batches) >= (LANES if remote else 1)
                if not blocked and (left <= 0 or self._closing or self._queue.full(*limits)):
                    most, tokens = (max(1, self._share(lane)), min(limits[1], ADMITTED)) if joined else (None, limits[1])
                    piece = settings.slice * PIECE / STEPS if joined and self._traffic.several else math.inf
                    batch = self._queue.take(settings.slice, tokens, most=most, short=short, piece=piece)
                    self._traffic.begin(lane, batch.jobs)
                    self._running[lane] = time.monotonic()
                    self._joined |= {lane: len(batch.jobs)} if joined else {}
                    return batch
                self._changed.wait(CHECK if blocked else left)

    def _pause(self) -> float:
        """Seconds to wait after a batch for the clients that it has answered, which may send their next requests."""
        few = self._queue.tickets < self._served / 2
        return min(RETURN, 0.5 * self._spent) if few else 0.0


Encoded = tuple[Any, list[BatchItem]]
"""The input of a predictor, and its batch items."""


def encode(queries: Sequence[TranslationQuery]) -> list[Encoded]:
    """Splits and tokenizes the text of each query."""
    encoded = []
    for query in queries:
        predictor = query.model.predictor(query.options)
        source = predictor.parse_input(query.text, **query.input_fields)
        (items,) = predictor.encode_input([source], 1)
        encoded.append((source, items))
    return encoded


def tokenize(queries: Sequence[TranslationQuery], read: Sequence[Encoded] | None = None) -> list[PendingQuery]:
    """Queries with their batch items; `read` has those that another process has made. Only one thread may do this."""
    return [
        PendingQuery(query, source, query.model.predictor(query.options), items)
        for query, (source, items) in zip(queries, encode(queries) if read is None else read, strict=True)
    ]


def join(predictor: Predictor[Any, Any], source: Any, items: list[BatchItem], results: list[Any]) -> Prediction:
    """The answer to a query. This may run the model once more, for attention weights."""
    answer: Prediction = predictor.join_outputs(source, items, results)
    predictor.check_numbers(answer)
    return answer


def join_all(queries: Sequence[tuple[TranslationQuery, Parts]]) -> list[Prediction]:
    """The answers to queries, from their parts."""
    return [join(query.model.predictor(query.options), *parts) for query, parts in queries]


def _slices(queries: Sequence[T]) -> Iterator[Sequence[T]]:
    """Some queries at a time, so that others get their turn."""
    return (queries[first : first + TOKENIZED_AT_ONCE] for first in range(0, len(queries), TOKENIZED_AT_ONCE))


def make_jobs(ticket: RequestTicket) -> list[Job]:
    """A job for each batch item of a ticket."""
    now, jobs = time.monotonic(), []
    for each in ticket.queries:
        model, options, predictor = each.query.model, each.query.options, each.predictor
        for item in each.items:
            group = (model, options, predictor.group(item), magnitude(item))
            jobs.append(Job(ticket, each, item, group, kind(each, item), predictor.expected_cost(item), now))
    return jobs


def kind(pending: PendingQuery, item: BatchItem) -> Hashable:
    """A key for the time per row and step: the model, and the orders of magnitude of the length and of the number of terms."""
    terms = getattr(item, "terms", None)
    return pending.query.model.name, magnitude(item), (len(terms.use) + len(terms.avoid)).bit_length() if terms else 0


def expected_cells(pending: PendingQuery) -> int:
    """The attention weights that a query computes, if its translation is as long as its text."""
    if not pending.query.attention:
        return 0
    return pending.query.model.attention_maps * sum(item.size**2 for item in pending.items)


def too_many_cells(count: int, limit: int) -> HTTPException:
    """The refusal of a request that computes more attention weights than the server sends."""
    message = f"about {count:,} attention weights exceed the limit of {limit:,}; send shorter or fewer texts"
    return HTTPException(400, f"{message}, or ask for alignment instead of attention")


def joins(job: Job) -> bool:
    """Whether a job may join others while they run."""
    predictor = job.pending.predictor
    return predictor.continuous(job.item) if job.pending.query.model.remote is None else predictor.joinable(job.item)


def run_jobs(jobs: Sequence[Job], between: Callable[[], None]) -> BatchResult:
    """Runs the model on a batch. If that fails, runs each job alone, so that only the bad text gets an error."""
    try:
        control = Cancellation(len(jobs), lambda row: jobs[row].ticket.wanted, between)
        return jobs[0].pending.run([job.item for job in jobs], control)
    except Exception as error:
        if len(jobs) == 1:
            return BatchResult([error], 1, 0.0)
        alone = [run_jobs([job], between) for job in jobs]
        return BatchResult([each.results[0] for each in alone], len(jobs), sum(each.seconds for each in alone))


def keep_result(job: Job, result: Any) -> None:
    """Keeps the result of a job, and tells its request if that was the last one."""
    if not job.ticket.wanted:
        return  # the result may be cut off
    if isinstance(result, Exception):
        job.ticket.settle(result)
        return
    job.pending.results[job.item] = result
    if job.ticket.complete:
        job.ticket.settle()
