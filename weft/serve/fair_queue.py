"""A queue in which clients take turns, and batches that a machine can run in a bounded time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from weft.serve.bounded import BoundedDict
from weft.serve.reading import Job, Ticket

KINDS = 1000
"""Kinds of work whose pace is remembered."""


class Pace:
    """Learns the seconds per row and step on this machine, by kind of work and by the size of the batch.

    Larger batches take less time per row. A size that was not seen yet is estimated by the next smaller one, so that batches
    grow step by step.
    """

    def __init__(self, first: float = 1e-3, share: float = 0.3) -> None:
        self.first, self.share = first, share
        self._seen: BoundedDict[Hashable, dict[int, float]] = BoundedDict(KINDS)

    def learn(self, kind: Hashable, rows: int, row_steps: int, seconds: float) -> None:
        """Remembers a batch."""
        sizes = self._seen.get(kind, {})
        size, pace = rows.bit_length(), seconds / max(1, row_steps)
        sizes[size] = sizes[size] + self.share * (pace - sizes[size]) if size in sizes else pace
        for larger in [each for each in sizes if each > size and sizes[each] > pace]:
            # It may have been slow by chance. Sizes that are avoided would never be measured again.
            sizes[larger] += 0.1 * self.share * (pace - sizes[larger])
        self._seen[kind] = sizes

    def seconds(self, kind: Hashable, rows: int, row_steps: int) -> float:
        """The time that a batch of this kind is expected to take."""
        sizes = self._seen.get(kind) or {}
        size = rows.bit_length()
        smaller = [each for each in sizes if each <= size]
        pace = sizes[max(smaller)] if smaller else sizes[min(sizes)] if sizes else self.first
        return row_steps * pace


@dataclass
class Batch:
    """Jobs of one group, with the rows and steps that they take together."""

    jobs: list[Job] = field(default_factory=list)
    rows: int = 0
    steps: int = 0
    longest: int = 0

    def grown(self, job: Job) -> Batch:
        """The batch with one more job. Every row takes as many steps as the longest."""
        return Batch(
            [*self.jobs, job],
            self.rows + job.effort.rows,
            max(self.steps, job.effort.steps),
            max(self.longest, job.part.size),
        )

    @property
    def tokens(self) -> int:
        """Source tokens, padding included."""
        return self.longest * len(self.jobs)

    @property
    def kind(self) -> Hashable:
        return self.jobs[0].kind

    @property
    def row_steps(self) -> int:
        return self.rows * self.steps


class FairQueue:
    """Tickets in turns: the client that has used the least work comes next, and of its tickets the one that got the least.

    A client or a ticket that is new starts even with the others, so that nobody saves up turns. Not thread-safe.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._clients: dict[str, list[Ticket]] = {}
        self._used: dict[str, float] = {}
        self._got: dict[Ticket, float] = {}
        self._floor = 0.0

    def __len__(self) -> int:
        """Parts that wait."""
        return sum(len(ticket.jobs) for ticket in self._got)

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, ticket: Ticket) -> None:
        self._used.setdefault(ticket.client, self._floor)
        tickets = self._clients.setdefault(ticket.client, [])
        self._got[ticket] = min((self._got[each] for each in tickets), default=0.0)
        tickets.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Drops the jobs of a ticket that still wait."""
        tickets = self._clients.get(ticket.client)
        if tickets is None or ticket not in self._got:
            return
        tickets.remove(ticket)
        del self._got[ticket]
        if not tickets:
            self._floor = max(self._floor, self._used.pop(ticket.client))
            del self._clients[ticket.client]

    def held(self) -> Counter[str]:
        """Waiting parts of each client."""
        return Counter({name: sum(len(ticket.jobs) for ticket in tickets) for name, tickets in self._clients.items()})

    def newest(self, client: str) -> Ticket:
        return self._clients[client][-1]

    def oldest(self) -> float:
        """When the job that has waited longest was added."""
        return min(ticket.jobs[0].since for ticket in self._got)

    def full(self, seconds: float, tokens: int) -> bool:
        """Whether the waiting jobs would fill a batch."""
        batch = Batch()
        for ticket in self._got:
            for job in ticket.jobs:
                batch = batch.grown(job)
                if not self._fits(batch, seconds, tokens):
                    return True
        return False

    def take(self, seconds: float, tokens: int) -> Batch:
        """Removes the next batch: the job whose turn it is, and those that fit into the limits with it."""
        batch, passed = Batch(), set[Ticket]()
        while ticket := self._next(passed):
            job = next((job for job in ticket.jobs if not batch.jobs or job.group == batch.jobs[0].group), None)
            if job is None or (batch.jobs and not self._fits(batch.grown(job), seconds, tokens)):
                passed.add(ticket)  # it has nothing that fits
                continue
            batch = batch.grown(job)
            self._charge(ticket, job)
        for ticket in {job.ticket for job in batch.jobs}:
            if not ticket.jobs:
                self.remove(ticket)
        return batch

    def _next(self, passed: set[Ticket]) -> Ticket | None:
        """The ticket whose turn it is, of those that were not passed over."""
        for client in sorted(self._clients, key=lambda name: self._used[name]):
            waiting = [ticket for ticket in self._clients[client] if ticket.jobs and ticket not in passed]
            if waiting:
                return min(waiting, key=lambda ticket: self._got[ticket])
        return None

    def _charge(self, ticket: Ticket, job: Job) -> None:
        ticket.jobs.remove(job)
        work = self.pace.seconds(job.kind, job.effort.rows, job.effort.rows * job.effort.steps)
        self._floor = max(self._floor, self._used[ticket.client])
        self._used[ticket.client] += work
        self._got[ticket] += work

    def _fits(self, batch: Batch, seconds: float, tokens: int) -> bool:
        return batch.tokens <= tokens and self.pace.seconds(batch.kind, batch.rows, batch.row_steps) <= seconds
