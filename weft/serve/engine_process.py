"""A process that runs the models for all processes of a server, and the connection of the others to it.

The threads of a process run Python code in turns. Nothing else runs here, so a GPU waits neither for requests to be read nor
for responses to be written. What the other processes send while a batch runs becomes the next batch.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch

from weft.decoding.continuous_search import Feed
from weft.decoding.predictor import BatchItem, ListFeed, Predictor
from weft.decoding.search_loop import Cancellation
from weft.serve.document_reader_processes import Failure
from weft.serve.middleware import log_line
from weft.serve.served_model import BatchResult, ModelLocation, ModelVersion, Options, ServedModel
from weft.serve.server_processes import report_ready
from weft.tasks.translation.predictor import TranslationPredictor

PARENT_CHECK, HEARTBEAT = 1.0, 0.05
"""Seconds between two checks whether the process that started this one is still there; whether rows are still wanted."""

TRIES = 2
"""The number of times that a task is sent: the model process may have ended and been started again."""

MODEL_FILES = ("*.yaml", "*.json", "*.safetensors")
"""Files of a run that make up its model."""

VERSIONS = 2
"""Versions of a run in memory: those before and after it was reloaded."""

WORDS, COPIES, TIMES = (8, 24), (32, 64, 128, 256, 512), 3
ADDED = 24
"""Lengths and numbers of texts that are translated before the first request, so that searches of these sizes are captured.

Each is translated a few times: as it is, while it is captured, and from the CUDA graph."""

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread that makes texts must let the one that feeds the GPU run."""

Finish = Callable[[], list[Any]]
"""Makes the results of a batch from the tensors on the device."""


@dataclass(frozen=True)
class EngineTask:
    """Batch items to run with a model and the options of its decoding. Only those of one group are run together."""

    model: ModelVersion
    options: Options
    group: Hashable
    items: list[BatchItem]


@dataclass(frozen=True)
class CancelledRows:
    """Rows of the running task that nobody waits for any more."""

    rows: list[int]


@dataclass(eq=False)
class RunningTask:
    """A task whose rows join others: its results so far, and when the first row began.

    items: a copy of each of its rows, since a task may have the same one several times.
    """

    task: WaitingTask
    began: float
    items: list[BatchItem]
    results: dict[BatchItem, Any] = field(default_factory=dict)


class UnknownModel:
    """The answer to a task whose model is not open, as after a restart."""


@dataclass(eq=False)
class WaitingTask:
    """A task with the connection that it came from, and the predictor that runs it."""

    link: Connection
    task: EngineTask
    predictor: Predictor[Any, Any]
    cancelled: set[int] = field(default_factory=set)
    answered: bool = False

    @property
    def continuous(self) -> bool:
        """Whether its rows may join others."""
        return all(map(self.predictor.continuous, self.task.items))

    def fits(self, other: WaitingTask) -> bool:
        mine, theirs = self.task, other.task
        return (mine.model, mine.options, mine.group) == (theirs.model, theirs.options, theirs.group)


def name_version(location: ModelLocation) -> ModelVersion:
    """The present version of the model in these run folders."""
    known = [path.stat() for folder in location.folders for kind in MODEL_FILES for path in sorted(Path(folder).glob(kind))]
    return ModelVersion(location, tuple((each.st_mtime_ns, each.st_size) for each in known))


class TaskFeed(Feed[BatchItem]):
    """The rows of tasks that fit with the first one, in the order in which the tasks came."""

    def __init__(self, engine: Engine, first: WaitingTask) -> None:
        self._engine, self._first = engine, first
        self._rows: dict[BatchItem, tuple[RunningTask, int]] = {}
        self._left: list[BatchItem] = []  # rows of the last task that have not begun

    def begin(self, task: WaitingTask) -> None:
        """Lets the rows of a task wait for their turn."""
        running = RunningTask(task, time.monotonic(), list(map(copy, task.task.items)))
        self._rows.update({item: (running, row) for row, item in enumerate(running.items)})
        self._left += running.items

    def take(self, room: int) -> list[BatchItem]:
        while len(self._left) < room and (task := self._engine.joining(self._first)):
            self.begin(task)
        taken, self._left = self._left[:room], self._left[room:]
        return taken

    def finish(self, parts: Sequence[BatchItem], results: Callable[[], Sequence[Any]]) -> None:
        together = len(self._rows) - len(self._left)
        rows = [(part, self._rows.pop(part)[0]) for part in parts]
        self._engine.submit(partial(self._keep, rows, results, together))

    def _keep(self, rows: list[tuple[BatchItem, RunningTask]], results: Callable[[], Sequence[Any]], together: int) -> None:
        """Makes results, and answers the tasks that are complete. Another thread does this."""
        try:
            found = results()
        except Exception as error:
            for running in {running for _, running in rows}:
                self._engine.answer(running.task, Failure.of(error))
            return
        for (part, running), result in zip(rows, found, strict=True):
            running.results[part] = result
            items = running.items
            if len(running.results) == len(items):
                count = max(together, len(items))
                share = (time.monotonic() - running.began) * len(items) / count
                self._engine.answer(running.task, BatchResult([running.results[item] for item in items], count, share))

    def wanted(self, part: BatchItem) -> bool:
        running, row = self._rows[part]
        return row not in running.task.cancelled

    def between(self) -> None:
        self._engine.receive()


class Engine:
    """Answers tasks that come from connections to a listening socket, one batch after the other. `load` opens a model."""

    def __init__(
        self, listening: socket.socket, load: Callable[[ModelLocation], ServedModel], parent: int | None = None
    ) -> None:
        self._listening, self._load, self._parent = listening, load, parent
        self._models: dict[ModelVersion, ServedModel] = {}
        self._links: list[Connection] = []
        self._waiting: list[WaitingTask] = []
        self._running: list[WaitingTask] = []
        self._opener = ThreadPoolExecutor(1, "weft-opener")
        self._finisher = ThreadPoolExecutor(1, "weft-finisher")

    def run(self) -> None:
        """Serves until the process that started this one has ended."""
        while self._parent is None or os.getppid() == self._parent:
            self._receive(None if self._parent is None else PARENT_CHECK)
            while self._waiting:
                first = self._waiting[0]
                if first.continuous:
                    self._running = [self._waiting.pop(0)]
                    self._stream(first)
                else:
                    self._running = self._next()
                    self._answer(self._running)
                    self._running = []
                self._receive(0)

    def _receive(self, seconds: float | None) -> None:
        """Takes what has come; waits for it for this long."""
        for ready in wait([self._listening, *self._links], seconds):
            if ready is self._listening:
                self._links.append(Connection(self._listening.accept()[0].detach()))
                continue
            assert isinstance(ready, Connection)
            try:
                self._take(ready, ready.recv())
            except Exception:  # it was closed, or sent something unknown
                self._drop(ready)

    def _take(self, link: Connection, message: object) -> None:
        if isinstance(message, ModelLocation):
            self._opener.submit(self._open, link, message)
        elif isinstance(message, CancelledRows):
            for each in (*self._waiting, *self._running):
                if each.link is link:
                    each.cancelled.update(message.rows)
        elif isinstance(message, EngineTask) and (model := self._models.get(message.model)):
            try:
                self._waiting.append(WaitingTask(link, message, model.predictor(message.options)))
            except Exception as error:
                self._send(link, Failure.of(error))
        else:
            self._send(link, UnknownModel())

    def _drop(self, link: Connection) -> None:
        """Forgets a connection that was closed; its rows are no longer wanted."""
        self._links.remove(link)
        link.close()
        self._waiting = [each for each in self._waiting if each.link is not link]
        for each in self._running:
            if each.link is link:
                each.cancelled.update(range(len(each.task.items)))

    def _send(self, link: Connection, message: object) -> None:
        with suppress(OSError):  # it was closed, so nobody waits
            try:
                link.send(message)
            except (TypeError, AttributeError, PicklingError) as error:
                link.send(Failure.of(error))

    def _open(self, link: Connection, location: ModelLocation) -> None:
        """Loads a model in another thread, so that the others go on, unless this version of it is open already."""
        try:
            model = name_version(location)
            if model not in self._models:
                served = self._load(location)
                warm_up(served)
                old = [each for each in self._models if each.location == location]
                for each in old[: len(old) + 1 - VERSIONS]:
                    self._models.pop(each)
                self._models[model] = served
            self._send(link, model)
        except Exception as error:
            self._send(link, Failure.of(error))

    def _next(self) -> list[WaitingTask]:
        """The task that came first, and those that fit into a batch with it."""
        first = self._waiting[0]
        budget, taken = first.predictor.budget, [first]
        longest, count = max(item.size for item in first.task.items), len(first.task.items)
        for each in self._waiting[1:]:
            size = max(longest, *(item.size for item in each.task.items))
            if each.fits(first) and size * (count + len(each.task.items)) <= budget:
                taken.append(each)
                longest, count = size, count + len(each.task.items)
        self._waiting = [each for each in self._waiting if each not in taken]
        return taken

    def _begin(self, predictor: Predictor[Any, Any], rows: Sequence[tuple[WaitingTask, int]]) -> Finish:
        """Begins to run some rows. They end early where they are cancelled."""

        def wanted(number: int) -> bool:
            task, row = rows[number]
            return row not in task.cancelled

        control = Cancellation(len(rows), wanted, lambda: self._receive(0))
        return predictor.begin([each.task.items[row] for each, row in rows], control)

    def joining(self, first: WaitingTask) -> WaitingTask | None:
        """Takes the task that came first of those that wait, if it may join a running one."""
        if not self._waiting or not self._waiting[0].fits(first) or not self._waiting[0].continuous:
            return None
        task = self._waiting.pop(0)
        self._running.append(task)
        return task

    def receive(self) -> None:
        """Takes what has come."""
        self._receive(0)

    def submit(self, work: Callable[[], None]) -> None:
        """Lets another thread make texts."""
        self._finisher.submit(work)

    def answer(self, task: WaitingTask, result: BatchResult | Failure) -> None:
        """Sends the results of a task, once."""
        if not task.answered:
            task.answered = True
            self._send(task.link, result)

    def _stream(self, first: WaitingTask) -> None:
        """Runs a task that others join. If that fails, runs each of those that have no answer alone."""
        feed = TaskFeed(self, first)
        feed.begin(first)
        try:
            first.predictor.stream(feed.take(first.predictor.places), feed)
        except Exception:
            self._finisher.submit(lambda: None).result()  # what is complete is answered first
            for task in self._running:
                if not task.answered:
                    task.answered = True
                    self._answer([task])
        self._running = []

    def _answer(self, batch: Sequence[WaitingTask]) -> None:
        """Runs a batch. If that fails, runs each of its tasks alone. Another thread turns the results into texts."""
        rows = [(each, row) for each in batch for row in range(len(each.task.items))]
        began, predictor = time.monotonic(), batch[0].predictor
        try:
            begun = [self._begin(predictor, some) for some in _within(predictor.budget, rows)]
        except Exception as error:
            if len(batch) == 1:
                self._send(batch[0].link, Failure.of(error))
            else:
                for each in batch:
                    self._answer([each])
            return
        self._finisher.submit(self._finish, batch, begun, time.monotonic() - began)

    def _finish(self, batch: Sequence[WaitingTask], begun: Sequence[Finish], spent: float) -> None:
        """Sends the results of a batch."""
        try:
            results = [result for finish in begun for result in finish()]
        except Exception as error:
            for each in batch:
                self._send(each.link, Failure.of(error))
            return
        count = len(results)
        for each in batch:
            mine, results = results[: len(each.task.items)], results[len(each.task.items) :]
            self._send(each.link, BatchResult(mine, count, spent * len(mine) / count))


def _within(budget: int, rows: Sequence[tuple[WaitingTask, int]]) -> Iterator[list[tuple[WaitingTask, int]]]:
    """Rows one after the other, as many together as the budget allows. A server does not know the memory of this GPU."""
    some: list[tuple[WaitingTask, int]] = []
    longest = 0
    for each, row in rows:
        longest = max(longest, each.task.items[row].size)
        if some and longest * (len(some) + 1) > budget:
            yield some
            some, longest = [], each.task.items[row].size
        some.append((each, row))
    yield some


def warm_up(model: ServedModel) -> None:
    """Translates placeholder texts on a GPU, so that searches of usual sizes are captured before the first request."""
    predictor = model.predictor(())
    runner = predictor.runner if isinstance(predictor, TranslationPredictor) else None
    if runner is None:
        return
    try:
        for words in WORDS:
            (items,) = predictor.encode_input([predictor.parse_input(" ".join(["a"] * words))], 1)
            sizes = [copies for copies in COPIES if copies * items[0].size <= predictor.budget]
            for copies in sizes * TIMES:
                if predictor.continuous(items[0]):
                    flow = ListFeed([copy(items[0]) for _ in range(copies + ADDED)])
                    predictor.stream(flow.take(copies), flow)
                else:
                    predictor.run(items[:1] * copies)
        log_line({"event": "warmed up", "model": model.name, **runner.recorder.counts()})
    except Exception as error:
        log_line({"event": "warm-up failed", "model": model.name, "error": type(error).__name__})


def run_engine(number: int, load: Callable[[ModelLocation], ServedModel], threads: int) -> None:
    """Runs the models for the processes that connect to the socket with this number, until their parent ends."""
    for name in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # the workers reload, or answer what they have accepted
    engine = Engine(socket.socket(fileno=number), load, os.getppid())
    torch.set_num_threads(threads)
    sys.setswitchinterval(SWITCH_INTERVAL)
    report_ready()
    engine.run()


class Remote:
    """A connection per thread to the model process, which listens at `path`."""

    def __init__(self, path: str) -> None:
        self._path, self._own = path, threading.local()

    def open(self, location: ModelLocation) -> ModelVersion:
        """Opens the model in these run folders, or the present version of it. Raises WeftError if that fails."""
        version = self._request(location)
        assert isinstance(version, ModelVersion)
        return version

    def run(
        self, model: ModelVersion, options: Options, group: Hashable, items: list[BatchItem], control: Cancellation | None
    ) -> BatchResult:
        """Runs some batch items. Raises an error if that fails."""
        result = self._request(EngineTask(model, options, group, items), control)
        if isinstance(result, UnknownModel):
            result = self._request(EngineTask(self.open(model.location), options, group, items), control)
        if not isinstance(result, BatchResult):
            raise RuntimeError("the model changed")
        return result

    def _request(self, message: object, control: Cancellation | None = None) -> object:
        for _ in range(TRIES):
            try:
                link = self._link()
                link.send(message)
                while not link.poll(None if control is None else HEARTBEAT):
                    if control is not None and (rows := control.gone()):
                        link.send(CancelledRows(rows))
                response = link.recv()
            except (EOFError, OSError):
                self._own.link = None
                continue
            if isinstance(response, Failure):
                raise response.error()
            return response
        raise RuntimeError("the model process ended")

    def _link(self) -> Connection:
        if getattr(self._own, "link", None) is None:
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(self._path)
            self._own.link = Connection(connected.detach())
        link: Connection = self._own.link
        return link
