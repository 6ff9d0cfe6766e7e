"""HTTP/1.1 connections with deadlines: for the headers of every request, and for reading the response."""

import asyncio
import json
import os
import resource
from collections import Counter
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 2_000
"""Open connections. Beyond that, idle connections of the address that has most are closed, or requests get status 503."""

SPARE = 24
"""File descriptors that are left for other purposes than connections: processes, files, and connections being accepted."""

HEADERS_WITHIN = 15.0
"""Seconds in which the headers of a request must arrive: the first from the start of the connection, others from their first
byte."""

READ_WITHIN = 20.0
"""Seconds in which a client must read some of its response."""

LINGER = 5.0
"""Seconds for which idle connections stay open when the server stops, as they do otherwise (uvicorn's timeout_keep_alive).

A client that sends another request meanwhile is told to close its connection, so it never finds it closed."""


def most_connections() -> int:
    """The connections that may be open, as far as the file descriptors of this process allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        most = 2 * CONNECTIONS if hard == resource.RLIM_INFINITY else hard
        soft = max(soft, min(most, 2 * CONNECTIONS))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else SPARE
    return max(4, min(CONNECTIONS, soft - used - SPARE))


class Protocol(H11Protocol):
    """Closes connections whose headers do not arrive in time or whose client does not read the response.

    most: the most connections of the server; further ones take the places of idle ones.
    """

    most = CONNECTIONS
    headers_timer: asyncio.TimerHandle | None = None
    leaving = False
    opened = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is in progress. Headers that are incomplete do not count."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.opened = self.loop.time()
        self._await_headers()
        if len(self.connections) > self.most:
            make_room(self.connections, but=self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()
        elif self.headers_timer is None and not self.transport.is_closing():
            self._await_headers()

    def on_response_complete(self) -> None:
        if self.leaving and self.cycle is not None:
            self.cycle.keep_alive = False
        super().on_response_complete()
        self._watch_reading(self.transport.get_write_buffer_size())
        if self.conn.trailing_data[0] and self.idle:
            self._await_headers()
        if self.leaving and not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading(self.transport.get_write_buffer_size())

    def shutdown(self) -> None:
        """Stops after the request in progress, or after one that may be on its way."""
        self.leaving = True
        if self.idle:
            self.loop.call_later(LINGER, self._close_if_idle)
        else:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP."""
        body = json.dumps({"error": msg}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_headers(self) -> None:
        self._stop_waiting()
        self.headers_timer = self.loop.call_later(HEADERS_WITHIN, self._close_if_idle)

    def _stop_waiting(self) -> None:
        if self.headers_timer is not None:
            self.headers_timer.cancel()
            self.headers_timer = None

    def _close_if_idle(self) -> None:
        if self.idle and not self.transport.is_closing():
            self.transport.close()

    def _watch_reading(self, before: int) -> None:
        if before:
            self.loop.call_later(READ_WITHIN, self._abort_if_unread, before)

    def _abort_if_unread(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._watch_reading(left)


def make_room(connections: Iterable[object], but: Protocol | None = None) -> None:
    """Closes the oldest idle connection of the address that has most connections."""
    others = [each for each in connections if isinstance(each, Protocol) and each is not but]
    counts = Counter(each.address for each in others)
    if idle := [each for each in others if each.idle and not each.transport.is_closing()]:
        max(idle, key=lambda each: (counts[each.address], -each.opened)).transport.abort()
