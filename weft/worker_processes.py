"""Worker processes on a CPU, each with one thread, for searches and for tokenising.

Two small searches on one core each are faster than one large search on both, because most operations of a step are too small to
be split. The processes are forked, so they share the memory of the model with their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Generic, TypeVar

import torch

from weft.errors import DeviceError, WeftError

LINUX = sys.platform.startswith("linux")

Job = TypeVar("Job")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside this context, torch computes with one thread, as workers do: how a sum is rounded may depend on that."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Workers(Generic[Job, Result]):
    """`count` processes that do `work`. With one it is this process, which also does single jobs before others have started.

    Jobs and results are pickled; `work` itself is inherited.

    setting: of a configuration, which sets `count` · relief: what an error advises if a worker was killed.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[Job], Result],
        *,
        setting: str = "decode.workers",
        relief: str = "set a smaller decode.batch_tokens, or decode.workers: 1",
    ) -> None:
        if count > 1 and not LINUX:
            raise DeviceError(f"{setting}: {count} needs Linux, where processes can be forked safely; set it to 1")
        self.count, self.work, self.relief = count, work, relief
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> Workers[Job, Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            if kind is not None:
                process.terminate()
            process.join()

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Every job with its result, as they are finished."""
        if self.count == 1:
            yield from ((job, self.work(job)) for job in jobs)
            return
        waiting, busy = iter(jobs), dict[Connection, Job]()
        if not self._ends:
            ahead = list(islice(waiting, 2))
            if len(ahead) < 2:
                yield from ((job, self._here(job)) for job in ahead)
                return
            waiting = chain(ahead, waiting)
        while len(self._ends) < self.count:
            self._begin()
        idle: Sequence[Connection] = self._ends
        while True:
            for end, job in zip(idle, waiting, strict=False):
                busy[end] = job
                self._send(end, job)
            if not busy:
                return
            idle = [end for end in wait(list(busy)) if isinstance(end, Connection)]
            for end in idle:
                yield busy.pop(end), self._result(end)

    def run_in_order(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The result of every job, in the order of the jobs. At most `count` + 1 jobs and their results are in memory."""
        if self.count == 1:
            yield from map(self.work, jobs)
            return
        while len(self._ends) < self.count:
            self._begin()
        idle, busy = list(self._ends), deque[Connection]()
        for job in jobs:  # the next one is made while all workers are busy
            if idle:
                end, finished = idle.pop(), []
            else:
                end = busy.popleft()
                finished = [self._result(end)]
            self._send(end, job)
            busy.append(end)
            yield from finished
        yield from map(self._result, busy)

    def _here(self, job: Job) -> Result:
        """Does a job in this process as a worker would."""
        with one_thread():
            return self.work(job)

    def _begin(self) -> None:
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        process = context.Process(target=_worker, args=(theirs, [*self._ends, mine], self.work), daemon=True)
        with warnings.catch_warnings():
            # Python warns about forking a process with threads. These are torch's, and workers do not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._ends.append(mine)
        self._processes.append(process)

    def _send(self, end: Connection, job: Job) -> None:
        try:
            end.send(job)
        except BrokenPipeError:
            raise self._killed() from None

    def _killed(self) -> WeftError:
        return WeftError(f"a worker process was killed, probably for lack of memory; {self.relief}")

    def _result(self, end: Connection) -> Result:
        try:
            done, answer = end.recv()
        except (EOFError, ConnectionResetError):
            raise self._killed() from None
        if not done:
            raise answer
        result: Result = answer
        return result


def _worker(end: Connection, others: Sequence[Connection], work: Callable[[Job], Result]) -> None:
    """The main function of a worker. It ends when its parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError):
        while True:
            job = end.recv()
            try:
                answer = ForkingPickler.dumps((True, work(job)))
            except Exception as error:
                answer = ForkingPickler.dumps((False, _portable(error)))
            end.send_bytes(answer)


def _portable(error: Exception) -> Exception:
    """The error or, if it does not survive the way to another process, one that says the same."""
    try:
        pickle.loads(ForkingPickler.dumps(error))
    except Exception:
        return WeftError(f"{type(error).__name__} in a worker process: {error}")
    return error


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if LINUX else 1
