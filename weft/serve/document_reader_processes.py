"""Processes that work on texts beside the event loop and the model: documents, sentences, markup, explanations.

They are forked when they are first needed, so they share the memory of the models. A job has a budget of CPU time, after which
the system ends its process, and a process ends with the client that it works for. So no text can hold up other clients. Where
processes cannot be forked, threads do the work; these cannot be ended.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
from starlette.exceptions import HTTPException

from weft.errors import WeftError
from weft.worker_processes import LINUX, cores

SECONDS, LONG = 10, 30
"""CPU seconds of a usual job, and of an explanation."""

MEMORY = 2 << 30
"""Bytes that a job may take beside the memory that the process begins with."""

POLITENESS = 19
"""The priority by which a process stands back for the model and the event loop, as `nice` counts it."""

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """The error of another process. expected: the message is for users."""

    message: str
    expected: bool

    @staticmethod
    def of(error: Exception) -> Failure:
        """The failure to send. The message of an unexpected error may quote the text of a request, so it stays behind."""
        expected = isinstance(error, WeftError)
        return Failure(str(error) if expected else type(error).__name__, expected)

    def error(self) -> Exception:
        """The error to raise in the process that asked."""
        return WeftError(self.message) if self.expected else RuntimeError(self.message)


class StaleReader(Exception):
    """The process was forked before the model of a job was loaded."""


class EndedReader(RuntimeError):
    """The process ended in the middle of a job, for example because the system had no memory left."""


class Reader:
    """A forked process, and the connection to it. generation: how often models were reloaded before it was forked."""

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation
        context = multiprocessing.get_context("fork")
        self._end, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        with warnings.catch_warnings():
            # Python warns about forking a process with threads. The new process does not use what they may have locked.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def do(self, work: Callable[..., T], arguments: tuple[Any, ...], seconds: int) -> T:
        """Does a job, in this many CPU seconds. Only one thread may call this at a time."""
        try:
            self._end.send((work, arguments, seconds))
            answer = self._end.recv()
        except (EOFError, OSError):
            self._process.join()
            if self._process.exitcode == -signal.SIGXCPU:
                limit = f"reading it takes more than {seconds} s of computing time"
                raise HTTPException(400, f"Invalid request: {limit}; send less text, or simpler markup") from None
            raise EndedReader("the process that reads texts ended") from None
        if isinstance(answer, StaleReader):
            raise answer
        if isinstance(answer, Failure):
            raise answer.error()
        result: T = answer
        return result

    def kill(self) -> None:
        """Ends the process, whatever it is doing. A thread that waits for it gets an error."""
        self._process.kill()


def _work(end: Connection) -> None:
    """The main function of a reader. It ends when its parent closes the connection or dies."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # a server that stops answers its requests first
    # A connection of a client stays open as long as any process has it.
    os.closerange(3, end.fileno())
    os.closerange(end.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    os.nice(POLITENESS)
    torch.set_num_threads(1)
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError, OSError):
        while True:
            try:
                work, arguments, seconds = end.recv()
            except KeyError:
                end.send(StaleReader())
                continue
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, resource.RLIM_INFINITY))
            try:
                answer = work(*arguments)
            except Exception as error:
                answer = Failure.of(error)
            end.send(answer)


class Readers:
    """Readers that clients take in turns. No client has all of them.

    forks: whether to fork processes; else threads do the work, which hold `lock` meanwhile, because a model can be in use only
    once.
    """

    def __init__(self, lock: AbstractContextManager[Any] | None = None, *, forks: bool = LINUX) -> None:
        self._forks, self._lock = forks, lock or nullcontext()
        self._count = max(2, min(4, cores()))
        self._threads = ThreadPoolExecutor(self._count, "weft-reader")
        self._idle: list[Reader] = []
        self._generation = 0
        self._busy: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def do(self, client: str, work: Callable[..., T], *arguments: Any, seconds: int = SECONDS) -> T:
        """The result of a function for a client. Cancelling ends it. The function and its arguments are pickled."""
        await self._turn(client)
        loop, reader = asyncio.get_running_loop(), self._idle.pop() if self._idle else None
        done = retried = False
        try:
            if not self._forks:
                return await loop.run_in_executor(self._threads, self._do_here, work, arguments)
            while True:
                if reader is None or not reader.alive:
                    reader = await loop.run_in_executor(self._threads, Reader, self._generation)
                try:
                    result = await loop.run_in_executor(self._threads, reader.do, work, arguments, seconds)
                    done = True
                    return result
                except (StaleReader, EndedReader) as error:
                    if retried and isinstance(error, EndedReader):
                        raise
                    retried = isinstance(error, EndedReader)
                    reader.kill()
                    reader = None
        except (WeftError, RuntimeError):
            done = reader is not None and reader.alive
            raise
        finally:
            if done and reader is not None and reader.generation == self._generation:
                self._idle.append(reader)
            elif reader is not None:
                reader.kill()
            self._busy[client] -= 1
            self._wake()

    @property
    def forks(self) -> bool:
        """Whether processes read texts, which leave the model alone."""
        return self._forks

    def _do_here(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        with self._lock:
            return work(*arguments)

    async def _turn(self, client: str) -> None:
        """Waits until a reader is free for this client."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((client, turn))
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._busy[client] -= 1
                self._wake()
            self._waiting = [each for each in self._waiting if each[1] is not turn]
            raise

    def _wake(self) -> None:
        """Gives free readers to the clients that have the fewest."""
        while self._waiting and self._busy.total() < self._count:
            client, turn = min(self._waiting, key=lambda each: self._busy[each[0]])
            if self._busy[client] >= self._count - 1:
                return
            self._waiting.remove((client, turn))
            if not turn.done():
                self._busy[client] += 1
                turn.set_result(None)
        self._busy += Counter()  # forgets clients that have none

    def restart(self) -> None:
        """Ends the idle processes, which have the models of an earlier time, and the others after their jobs."""
        self._generation += 1
        while self._idle:
            self._idle.pop().kill()

    def close(self) -> None:
        """Ends all processes."""
        self.restart()
        self._threads.shutdown()
