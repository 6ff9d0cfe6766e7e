"""Connections: deadlines for headers and for reading, refusals, and stopping."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.helpers.serving import Slow, connected, post, wait_for
from weft.serve.middleware import LogWriter

GET = b"GET /languages HTTP/1.1\r\nHost: localhost\r\n\r\n"


def receive(line: socket.socket) -> bytes:
    """A whole response."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = line.recv(65536)
        assert part, received
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(each.split(b":")[1]) for each in head.lower().split(b"\r\n") if each.startswith(b"content-length"))
    while len(body) < length:
        body += line.recv(65536)
    return head + b"\r\n\r\n" + body


def test_every_request_of_a_connection_has_a_deadline_for_its_headers(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.serve.http_protocol.HEADERS_WITHIN", 0.3)
    shown = serve()
    with connected(shown) as line:
        for _ in range(2):
            line.sendall(GET)
            assert receive(line).startswith(b"HTTP/1.1 200")
        line.sendall(GET[:20])
        assert line.recv(1) == b""


def test_idle_connections_make_room_and_refusals_are_explained(serve: Any, monkeypatch: pytest.MonkeyPatch, slow: Slow) -> None:
    monkeypatch.setattr("weft.serve.server.most_connections", lambda kept: 2)
    shown = serve()
    idle = [connected(shown) for _ in range(2)]
    wait_for(lambda: len(shown.server.server_state.connections) == 2)
    busy = []
    for number in range(2):
        busy.append(connected(shown))
        busy[-1].sendall(post(b'{"text": "%s", "model": "reverse"}' % b"abc"[number : number + 1]))
        wait_for(lambda n=number: shown.server.guard.taken == n + 1)
    with connected(shown) as refused:
        refused.sendall(GET)
        answer = receive(refused)
    assert answer.startswith(b"HTTP/1.1 503") and b"retry-after: 5" in answer.lower() and b'{"error":' in answer
    slow.go.set()
    assert all(receive(line).startswith(b"HTTP/1.1 200") for line in busy)
    for line in (*idle, *busy):
        line.close()


def test_a_request_that_is_not_http_gets_a_json_error(served: Any) -> None:
    with connected(served) as line:
        line.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        head, _, body = receive(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and "error" in json.loads(body)


def test_a_client_that_does_not_read_is_cut_off(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.serve.http_protocol.READ_WITHIN", 0.2)
    monkeypatch.setattr("weft.serve.app.FILES", {"/large": "serve/page/page.js"})
    shown = serve()
    state = shown.server.server_state
    with connected(shown) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"
        line.settimeout(0.5)
        with suppress(OSError):  # TimeoutError, or the server has closed the connection
            for _ in range(100_000):
                line.sendall(request)  # never reads
        wait_for(lambda: not state.connections)


def test_answers_while_stopping_close_their_connection(serve: Any, slow: Slow) -> None:
    shown = serve()
    with connected(shown) as busy, connected(shown) as idle:
        idle.sendall(GET)
        assert b"connection: close" not in receive(idle).lower()
        busy.sendall(post(b'{"text": "a b", "model": "reverse"}'))
        assert slow.began.wait(30)
        shown.server.stop()
        wait_for(lambda: any(each.leaving for each in shown.server.server_state.connections))
        idle.sendall(GET)  # was on its way
        assert b"connection: close" in receive(idle).lower()
        slow.go.set()
        answer = receive(busy)
        assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer.lower() and busy.recv(1) == b""


def test_a_blocked_log_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.serve.middleware.WAITING", 3)
    go, began, lines = threading.Event(), threading.Event(), list[str]()

    def write(line: str) -> None:
        began.set()
        assert go.wait(30)
        lines.append(line)

    log = LogWriter(write)
    log({"number": 0})
    assert began.wait(30)
    for number in range(1, 10):
        log({"number": number})
    go.set()
    wait_for(lambda: len(lines) == 4)
    log({"number": 10})
    log.close()
    assert [json.loads(line) for line in lines[4:]] == [{"event": "log lines dropped", "lines": 6}, {"number": 10}]


def test_a_server_stops_although_its_event_loop_sleeps(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands makes the loop wait for hours. The end of this test stops the server."""
    httpx.get(f"{serve().url}/languages")  # leaves no connection that would wake the loop
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 0.0)
        threading.Event().wait(0.3)


def test_connections_that_wait_are_answered_when_the_server_stops(serve: Any) -> None:
    shown, go_on = serve(), threading.Event()
    shown.server._loop.call_soon_threadsafe(go_on.wait, 20)
    lines = [connected(shown) for _ in range(40)]
    for line in lines:
        line.sendall(GET)
    shown.server.stop()
    go_on.set()
    for line in lines:
        assert receive(line).startswith(b"HTTP/1.1 200")
        line.close()
