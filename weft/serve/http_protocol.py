"""HTTP/1.1 connections with deadlines: for the headers of every request, and for reading the response."""

import asyncio
import json
import os
import resource
from collections import Counter
from collections.abc import Iterable
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from weft.serve.request_retries import Journal, RequestRecord, bytes_written

CONNECTIONS = 2_000
"""Open connections. Beyond that, idle connections of the address that has most are closed, or requests get status 503."""

SPARE = 24
"""File descriptors that are left for other purposes than connections: processes, files, and connections being accepted."""

HEADERS_WITHIN = 15.0
"""Seconds in which the headers of a request must arrive: the first from the start of the connection, others from their first
byte."""

READ_WITHIN = 20.0
"""Seconds in which a client must read some of its response."""

KEEP_ALIVE = 75
"""Seconds for which idle connections stay open: longer than proxies keep theirs, which would otherwise send requests into
connections that are being closed."""

LINGER = 5.0
"""Seconds for which idle connections stay open when the server stops.

A client that sends another request meanwhile is told to close its connection, so it never finds it closed."""


def allow_descriptors(wanted: int) -> int:
    """Allows this process as many file descriptors, if the system does. Returns how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        soft = max(soft, wanted if hard == resource.RLIM_INFINITY else min(hard, wanted))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def most_connections(descriptors: int = 1) -> int:
    """The connections that may be open, as far as the file descriptors of this process allow; each needs some of them."""
    allowed = allow_descriptors((1 + descriptors) * CONNECTIONS)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else SPARE
    return max(4, min(CONNECTIONS, (allowed - used - SPARE) // descriptors))


class ResponseTransport:
    """A transport that keeps the last bytes of a response back until they are released."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._held: list[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held is None:
            self._transport.write(data)
        else:
            self._held.append(data)

    def hold(self) -> None:
        """Keeps back what is written from now on."""
        self._held = []

    def bytes_after_release(self) -> int:
        """The value of `bytes_written` once everything written, also what is kept back, has been sent; 0 if unknown."""
        written = bytes_written(self._transport.get_extra_info("socket").fileno())
        return written and written + self._transport.get_write_buffer_size() + sum(map(len, self._held or ()))

    def release(self) -> None:
        """Writes what was kept back."""
        held, self._held = self._held, None
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self.release()
        self._transport.close()


class Protocol(H11Protocol):
    """Closes connections whose headers do not arrive in time or whose client does not read the response.

    most: the most connections of the server; further ones take the places of idle ones · journal: remembers requests for other
    workers, if there are any.
    """

    most = CONNECTIONS
    journal: Journal | None = None
    record: RequestRecord | None = None
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
        connection = transport.get_extra_info("socket")
        record = self.journal.record(connection) if self.journal is not None else None
        if record is not None:
            transport = ResponseTransport(transport)
            self.record, self.app = record, answer_with(self.app, record, transport)
        super().connection_made(transport)
        self.opened = self.loop.time()
        self._await_headers()
        if len(self.connections) > self.most:
            make_room(self.connections, but=self)
        if record is not None and record.length > 0:
            self._read(record.content)  # the worker that has read this was killed

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self.journal is not None:
            self.record = None
            self.journal.end(self.transport.get_extra_info("socket"))
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.record is not None:
            self.record.add(data)
        self._read(data)

    def _read(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()
        elif self.headers_timer is None and not self.transport.is_closing():
            self._await_headers()

    def on_response_complete(self) -> None:
        if self.leaving and self.cycle is not None:
            self.cycle.keep_alive = False
        if self.record is not None and isinstance(self.transport, ResponseTransport):
            rest = self.conn.trailing_data[0]
            if end := self.transport.bytes_after_release():
                self.record.answered(rest, end)
                self.transport.release()
            else:
                self.transport.release()
                self.record.answered(rest, 0)
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
        if self.record is not None:
            self.record.answering()
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


def answer_with(app: Any, record: RequestRecord, transport: ResponseTransport) -> Any:
    """The application, which marks the record of its request before it begins to answer, and keeps the end of the answer back
    until the record says where it is."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.answering()
            elif not message.get("more_body"):
                transport.hold()
            await send(message)

        await app(scope, receive, send_marked)

    return answer


def make_room(connections: Iterable[object], but: Protocol | None = None) -> None:
    """Closes the oldest idle connection of the address that has most connections."""
    others = [each for each in connections if isinstance(each, Protocol) and each is not but]
    counts = Counter(each.address for each in others)
    if idle := [each for each in others if each.idle and not each.transport.is_closing()]:
        max(idle, key=lambda each: (counts[each.address], -each.opened)).transport.abort()
