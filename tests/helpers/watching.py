"""Run folders as training leaves them, without training, and the page of `weft watch` in the test process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from weft.config.sections import Config, save_config
from weft.tasks.base import Sample
from weft.training.log import JsonLines, Log, PlainLines
from weft.training.result_files import ResultFiles
from weft.watch.watch_server import WatchServer, watch_settings

KEY = "a-key"


def write_run(folder: Path, steps: int = 4, settings: Mapping[str, Any] | None = None, *, finished: bool = False) -> Log:
    """A run with a validation every two steps. Returns its log, which is open."""
    folder.mkdir(parents=True)
    save_config(Config().replaced({"train.steps": 8, **(settings or {})}), folder / "config.yaml")
    results = ResultFiles(folder)
    results._drawn = math.inf  # pictures would take most of the time
    log = Log([JsonLines(folder / "log.jsonl"), results, PlainLines(folder / "train.log", 8)])
    log.begin(0)
    log.note("model:      Transformer, as suits the data")
    write_steps(log, range(1, steps + 1))
    if finished:
        log.summary({"step": steps, "stopped": "steps", "weights": "best", "seconds": 1.0 * steps, "peak_memory": 5 << 20})
    return log


def write_steps(log: Log, steps: range) -> None:
    for step in steps:
        log.train(step, loss=5.0 / step, lr=0.001, tokens_per_second=1000.0, seconds=float(step), seconds_left=8.0 - step)
        if step % 2 == 0:
            log.samples(step, [Sample("a <b>dog</b>", "ein Hund", f"ein Hund {step}"), Sample("a cat", "eine Katze", "?")])
            log.validation(step, {"loss": 6.0 / step, "bleu": 10.0 * step})


class Watching:
    """A running page, and an HTTP client for it that has the key."""

    def __init__(self, server: WatchServer) -> None:
        self.url = server.address
        self.client = httpx.Client(base_url=server.address, timeout=60, trust_env=False, headers={"X-API-Key": KEY})

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        answer = self.client.get(path, params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


@contextmanager
def watching(folder: Path, *, control: bool = True, keys: tuple[str, ...] = (KEY,)) -> Iterator[Watching]:
    server = WatchServer(folder, watch_settings("127.0.0.1", 0, keys=frozenset(keys)), control=control)
    thread = Thread(target=server.run)
    thread.start()
    shown = Watching(server)
    try:
        yield shown
    finally:
        shown.client.close()
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
