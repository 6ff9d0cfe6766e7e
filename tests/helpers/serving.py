"""A server in the test process."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from weft.decoding.predictor import Wanted
from weft.decoding.search_loop import Cancellation
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.serve.server import Server
from weft.serve.settings import Settings
from weft.tasks.translation.predictor import TranslationPredictor


def two_models(first: Path, second: Path) -> Models:
    return Models([ModelLocation((str(first),), ("en", "de")), ModelLocation((str(second),), ("fr", "de"))], device="cpu")


class Running:
    """A running server, an HTTP client for it, and its log lines."""

    def __init__(self, server: Server, lines: list[dict[str, Any]]) -> None:
        self.server, self.lines, self.url = server, lines, server.address
        self.client = httpx.Client(base_url=server.address, timeout=30, trust_env=False)

    def post(self, path: str, *, status: int = 200, headers: dict[str, str] | None = None, **body: Any) -> Any:
        given = {"content-type": "application/json", **(headers or {})}
        answer = self.client.post(path, content=json.dumps(body), headers=given)
        assert answer.status_code == status, answer.text
        return answer.json()

    def translate(self, text: Any, **options: Any) -> Any:
        return self.post("/v1/translate", text=text, **options)["translations"]


@contextmanager
def running(models: Models, **settings: Any) -> Iterator[Running]:
    lines: list[dict[str, Any]] = []
    server = Server(Settings(port=0, **settings), models, lines.append)
    thread = Thread(target=server.run)
    thread.start()
    shown = Running(server, lines)
    try:
        yield shown
    finally:
        shown.client.close()
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), what_runs(server)


def what_runs(server: Server) -> str:
    """The open connections of a server and the stacks of all threads, to see why it does not stop."""
    frames = sys._current_frames()
    stacks = ["".join([each.name, "\n", *traceback.format_stack(frames[each.ident])]) for each in threading.enumerate()]
    return "\n".join([*(str(vars(each)) for each in server.server_state.connections), *stacks])


class Slow:
    """Blocks every batch until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.began, self.batches = threading.Event(), threading.Event(), []
        self.pool = ThreadPoolExecutor(10)
        self.wanted: list[Wanted] = []
        real = TranslationPredictor.run

        def run(predictor: Any, parts: Any, control: Cancellation | None = None) -> Any:
            if control is None:  # the warm-up
                return real(predictor, parts)
            self.batches.append([part.text for part in parts])
            self.wanted.append(control.wanted)
            self.began.set()
            assert self.go.wait(30)
            return real(predictor, parts, control)

        monkeypatch.setattr(TranslationPredictor, "run", run)


def wait_for(condition: Any, times: int = 1000) -> None:
    for _ in range(times):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the condition did not become true in time")


def connected(shown: Any) -> socket.socket:
    host, port = shown.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def post(body: bytes, length: int | None = None, path: bytes = b"/v1/translate") -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path, len(body) if length is None else length) + body
