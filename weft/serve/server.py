"""The server itself: sockets, signals, and an end that finishes what was begun."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from weft.errors import WeftError
from weft.serve.app import make_app
from weft.serve.middleware import Log, log_line
from weft.serve.models import Models
from weft.serve.service import Service
from weft.serve.settings import Settings

SWITCH = 1e-4
"""Seconds after which threads take turns."""

CONNECTIONS = 2_000
"""Open at once; what comes beyond is refused with 503."""

HEADERS_WITHIN = 15.0
"""Seconds in which a new connection has to say what it wants."""


class _Told(logging.Handler):
    """Passes what uvicorn says on to the server's own log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log({"event": record.levelname.lower(), "message": record.getMessage()})


class Patient(H11Protocol):
    """HTTP/1.1, with an end to connections that never say what they want."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(HEADERS_WITHIN, self._still_silent)

    def _still_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class _Quiet(uvicorn.Server):
    """uvicorn without its own signal handlers, which would end the process by the signal instead of with status 0."""

    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """A server that can be started in a process of its own (`run`) or beside other things, on any free port."""

    def __init__(self, settings: Settings, models: Models, log: Log = log_line) -> None:
        self.settings, self.log = settings, log
        self.service = Service(settings, models)
        self.guard = make_app(self.service, log)
        self._inner = _Quiet(
            uvicorn.Config(
                self.guard,
                http=Patient,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(settings.proxies),
                forwarded_allow_ips=settings.proxies or None,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=int(settings.grace),
                backlog=CONNECTIONS,
            )
        )
        self._inner.ready = self._ready
        self._socket = _bind(settings.host, settings.port)
        self.address = f"http://{_written(settings.host)}:{self._socket.getsockname()[1]}"

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then ends what was begun; SIGHUP reads the models again."""
        # The thread of the model would otherwise keep the interpreter for 5 ms whenever a request is read or written a bit.
        sys.setswitchinterval(SWITCH)
        asyncio.run(self._run())

    def stop(self) -> None:
        """Takes no more requests, and ends when those taken are answered. A second time: at once."""
        if self._inner.should_exit:
            self._inner.force_exit = True
        self._inner.should_exit = True

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = loop.create_task(self._reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            loop.add_signal_handler(signal.SIGHUP, reload)
        told, logger = _Told(self.log), logging.getLogger("uvicorn.error")
        logger.addHandler(told)
        try:
            await self._inner.serve(sockets=[self._socket])
        finally:
            logger.removeHandler(told)
        self.log({"event": "stopped", "taken": self.guard.taken, "answered": self.guard.answered})

    def _ready(self) -> None:
        self.log({"event": "serving", "address": self.address, "models": [model.name for model in self.service.models.served]})

    async def _reload(self) -> None:
        try:
            await self.service.reload()
            self.log({"event": "reloaded", "models": [model.name for model in self.service.models.served]})
        except WeftError as error:
            self.log({"event": "reload failed", "error": str(error)})


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's delay only of sockets that say they are TCP.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(CONNECTIONS)
    except OSError as error:
        made.close()
        raise WeftError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose others with --host and --port"
        ) from None
    return made


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
