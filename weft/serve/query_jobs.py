"""Queries as the model's thread sees them: parts of texts that are run in batches and joined to answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from weft.decoding.search_loop import Cancellation
from weft.explain.explanation import Explanation
from weft.explain.task_sections import Section, explain_page
from weft.inference.predictor import BatchItem, ExpectedCost, Prediction, Predictor
from weft.serve.served_models import BatchResult, ExplanationQuery, Query, TranslationQuery

EXPLAINED = 200
"""Tokens of the longest sentence that is explained, since nothing can interrupt this."""


@dataclass(eq=False)
class ExplainedSentence(BatchItem):
    """A sentence to explain."""

    text: str


class ExplanationPredictor:
    """Runs `weft explain` in the queue: a sentence is one part, and the prediction has the page as its text."""

    def __init__(self, query: Query) -> None:
        self.query = query

    def encode_input(self, inputs: Sequence[Query], first_line: int) -> list[list[BatchItem]]:
        model = self.query.model
        read: list[list[BatchItem]] = [
            [ExplainedSentence([0] * model.count(text), text) for text in model.sentences(query.text)] for query in inputs
        ]
        longest = max(part.size for parts in read for part in parts)
        if longest > EXPLAINED:
            raise HTTPException(400, f"a sentence of {longest} tokens is too long to be explained; the limit is {EXPLAINED}")
        return read

    def group(self, part: BatchItem) -> Hashable:
        return part  # each is run alone

    def expected_cost(self, part: BatchItem) -> ExpectedCost:
        width = self.query.model.translator.config.decode.search.get("width", 1)
        return ExpectedCost(int(dict(self.query.options).get("beam") or width), part.size)

    def run(self, parts: list[Any], control: Cancellation | None = None) -> list[Explanation | Section]:
        return [self.query.model.explain(part.text, self.query) for part in parts]

    def join_outputs(self, given: Query, parts: list[BatchItem], results: list[Explanation | Section]) -> Prediction:
        return Prediction(explain_page(results, "weft"), 0.0)


@dataclass(eq=False)
class QueryParts:
    """A query as the parts that a model computes, and their results so far."""

    query: Query
    given: Any
    predictor: Predictor[Any, Any] | ExplanationPredictor
    parts: list[BatchItem]
    results: dict[BatchItem, Any] = field(default_factory=dict)
    answer: Prediction | None = None

    def run(self, parts: list[BatchItem], control: Cancellation | None) -> BatchResult:
        """Runs parts of this and other queries of one group."""
        if isinstance(self.predictor, ExplanationPredictor):
            began = time.monotonic()
            return BatchResult(list(self.predictor.run(parts, control)), len(parts), time.monotonic() - began)
        return self.query.model.run(self.predictor, self.query.options, parts, control)

    def keep(self, part: BatchItem, result: Any) -> None:
        self.results[part] = result
        self.finish()

    def finish(self) -> None:
        """Joins the results if all are known. This may run the model once more, for attention weights."""
        if len(self.results) == len(self.parts):
            self.answer = self.predictor.join_outputs(self.given, self.parts, [self.results[part] for part in self.parts])
            self.results.clear()


@dataclass(eq=False)
class Job:
    """A part in the queue.

    group: only parts of one group are run together · kind: parts of one kind take about the same time per row and step ·
    since: when it was added.
    """

    ticket: RequestTicket
    reading: QueryParts
    part: BatchItem
    group: Hashable
    kind: Hashable
    effort: ExpectedCost
    since: float


@dataclass(eq=False)
class RequestTicket:
    """The queries of one request, which wait together. `client` names who sent it."""

    client: str
    readings: list[QueryParts]
    future: asyncio.Future[list[Prediction]]
    jobs: list[Job] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for the answers."""
        return not self.future.done()

    @property
    def complete(self) -> bool:
        return all(reading.answer is not None for reading in self.readings)

    def settle(self, error: Exception | None = None) -> None:
        """Gives the answers, or an error, to the request. Any thread may call this."""
        with suppress(RuntimeError):  # the event loop is closed, so no request is waiting
            self.future.get_loop().call_soon_threadsafe(self._settle, error)

    def _settle(self, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result([each.answer for each in self.readings if each.answer is not None])


def read(queries: Sequence[Query]) -> list[QueryParts]:
    """Reads each query: splits and tokenizes its text. Only one thread may do this."""
    readings = []
    for query in queries:
        if isinstance(query, TranslationQuery):
            predictor: Any = query.model.predictor(query.options)
            given: Any = predictor.parse_input(query.text, **query.fields)
        else:
            assert isinstance(query, ExplanationQuery)
            predictor, given = ExplanationPredictor(query), query
        (parts,) = predictor.encode_input([given], 1)
        readings.append(QueryParts(query, given, predictor, parts))
    return readings


def make_jobs(ticket: RequestTicket) -> list[Job]:
    """A job for each part of a ticket."""
    now = time.monotonic()
    return [
        Job(
            ticket,
            reading,
            part,
            (reading.query.model, reading.query.options, reading.predictor.group(part)),
            kind(reading, part),
            reading.predictor.expected_cost(part),
            now,
        )
        for reading in ticket.readings
        for part in reading.parts
    ]


def kind(reading: QueryParts, part: BatchItem) -> Hashable:
    """What decides the time per row and step: the model, and the order of magnitude of the number of terms."""
    if isinstance(part, ExplainedSentence):
        return reading.query.model.name, "explanation"
    terms = getattr(part, "terms", None)
    return reading.query.model.name, (len(terms.use) + len(terms.avoid)).bit_length() if terms else 0


def expected_cells(reading: QueryParts) -> int:
    """The attention weights that a query computes, if its translation is as long as its text."""
    query = reading.query
    if not (isinstance(query, TranslationQuery) and query.attention):
        return 0
    return query.model.count_maps() * sum(part.size**2 for part in reading.parts)


def too_many_cells(count: int, limit: int) -> HTTPException:
    """The refusal of a request that computes more attention weights than the server sends."""
    message = f"about {count:,} attention weights exceed the limit of {limit:,}; send shorter or fewer texts"
    return HTTPException(400, f"{message}, or ask for alignment instead of attention")


def run_jobs(jobs: Sequence[Job], between: Callable[[], None]) -> BatchResult:
    """Runs the model on a batch. If that fails, runs each job alone, so that only the bad text gets an error."""
    try:
        control = Cancellation(len(jobs), lambda row: jobs[row].ticket.wanted, between)
        return jobs[0].reading.run([job.part for job in jobs], control)
    except Exception as error:
        if len(jobs) == 1:
            return BatchResult([error], 1, 0.0)
        alone = [run_jobs([job], between) for job in jobs]
        return BatchResult([ran.results[0] for ran in alone], len(jobs), sum(ran.seconds for ran in alone))


def keep_result(job: Job, result: Any) -> None:
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
