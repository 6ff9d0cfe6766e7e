"""A server in the test process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from weft.serve.models import Models, Place
from weft.serve.server import Server
from weft.serve.settings import Settings


def two_models(first: Path, second: Path) -> Models:
    return Models([Place((str(first),), ("en", "de")), Place((str(second),), ("fr", "de"))], device="cpu")


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
        assert not thread.is_alive()
