"""Processes that work side by side on a CPU, each with one thread.

Two small searches on a core each take less time than one of twice the size on both, because most of what a step does is too
small to be shared. The processes are forked: they have the model in the memory of the one they come from, and cost none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Generic, TypeVar

import torch

from weft.errors import DeviceError, WeftError

LINUX = sys.platform.startswith("linux")

Job = TypeVar("Job")
Result = TypeVar("Result")


class Workers(Generic[Job, Result]):
    """So many processes that do `work`; one is this process itself, and no other is begun before there is a job.

    Jobs and results are sent as pickles; the work itself is inherited.
    """

    def __init__(self, count: int, work: Callable[[Job], Result]) -> None:
        if count > 1 and not LINUX:
            raise DeviceError(f"decode.workers: {count} needs Linux, whose processes can be forked safely; set it to 1")
        self.count, self.work = count, work
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
        """Every job with its result, as they are done."""
        if self.count == 1:
            yield from ((job, self.work(job)) for job in jobs)
            return
        while len(self._ends) < self.count:
            self._begin()
        waiting, busy = iter(jobs), dict[Connection, Job]()
        idle: Sequence[Connection] = self._ends
        while True:
            for end, job in zip(idle, waiting, strict=False):
                busy[end] = job
                end.send(job)
            if not busy:
                return
            idle = [end for end in wait(list(busy)) if isinstance(end, Connection)]
            for end in idle:
                yield busy.pop(end), self._result(end)

    def _begin(self) -> None:
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, [*self._ends, mine], self.work), daemon=True)
        with warnings.catch_warnings():
            # Python warns of forking a process with threads. Here they are those of torch, of which a worker uses none.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._ends.append(mine)
        self._processes.append(process)

    def _result(self, end: Connection) -> Result:
        try:
            done, answer = end.recv()
        except EOFError:
            raise WeftError(
                "a worker process was ended from outside, probably for want of memory; set a smaller decode.batch_tokens, or "
                "decode.workers: 1"
            ) from None
        if not done:
            raise answer
        result: Result = answer
        return result


def _serve(end: Connection, others: Sequence[Connection], work: Callable[[Job], Result]) -> None:
    """A worker's life: it ends when the process it comes from closes its end of the pipe, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError):
        while True:
            job = end.recv()
            try:
                answer: tuple[bool, Result | Exception] = True, work(job)
            except Exception as error:
                answer = False, error
            end.send(answer)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if LINUX else 1
