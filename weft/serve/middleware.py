"""ASGI middleware for every request: limits on the body, security headers on the response, one line in the log.

The log has one JSON object per line on standard error, written by a thread of its own.
"""

import asyncio
import json
import os
import queue
import re
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serve.access_control import check_site
from weft.serve.prometheus import Metrics
from weft.serve.settings import Settings

Log = Callable[[dict[str, Any]], None]

WAITING = 10_000
"""Lines that may wait for a reader of standard error that is slow; further ones are dropped and counted."""


class LogWriter:
    """Writes lines in the background, so that a blocked standard error never holds up a request."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _write
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING)
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __call__(self, facts: dict[str, Any]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="weft-log", daemon=True)
                self._thread.start()
        line = json.dumps(facts, ensure_ascii=True, default=str)
        try:
            if self._dropped:
                self._lines.put_nowait(json.dumps({"event": "log lines dropped", "lines": self._dropped}))
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self, seconds: float = 2.0) -> None:
        """Writes the waiting lines; gives up after some seconds."""
        if self._thread is not None:
            try:
                self._lines.put(None, timeout=seconds)
            except queue.Full:
                return
            self._thread.join(seconds)
            self._thread = None

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)


def _write(line: str) -> None:
    """Writes past Python's buffer: a thread that is blocked in it would keep the process from ending."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        return
    left = f"{line}\n".encode()
    while left:
        left = left[os.write(number, left) :]


log_line = LogWriter()

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"content-security-policy": b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    b"frame-ancestors 'none'; form-action 'self'",
}

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
"""Identifiers of requests that a client or a proxy may choose, in the header X-Request-ID."""


MESSAGE = 400
"""Characters of an error message, which may quote the request."""


class GuardMiddleware:
    """Wraps the application: rejects foreign Host headers and large or slow bodies, and hides tracebacks from clients."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, log: Log = log_line) -> None:
        self.app, self.settings, self.metrics, self.log = app, settings, metrics, log
        self.taken = self.answered = 0
        self.full: Callable[[], bool] = lambda: False
        self.stopping: Callable[[], bool] = lambda: False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        name = next((value for key, value in scope["headers"] if key == b"x-request-id"), b"")
        name = name if REQUEST_ID.fullmatch(name) else uuid.uuid4().hex.encode()
        facts = scope.setdefault("weft.log", {})
        facts |= {"id": name.decode(), "client": scope["client"][0] if scope.get("client") else ""}
        self.taken += 1

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                added = {**HEADERS, b"x-request-id": name, **({b"connection": b"close"} if self.stopping() else {})}
                message["headers"] = [*message["headers"], *((k, v) for k, v in added.items() if k not in present)]
            await send(message)

        try:
            await self._handle(scope, receive, send_with_headers)
        except Exception as error:
            refusal = error if isinstance(error, HTTPException) else HTTPException(500, "internal error")
            if refusal is not error:
                # A message may quote the text of the request, so without --log-text only the places in the code are logged.
                message = repr(error) if self.settings.log_text else type(error).__name__
                trace = "".join(traceback.format_tb(error.__traceback__))
                self.log({"event": "error", "id": facts["id"], "error": message, "trace": trace})
            if not status:
                # The rest of the request stays unread, so the connection is closed.
                extra = {**(refusal.headers or {}), "Connection": "close"}
                response = JSONResponse({"error": one_line(str(refusal.detail))}, refusal.status_code, headers=extra)
                await response(scope, receive, send_with_headers)
        finally:
            self.answered += 1
            self._record(scope, status, time.monotonic() - began)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if self.full():
            raise HTTPException(503, "too many connections are open; try again later", {"Retry-After": "5"})
        check_site(self.settings, scope["method"], headers)
        scope = _without_prefix(scope, self.settings.prefix)
        body = await self._body(headers, receive)
        read = False

        async def replay() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        # A HEAD request is answered like GET; the connection leaves the body out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        await self.app(inner, replay, send)
        scope["route"] = inner.get("route")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Reads the whole body; refuses one that is too large or arrives too slowly."""
        limit = self.settings.body
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            raise HTTPException(413, f"the request is larger than {limit:,} bytes")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.settings.arrive):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the client disconnected before the end of its request")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise HTTPException(413, f"the request is larger than {limit:,} bytes")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise HTTPException(408, f"the request body did not arrive within {self.settings.arrive:g} s") from None

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "other")
        self.metrics.request(path, status, seconds)
        facts = {"event": "request", "method": scope["method"], "route": path, "status": status}
        self.log({**facts, "ms": round(1000 * seconds, 1), **scope.get("weft.log", {})})


def one_line(message: str, most: int = MESSAGE) -> str:
    """A message that may quote a request: one line of valid Unicode with at most `most` characters, and … if it was cut."""
    start = " ".join(message[: 2 * most].encode("utf-8", "replace").decode().split())
    return start if len(start) <= most and len(message) <= 2 * most else f"{start[:most]}…"


def _without_prefix(scope: Scope, prefix: str) -> Scope:
    """The request without the path that a proxy puts before all others. A proxy that removes it itself works, too."""
    path = scope["path"]
    if not prefix or (path != prefix and not path.startswith(f"{prefix}/")):
        return scope
    if path == prefix:
        raise HTTPException(307, "the path ends with /", {"Location": f"{prefix}/"})
    scope["path"] = path[len(prefix) :]
    scope["raw_path"] = scope.get("raw_path", path.encode())[len(prefix) :]
    return scope
