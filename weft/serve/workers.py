"""Several processes that serve on one socket, each with its own models."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from weft.errors import WeftError
from weft.serve.files import SHARED, shared_folder
from weft.serve.log import log_line
from weft.serve.settings import Settings
from weft.serve.sockets import HANDED, READY, STOPS, WORKER, address, command, hand_over, listener, stop_predecessor

PAUSE = 1.0
"""Seconds before a worker that ended is started again."""


class Workers:
    """Starts workers, starts them again if they end, and passes signals on to them.

    The operating system gives each new connection to one of them. They share a folder for metrics and translated files.
    """

    def __init__(self, settings: Settings) -> None:
        self._listener = listener(settings.host, settings.port)
        self._count, self.address = settings.workers, address(settings.host, self._listener)
        self._folder = shared_folder()
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = False
        self._failed = False

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT. Raises an error if a worker cannot start."""
        asyncio.run(self._run())
        log_line.close()
        if self._failed:
            raise WeftError("a worker could not start; see its message above")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._signal, signal.SIGHUP)
        loop.add_signal_handler(signal.SIGUSR2, hand_over, self._listener)
        ready = await asyncio.gather(*map(self._start, range(self._count)))
        if all(ready):
            log_line({"event": "serving", "address": self.address, "pid": os.getpid(), "workers": self._count})
            stop_predecessor()
        elif not self._stopping:
            self._failed = True
            self._stop()
        await asyncio.gather(*map(self._watch, range(self._count)))
        log_line({"event": "all workers stopped"})

    async def _start(self, number: int) -> bool:
        """Starts a worker; returns whether it serves."""
        reading, writing = os.pipe()
        listening = self._listener.fileno()
        own = {WORKER: str(number), READY: str(writing), HANDED: str(listening), SHARED: str(self._folder)}
        environment = {name: value for name, value in os.environ.items() if name != STOPS} | own
        # In a session of its own, so that Ctrl-C reaches it only once.
        self._running[number] = await asyncio.create_subprocess_exec(
            *command(), pass_fds=[listening, writing], env=environment, start_new_session=True
        )
        os.close(writing)
        if self._stopping:
            self._signal(signal.SIGTERM)
        try:
            return bool(await asyncio.to_thread(os.read, reading, 1))  # nothing if the worker has ended
        finally:
            os.close(reading)

    async def _watch(self, number: int) -> None:
        """Starts a worker again whenever it ends, until all are stopped."""
        while True:
            status = await self._running[number].wait()
            if self._stopping:
                return
            log_line({"event": "a worker ended; starting another", "worker": number, "status": status})
            await asyncio.sleep(PAUSE)
            if not self._stopping:
                await self._start(number)

    def _stop(self) -> None:
        """Stops all workers gracefully at the first call, and at once at the second."""
        self._stopping = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._running.values():
            with suppress(ProcessLookupError):
                worker.send_signal(number)
