"""Queries in progress, a queue in which clients take turns, and batches that a machine can run in a bounded time."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from weft.decoding.predictor import BatchItem, ExpectedCost, Predictor
from weft.decoding.search_loop import Cancellation
from weft.serve.bounded_cache import BoundedCache
from weft.serve.recent_traffic import magnitude
from weft.serve.served_model import BatchResult, TranslationQuery

KINDS, CLIENTS = 1000, 10_000
"""Kinds of work whose time, and clients whose work, is remembered."""

DECAY = 0.9
"""The weight of an older batch when the next one is added."""

SLOWER = 8
"""Time of a job beside those that it joins, as a multiple of its time alone, if that is longer than a batch may take."""

GROWTH = 4
"""The size that the next batch may have, as a multiple of the largest so far."""


SHORT = 2_000
"""Characters of a text, or of all texts of a request, that this process may read and join itself."""

Parts = tuple[Any, list[BatchItem], list[Any]]
"""The input of a predictor, its batch items and their results."""


@dataclass(eq=False)
class PendingQuery:
    """A query with the batch items that a model computes for it, and their results so far."""

    query: TranslationQuery
    input: Any
    predictor: Predictor[Any, Any]
    items: list[BatchItem]
    results: dict[BatchItem, Any] = field(default_factory=dict)

    def run(self, items: list[BatchItem], control: Cancellation | None) -> BatchResult:
        """Runs items of this and other queries of one group."""
        return self.query.model.run_batch(self.predictor, self.query.options, items, control)

    @property
    def parts(self) -> Parts:
        """The input, its items and their results."""
        return self.input, self.items, [self.results[item] for item in self.items]

    @property
    def plain(self) -> bool:
        """Whether its answer is simply the result of its only item, so that there is nothing to join."""
        if self.query.attention or self.query.marks:
            return False
        return len(self.items) == 1 or (not self.items and len(self.query.text) <= SHORT)


@dataclass(eq=False)
class Job:
    """A batch item in the queue.

    group: only items of one group are run together · kind: items of one kind take about the same time per row and step ·
    since: when it was added.
    """

    ticket: RequestTicket
    pending: PendingQuery
    item: BatchItem
    group: Hashable
    kind: Hashable
    cost: ExpectedCost
    since: float


@dataclass(eq=False)
class RequestTicket:
    """The queries of one request, which wait together. `client` names who sent it."""

    client: str
    queries: list[PendingQuery]
    future: asyncio.Future[None]
    jobs: list[Job] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for the answers."""
        return not self.future.done()

    @property
    def complete(self) -> bool:
        """Whether all results are known."""
        return all(len(each.results) == len(each.items) for each in self.queries)

    def settle(self, error: Exception | None = None) -> None:
        """Tells the request that all results are known, or an error. Any thread may call this."""
        with suppress(RuntimeError):  # the event loop is closed, so no request is waiting
            self.future.get_loop().call_soon_threadsafe(self._settle, error)

    def _settle(self, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(None)


@dataclass
class _LinearFit:
    """The time per step as a line, `fixed + slope · rows`, fitted to the latest batches."""

    weight: float = 0.0
    rows: float = 0.0
    time: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    most: float = 0.0

    def add(self, rows: float, time: float, weight: float) -> None:
        """Adds a batch. Those before it count less and less."""
        self.weight = DECAY * self.weight + weight
        self.rows = DECAY * self.rows + weight * rows
        self.time = DECAY * self.time + weight * time
        self.squares = DECAY * self.squares + weight * rows**2
        self.products = DECAY * self.products + weight * rows * time
        self.most = max(self.most, rows)

    def at(self, rows: float) -> float:
        x, y = self.rows / self.weight, self.time / self.weight
        variance, covariance = self.squares / self.weight - x**2, self.products / self.weight - x * y
        # Until batches of different sizes were seen, half of the time is taken to be fixed.
        prior = 0.1 * x**2
        slope = (covariance + prior * 0.5 * y / x) / (variance + prior)
        slope = min(max(slope, 0.02 * y / x), y / x)
        return y + slope * (rows - x)


class BatchTimeModel:
    """Learns how long batches take on this machine, by kind of work: the time per step grows with the number of rows.

    Several threads may use it.
    """

    def __init__(self, first: float = 1e-3) -> None:
        self.first = first
        self._fits: BoundedCache[Hashable, _LinearFit] = BoundedCache(KINDS)
        self._lock = threading.Lock()

    def learn(self, kind: Hashable, rows: float, steps: int, seconds: float, weight: float = 1.0) -> None:
        """Remembers a batch."""
        with self._lock:
            fit = self._fits.get(kind) or _LinearFit()
            fit.add(rows, seconds / max(1, steps), weight)
            self._fits[kind] = fit

    def seconds(self, kind: Hashable, rows: float, steps: int) -> float:
        """The time that a batch of this kind is expected to take. `first` seconds per row and step if none was seen yet."""
        with self._lock:
            fit = self._fits.get(kind)
            return steps * (self.first * rows if fit is None else fit.at(rows))

    def known(self, kind: Hashable, rows: float) -> bool:
        """Whether the batches so far tell how long this many rows take. Batches grow step by step."""
        fit = self._fits.get(kind)
        return fit is None or rows <= GROWTH * fit.most


@dataclass
class Batch:
    """Jobs of one group, with the work and the steps that they take together."""

    jobs: list[Job] = field(default_factory=list)
    work: int = 0
    steps: int = 0
    longest: int = 0

    def add(self, job: Job) -> None:
        """Adds a job. The batch takes as many steps as the longest."""
        self.jobs.append(job)
        self.work += job.cost.rows * job.cost.steps
        self.steps, self.longest = max(self.steps, job.cost.steps), max(self.longest, job.item.size)

    @property
    def rows(self) -> float:
        """Rows per step, on average: those that have ended are left out."""
        return self.work / max(1, self.steps)

    @property
    def kind(self) -> Hashable:
        return self.jobs[0].kind

    @property
    def tickets(self) -> set[RequestTicket]:
        return {job.ticket for job in self.jobs}

    @property
    def clients(self) -> set[str]:
        return {job.ticket.client for job in self.jobs}


class FairQueue:
    """Tickets in turns: the client that has used the least work comes next, and of its tickets the one that got the least.

    A new client or ticket starts at the average of the others, so that nobody saves up turns or is overtaken forever. Not
    thread-safe.
    """

    def __init__(self, times: BatchTimeModel) -> None:
        self.times = times
        self._clients: dict[str, list[RequestTicket]] = {}
        self._used: BoundedCache[str, float] = BoundedCache(CLIENTS)
        self._got: dict[RequestTicket, float] = {}
        self._clock = 0.0  # the work of an average client
        self._clocks: dict[str, float] = {}  # the work of an average ticket of each client

    @property
    def tickets(self) -> int:
        """Requests that wait."""
        return len(self._got)

    def __len__(self) -> int:
        """Batch items that wait."""
        return sum(len(ticket.jobs) for ticket in self._got)

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, ticket: RequestTicket) -> None:
        client = ticket.client
        if client not in self._clients:
            self._used[client] = max(self._clock, self._used.get(client, 0.0))
            self._clients[client], self._clocks[client] = [], 0.0
        self._got[ticket] = self._clocks[client]
        self._clients[client].append(ticket)

    def remove(self, ticket: RequestTicket) -> None:
        """Drops the jobs of a ticket that still wait."""
        tickets = self._clients.get(ticket.client)
        if tickets is None or ticket not in self._got:
            return
        tickets.remove(ticket)
        del self._got[ticket]
        if not tickets:
            del self._clients[ticket.client], self._clocks[ticket.client]

    def held(self) -> Counter[str]:
        """Waiting batch items of each client."""
        return Counter({name: sum(len(ticket.jobs) for ticket in tickets) for name, tickets in self._clients.items()})

    def newest(self, client: str) -> RequestTicket:
        return self._clients[client][-1]

    def head(self, *, short: bool = False) -> Job | None:
        """The job whose turn it is. short: long sources have no turn; None if there are no others."""
        ticket = self._next(self._too_long(short))
        return None if ticket is None else ticket.jobs[0]

    def _too_long(self, short: bool) -> set[RequestTicket]:
        return {ticket for ticket in self._got if magnitude(ticket.jobs[0].item)} if short else set()

    def oldest(self) -> float:
        """When the job that has waited longest was added."""
        return min(ticket.jobs[0].since for ticket in self._got)

    def full(self, seconds: float, tokens: int) -> bool:
        """Whether the waiting jobs would fill a batch."""
        batch = Batch()
        for ticket in self._got:
            for job in ticket.jobs:
                if not self._fits(batch, job, seconds, tokens):
                    return True
                batch.add(job)
        return False

    def join(
        self,
        seconds: float,
        tokens: int,
        running: Sequence[Job],
        most: int,
        at_once: int,
        *,
        short: bool = False,
        piece: float = math.inf,
    ) -> list[Job]:
        """Removes up to `most` jobs that may run beside the running ones, which are of one group and as many as fit.

        There are none while it is the turn of another group, which has to wait for their end. at_once: their tokens, together ·
        short: long sources have no turn · piece: the seconds that a step may take for jobs of one client.
        """
        batch, joined, size, passed = Batch(), list[Job](), 0, self._too_long(short)
        for job in running:
            batch.add(job)
        while len(joined) < most and (ticket := self._next(passed)):
            job = ticket.jobs[0]
            limit = max(seconds, SLOWER * self.times.seconds(job.kind, *job.cost))
            if job.group == running[0].group and not self._shares(batch, job, piece):
                passed.add(ticket)
                continue
            size += job.item.size
            if job.group != running[0].group or not self._fits(batch, job, limit, tokens) or (joined and size > at_once):
                break
            batch.add(job)
            joined.append(job)
            self._charge(ticket, job)
            if not ticket.jobs:
                self.remove(ticket)
        return joined

    def take(
        self,
        seconds: float,
        tokens: int,
        before: Batch | None = None,
        most: int | None = None,
        *,
        alone: bool = False,
        short: bool = False,
        piece: float = math.inf,
    ) -> Batch:
        """Removes the next batch: the job whose turn it is, and those that fit into the limits with it.

        most: jobs of the batch; None: any number · alone: they are of one ticket · short, piece: see `join` · before: a running
        batch. Only jobs of other clients may come before its end, only if they fit, and only until they have got as
        much more than the greediest client of the batch as the batch takes.
        """
        batch, passed = Batch(), self._too_long(short)
        if before is not None:
            most_used = max(self._used[name] for name in before.clients)
            due = most_used + self.times.seconds(before.kind, before.rows, before.steps)
            passed |= {each for each in self._got if each.client in before.clients or self._used[each.client] > due}
        turn = self._next if before is None else self._smallest
        while ticket := turn(passed):
            job = next((job for job in ticket.jobs if not batch.jobs or job.group == batch.jobs[0].group), None)
            must = before is None and not batch.jobs
            if job is None or not (must or (self._fits(batch, job, seconds, tokens) and self._shares(batch, job, piece))):
                passed.add(ticket)  # it has nothing that fits
                continue
            batch.add(job)
            self._charge(ticket, job)
            if len(batch.jobs) == most:
                break
            if alone:
                passed = set(self._got) - {ticket}
        for ticket in batch.tickets:
            if not ticket.jobs:
                self.remove(ticket)
        return batch

    def _next(self, passed: set[RequestTicket]) -> RequestTicket | None:
        """The ticket whose turn it is, of those that were not passed over."""
        for client in sorted(self._clients, key=lambda name: self._used[name]):
            waiting = [ticket for ticket in self._clients[client] if ticket.jobs and ticket not in passed]
            if waiting:
                return min(waiting, key=lambda ticket: self._got[ticket])
        return None

    def _smallest(self, passed: set[RequestTicket]) -> RequestTicket | None:
        """The ticket with the least work left, of those that were not passed over. Of equal ones, the one that came first."""

        def work(ticket: RequestTicket) -> int:
            return len(ticket.jobs) * ticket.jobs[0].cost.rows * ticket.jobs[0].cost.steps

        return min((ticket for ticket in self._got if ticket.jobs and ticket not in passed), key=work, default=None)

    def _charge(self, ticket: RequestTicket, job: Job) -> None:
        ticket.jobs.remove(job)
        work = self.times.seconds(job.kind, *job.cost)
        self._clock += work / len(self._clients)
        self._clocks[ticket.client] += work / len(self._clients[ticket.client])
        self._used[ticket.client] += work
        self._got[ticket] += work

    def _shares(self, batch: Batch, job: Job, seconds: float) -> bool:
        """Whether a step of this client's jobs takes at most these seconds with one more job, or this is its only one."""
        own = [each.cost.rows for each in batch.jobs if each.ticket.client == job.ticket.client]
        return not own or self.times.seconds(job.kind, sum(own) + job.cost.rows, 1) <= seconds

    def _fits(self, batch: Batch, job: Job, seconds: float, tokens: int) -> bool:
        """Whether the batch with one more job is within the limits; `tokens` counts padding."""
        if max(batch.longest, job.item.size) * (len(batch.jobs) + 1) > tokens:
            return False
        steps = max(batch.steps, job.cost.steps)
        rows = (batch.work + job.cost.rows * job.cost.steps) / max(1, steps)
        kind = batch.kind if batch.jobs else job.kind
        return self.times.known(kind, rows) and self.times.seconds(kind, rows, steps) <= seconds
