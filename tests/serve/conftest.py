"""A server in this process, in front of the tiny model that reverses letters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from weft.serve.models import Models, Place
from weft.serve.server import Server
from weft.serve.settings import Settings

Serve = Callable[..., Any]


class Running:
    """A server at work, a client that speaks to it, and the lines of its log."""

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
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def models(reverse_run: Path, other_run: Path) -> Models:
    return Models([Place((str(reverse_run),), ("en", "de")), Place((str(other_run),), ("fr", "de"))], device="cpu")


@pytest.fixture(scope="session")
def served(models: Models) -> Iterator[Running]:
    """A server with ordinary settings; tests leave it as it is."""
    with running(models) as shown:
        yield shown


@pytest.fixture
def serve(models: Models) -> Iterator[Callable[..., Running]]:
    """Starts servers with other settings, or other models."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda own=None, **settings: stack.enter_context(running(own or models, **settings))
