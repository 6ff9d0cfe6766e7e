"""Texts are read and written beside the event loop and the model, within budgets, and only while their client waits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from tests.helpers.serving import Running, connected, post, two_models, wait_for
from weft.errors import DataError, WeftError
from weft.serve import json_api
from weft.serve.document_reader_processes import Readers
from weft.tasks.translation import documents
from weft.tasks.translation.markup_and_tag_transfer import MarkupTransfer
from weft.tasks.translation.segmenter import Segmenter


def spin(*_: Any, **__: Any) -> Any:
    while True:
        pass


def refuse() -> None:
    raise DataError("no")


def allocate() -> int:
    return len(bytearray(3 << 30))


def die(traces: Path, times: int) -> int:
    """Kills its process the first times."""
    before = len(list(traces.iterdir()))
    if before < times:
        (traces / str(before)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return before


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    made.close()


HTML = {"text": "<p>a <b>b</b> c</p>", "format": "html", "model": "reverse"}
LONG = {"text": "a b. " * 600, "model": "reverse"}
PREFIX = {"text": "a b", "prefix": "x " * 2_000, "model": "reverse"}


def hold_up(monkeypatch: pytest.MonkeyPatch, where: str) -> dict[str, Any]:
    """Makes one step of a request endless; returns a request that gets there."""
    if where == "open":
        monkeypatch.setitem(documents.FORMATS, "html", spin)
        return HTML
    if where == "split":
        real = Segmenter.sentences
        monkeypatch.setattr(Segmenter, "sentences", lambda self, line, *a: (spin if len(line) > 999 else real)(self, line, *a))
        return LONG
    if where == "project":
        monkeypatch.setattr(MarkupTransfer, "transfer", spin)
        return HTML
    monkeypatch.setattr(documents.Document, "filled", spin)
    return HTML


@pytest.mark.parametrize("where", ["open", "split", "project", "fill"])
def test_a_text_that_takes_forever_holds_up_nobody_and_ends_with_its_client(
    serve: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    body = hold_up(monkeypatch, where)
    shown: Running = serve()
    busy = shown.server.service.readers._busy
    with connected(shown) as line:
        line.sendall(post(json.dumps(body).encode()))
        wait_for(lambda: busy.total() == 1)
        for number in range(10):
            assert shown.translate(f"a b {number}", model="reverse")
        assert busy.total() == 1
    wait_for(lambda: busy.total() == 0)


def test_work_beyond_its_budget_is_refused(readers: Readers) -> None:
    async def ask() -> None:
        with pytest.raises(HTTPException, match="computing time") as caught:
            await readers.do("a", spin, seconds=0)
        assert caught.value.status_code == 400
        with pytest.raises(RuntimeError, match="MemoryError"):
            await readers.do("a", allocate)
        with pytest.raises(WeftError, match="no"):
            await readers.do("a", refuse)
        assert await readers.do("a", len, "abc") == 3

    asyncio.run(ask())


def test_a_job_whose_process_was_killed_is_done_again_once(readers: Readers, tmp_path: Path) -> None:
    assert asyncio.run(readers.do("a", die, tmp_path, 1)) == 1
    with pytest.raises(RuntimeError, match="ended"):
        asyncio.run(readers.do("a", die, tmp_path, 9))
    assert len(list(tmp_path.iterdir())) == 3


def test_no_client_has_all_readers(readers: Readers) -> None:
    async def ask() -> None:
        greedy = [asyncio.create_task(readers.do("a", spin)) for _ in range(9)]
        await asyncio.sleep(0)
        assert [await readers.do("b", len, "ab") for _ in range(3)] == [2, 2, 2]
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        assert await readers.do("a", len, "a") == 1 and not readers._busy.total()

    asyncio.run(ask())


def test_threads_do_the_work_where_processes_cannot_be_forked() -> None:
    readers = Readers(forks=False)
    assert asyncio.run(readers.do("a", len, "abc")) == 3
    readers.close()


def test_prefixes_and_explanations_have_budgets(served: Running) -> None:
    assert "more than 1,000 characters" in served.post("/v1/translate", status=400, **PREFIX)["error"]
    text = "a b c d e f g h i j! " * 25
    refused = served.client.post("/v1/explain", json={"text": text, "model": "reverse", "beam": 16})
    assert refused.status_code == 400 and "with a beam of 16" in refused.json()["error"]


def test_readers_know_models_that_were_loaded_after_they_were_forked(
    serve: Any, monkeypatch: pytest.MonkeyPatch, reverse_run: Path, other_run: Path
) -> None:
    shown: Running = serve(two_models(reverse_run, other_run))
    service = shown.server.service
    assert shown.translate(**HTML)[0]["text"] == "<p>c <b>b</b> a</p>"
    monkeypatch.setattr(service.readers, "restart", lambda: None)  # as if a request came just before it
    asyncio.run_coroutine_threadsafe(service.reload(), shown.server._loop).result(30)  # type: ignore[arg-type]
    assert shown.translate(**{**HTML, "text": "<p>a <b>d</b> c</p>"})[0]["text"] == "<p>c <b>d</b> a</p>"


def test_many_attention_weights_become_json_in_another_process(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that takes long and cannot be interrupted, not even by another thread."""
    shown, real, done = serve(), Readers.do, list[str]()

    async def do(readers: Readers, client: str, work: Any, *arguments: Any, **budget: Any) -> Any:
        done.append(work.__name__)
        return await real(readers, client, work, *arguments, **budget)

    monkeypatch.setattr(Readers, "do", do)
    few = shown.translate("a b c", model="reverse", attention=True)
    assert "content" not in done
    monkeypatch.setattr(json_api, "MANY", 0)
    assert shown.translate("a b c", model="reverse", attention=True) == few and done[-1] == "content"
