"""Queries in progress: batch items of texts, which are run in batches and joined to answers."""

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
from weft.explain.html_page import Section, explain_page
from weft.inference.predictor import BatchItem, ExpectedCost, Prediction, Predictor
from weft.serve.served_models import BatchResult, Query, TranslationQuery

MAX_EXPLAINED_TOKENS = 200
"""Tokens of the longest sentence that is explained, since nothing can interrupt this."""


@dataclass(eq=False)
class ExplainedSentence(BatchItem):
    """A sentence to explain."""

    text: str


class ExplanationPredictor:
    """Runs `weft explain` in the queue: a sentence is one batch item, and the prediction has the page as its text."""

    def __init__(self, query: Query) -> None:
        self.query = query

    def read(self) -> list[BatchItem]:
        model, limit = self.query.model, MAX_EXPLAINED_TOKENS
        sentences = [ExplainedSentence([0] * model.count(text), text) for text in model.sentences(self.query.text)]
        longest = max(sentence.size for sentence in sentences)
        if longest > limit:
            raise HTTPException(400, f"a sentence of {longest} tokens is too long to be explained; the limit is {limit}")
        return [*sentences]

    def group(self, item: BatchItem) -> Hashable:
        return item  # each is run alone

    def expected_cost(self, item: BatchItem) -> ExpectedCost:
        width = self.query.model.translator.config.decode.search.get("width", 1)
        return ExpectedCost(int(dict(self.query.options).get("beam") or width), item.size)

    def run(self, items: list[Any], control: Cancellation | None = None) -> list[Explanation | Section]:
        return [self.query.model.explain(item.text, self.query) for item in items]

    def join_outputs(self, query: Query, items: list[BatchItem], results: list[Explanation | Section]) -> Prediction:
        return Prediction(explain_page(results, "weft"), 0.0)


@dataclass(eq=False)
class PendingQuery:
    """A query with the batch items that a model computes for it, and their results so far."""

    query: Query
    input: Any
    predictor: Predictor[Any, Any] | ExplanationPredictor
    items: list[BatchItem]
    results: dict[BatchItem, Any] = field(default_factory=dict)
    answer: Prediction | None = None

    def run(self, items: list[BatchItem], control: Cancellation | None) -> BatchResult:
        """Runs items of this and other queries of one group."""
        if isinstance(self.predictor, ExplanationPredictor):
            began = time.monotonic()
            return BatchResult(list(self.predictor.run(items, control)), len(items), time.monotonic() - began)
        return self.query.model.run_batch(self.predictor, self.query.options, items, control)

    def finish(self) -> None:
        """Joins the results if all are known. This may run the model once more, for attention weights."""
        if len(self.results) == len(self.items):
            self.answer = self.predictor.join_outputs(self.input, self.items, [self.results[item] for item in self.items])
            self.results.clear()


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
    future: asyncio.Future[list[Prediction]]
    jobs: list[Job] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for the answers."""
        return not self.future.done()

    @property
    def complete(self) -> bool:
        return all(each.answer is not None for each in self.queries)

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
            self.future.set_result([each.answer for each in self.queries if each.answer is not None])


def tokenize(queries: Sequence[Query]) -> list[PendingQuery]:
    """Splits and tokenizes the text of each query. Only one thread may do this."""
    pending = []
    for query in queries:
        if isinstance(query, TranslationQuery):
            predictor = query.model.predictor(query.options)
            source = predictor.parse_input(query.text, **query.fields)
            (items,) = predictor.encode_input([source], 1)
            pending.append(PendingQuery(query, source, predictor, items))
        else:
            explanation = ExplanationPredictor(query)
            pending.append(PendingQuery(query, query, explanation, explanation.read()))
    return pending


def make_jobs(ticket: RequestTicket) -> list[Job]:
    """A job for each batch item of a ticket."""
    now, jobs = time.monotonic(), []
    for each in ticket.queries:
        model, options, predictor = each.query.model, each.query.options, each.predictor
        for item in each.items:
            group = (model, options, predictor.group(item))
            jobs.append(Job(ticket, each, item, group, kind(each, item), predictor.expected_cost(item), now))
    return jobs


def kind(pending: PendingQuery, item: BatchItem) -> Hashable:
    """A key for the time per row and step: the model, and the order of magnitude of the number of terms."""
    if isinstance(item, ExplainedSentence):
        return pending.query.model.name, "explanation"
    terms = getattr(item, "terms", None)
    return pending.query.model.name, (len(terms.use) + len(terms.avoid)).bit_length() if terms else 0


def expected_cells(pending: PendingQuery) -> int:
    """The attention weights that a query computes, if its translation is as long as its text."""
    query = pending.query
    if not (isinstance(query, TranslationQuery) and query.attention):
        return 0
    return query.model.attention_maps * sum(item.size**2 for item in pending.items)


def too_many_cells(count: int, limit: int) -> HTTPException:
    """The refusal of a request that computes more attention weights than the server sends."""
    message = f"about {count:,} attention weights exceed the limit of {limit:,}; send shorter or fewer texts"
    return HTTPException(400, f"{message}, or ask for alignment instead of attention")


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
    """Keeps the result of a job, and answers its request if that was the last one."""
    if not job.ticket.wanted:
        return  # the result may be cut off
    if not isinstance(result, Exception):
        try:
            job.pending.results[job.item] = result
            job.pending.finish()
        except Exception as error:
            result = error
    if isinstance(result, Exception):
        job.ticket.settle(result)
    elif job.ticket.complete:
        job.ticket.settle()
