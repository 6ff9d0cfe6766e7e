"""The server process: socket, signals, and a graceful shutdown."""

import asyncio
import errno
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from weft.errors import WeftError
from weft.serve.app import make_app
from weft.serve.http_protocol import CONNECTIONS, KEEP_ALIVE, Protocol, make_room, most_connections
from weft.serve.middleware import Log, log_line
from weft.serve.request_retries import JOURNAL_FD, Journal
from weft.serve.served_models import Models
from weft.serve.server_processes import WORKER, address, hand_over, listener, refuse_handshakes, report_ready, stop_predecessor
from weft.serve.service import Service
from weft.serve.settings import Settings

ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before others go on. All of them may be more than there are file descriptors."""

DRAINING = 200
"""Hundredths of a second in which a server that stops accepts the connections that wait."""

FOLLOW = 1.0
"""Seconds between two looks for newer adapted runs."""

SWITCH_INTERVAL = 1e-4
"""Seconds after which Python may switch between threads."""


class _ForwardLogs(logging.Handler):
    """Forwards uvicorn's warnings and errors to the server's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log({"event": record.levelname.lower(), "message": record.getMessage()})


class Server(uvicorn.Server):
    """A server with its own event loop. `run` may be called in the main thread or another; port 0 takes any free port."""

    def __init__(self, settings: Settings, models: Models, log: Log = log_line) -> None:
        self.log, self.service = log, Service(settings, models, log)
        number = os.environ.pop(JOURNAL_FD, "")
        self._journal = Journal(int(number)) if number else None
        most = most_connections(1 if self._journal is None else 2)
        self.guard = make_app(self.service, log)
        self.guard.full = lambda: len(self.server_state.connections) > most
        self.guard.stopping = lambda: self.should_exit
        self._socket = listener(settings.host, settings.port)
        if self._journal is not None:
            self._socket = self._journal.listening(self._socket)
        self.address = address(settings.host, self._socket)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared = WORKER in os.environ or "LISTEN_FDS" in os.environ  # another process has the socket, too
        self._complained = float("-inf")
        self._tasks: set[asyncio.Task[Any]] = set()
        super().__init__(
            uvicorn.Config(
                self.guard,
                http=type("LimitedProtocol", (Protocol,), {"most": most, "journal": self._journal}),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(settings.proxies),
                forwarded_allow_ips=settings.proxies or None,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(settings.grace),
                backlog=ACCEPTED_AT_ONCE,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until SIGTERM or SIGINT, then answers the requests in progress and returns. SIGHUP reloads the models.

        SIGUSR2 starts a new process that takes over the socket, so that a restart refuses no connection.
        """
        # At Python's default of 5 ms the model's thread would delay every read and write of a request by that much.
        sys.setswitchinterval(SWITCH_INTERVAL)
        asyncio.run(self._run())
        log_line.close()

    def stop(self) -> None:
        """Shuts down after answering the requests in progress. A second call ends the server at once. For any thread."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: None)  # wakes a loop that sleeps too long

    def _stop_now_or_later(self) -> None:
        """Stops gracefully at the first signal; ends the process at the second, whatever it is doing."""
        if self.should_exit:
            self.log({"event": "ended at the second signal"})
            log_line.close(0.5)
            os._exit(1)
        self.stop()

    def _hand_over(self) -> None:
        self.log({"event": "handing over to a new process"})
        self._shared = True
        hand_over(self._socket, self.service.files.folder)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's signal handlers, which would end the process by the signal instead of with status 0."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._socket.listen(CONNECTIONS)  # the number that wait; `backlog` is also the number that are accepted at once
        worker = os.environ.get(WORKER)
        self._log_models(f"worker {worker} is ready" if worker else "serving", address=self.address, pid=os.getpid())
        stop_predecessor()
        if self._journal is not None:
            self._journal.take_over(self._accept)
        report_ready()

    def _accept(self, connection: socket.socket, *, request: bool) -> None:
        """Serves a connection that another worker has accepted. request: whether it has sent a request."""
        self.service.metrics.count(retried=request)

        def protocol() -> Any:
            return self.config.http_protocol_class(
                config=self.config,  # type: ignore[call-arg]
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        self._keep(asyncio.get_running_loop().connect_accepted_socket(protocol, connection))

    def _keep(self, work: Coroutine[Any, Any, Any]) -> None:
        """Does some work beside the others."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts the connections that wait, then closes the socket: the system would reset them."""
        if not self._shared:
            refuse_handshakes(self._socket)
        for _ in range(DRAINING):
            await asyncio.sleep(0.01)
            if not select.select([self._socket], [], [], 0)[0]:
                break
        await super().shutdown(sockets)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error of the event loop, one a second. If no file descriptor is left, closes idle connections."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            make_room(self.server_state.connections)
        if loop.time() - self._complained >= 1:
            self._complained = loop.time()
            self.log({"event": "error", "message": context.get("message"), "error": type(error).__name__})

    async def _run(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._report)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop_now_or_later)
            loop.add_signal_handler(signal.SIGUSR2, self._hand_over)
            loop.add_signal_handler(signal.SIGHUP, lambda: self._keep(self._reload()))
        handler, logger = _ForwardLogs(self.log), logging.getLogger("uvicorn.error")
        logger.addHandler(handler)
        try:
            if WORKER in os.environ:
                self._keep(self._work_for(os.getppid()))
            if self.service.models.adapted:
                self._keep(self._follow_adaptations())
            await self.serve(sockets=[self._socket])
        finally:
            logger.removeHandler(handler)
        self.log({"event": "stopped", "taken": self.guard.taken, "answered": self.guard.answered})

    async def _work_for(self, parent: int) -> None:
        """Shows the gauges of this process to the others; stops if the process that started it has ended."""
        while not self.should_exit:
            self.service.metrics.refresh_gauges()
            await asyncio.sleep(1.0)
            if os.getppid() != parent:
                self.stop()

    async def _follow_adaptations(self) -> None:
        """Reloads the models when `weft adapt` has made a newer adapter, or one was removed. What failed is not tried again."""
        failed: list[tuple[str, ...]] = []
        while not self.should_exit:
            await asyncio.sleep(FOLLOW)
            newer = await asyncio.to_thread(lambda: self.service.models.newer)
            if newer and newer != failed:
                await self._reload()
                failed = self.service.models.newer

    async def _reload(self) -> None:
        try:
            await self.service.reload()
            self._log_models("reloaded")
        except WeftError as error:
            self.log({"event": "reload failed", "error": str(error)})

    def _log_models(self, event: str, **facts: Any) -> None:
        self.log({"event": event, **facts, "models": [model.name for model in self.service.models.served]})
