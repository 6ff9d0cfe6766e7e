"""Models in a separate process: `weft.serve.engine_process` and `weft.serve.engine_process`."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.serving import running, wait_for
from weft.decoding import tensor_slots
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.predictor import BatchItem
from weft.decoding.search_loop import Cancellation
from weft.errors import ConfigError, WeftError
from weft.serve import engine_process as engine
from weft.serve.engine_process import Engine, Remote, name_version
from weft.serve.served_model import BatchResult, ModelLocation
from weft.serve.served_models import Models

LOCATION = ModelLocation(("run",))


class Doubles:
    """A predictor that doubles numbers. A batch with a 0 waits until `go` is set; one with a negative number fails.

    While `hold` is set, results wait for the next batch to begin, which sets `begun`.
    """

    budget = 30

    def continuous(self, part: BatchItem) -> bool:
        return False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.batches: list[list[int]] = []
        self.stopped: list[int] = []
        self.hold, self.begun = False, threading.Event()

    def begin(self, parts: list[BatchItem], control: Cancellation) -> Callable[[], list[int]]:
        results, held = self.run(parts, control), self.hold
        self.hold = False
        if not held:
            self.begun.set()
        return lambda: self.finish(results, held)

    def finish(self, results: list[int], held: bool) -> list[int]:
        if held:
            assert self.begun.wait(20)
        if 26 in results:
            raise ConfigError("13 has no text")
        return results

    def run(self, parts: list[BatchItem], control: Cancellation) -> list[int]:
        numbers = [part.ids[0] for part in parts]
        self.batches.append(numbers)
        end = time.monotonic() + 20
        while 0 in numbers and not self.go.is_set() and time.monotonic() < end:  # a failed test does not set it
            control.between()
            self.stopped += control.gone()
            time.sleep(0.001)
        if min(numbers) < 0:
            raise ConfigError(f"{min(numbers)} is negative")
        return [2 * number for number in numbers]


def start(folder: Path, load: Callable[[ModelLocation], Any]) -> tuple[Engine, Remote]:
    """An engine in a thread of this process, and a way to use it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "models"))
    listening.listen()
    engine = Engine(listening, load)
    threading.Thread(target=engine.run, daemon=True).start()
    return engine, Remote(str(folder / "models"))


@pytest.fixture
def doubles() -> Iterator[Doubles]:
    made = Doubles()
    yield made
    made.go.set()


@pytest.fixture
def started(tmp_path: Path, doubles: Doubles) -> tuple[Engine, Remote]:
    def predictor(options: tuple[Any, ...]) -> Doubles:
        if options:
            raise ConfigError("no such option")
        return doubles

    return start(tmp_path, lambda location: SimpleNamespace(predictor=predictor))


def run(
    remote: Remote, *numbers: int, group: str = "a", size: int = 1, wanted: Callable[[int], bool] = lambda row: True
) -> BatchResult:
    parts = [BatchItem([number] * size) for number in numbers]
    return remote.run(remote.open(LOCATION), (), group, parts, Cancellation(len(parts), wanted))


def test_tasks_that_come_while_a_batch_runs_are_the_next_batch(started: tuple[Engine, Remote], doubles: Doubles) -> None:
    engine, remote = started
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(run, remote, 0)
        wait_for(lambda: doubles.batches)
        sent = []
        for numbers, options in (((1, 2), {}), ((3,), {}), ((4,), {"group": "b"}), ((5, 6), {"size": 9})):
            sent.append(pool.submit(run, remote, *numbers, **options))
            wait_for(lambda: len(engine._waiting) == len(sent))
        doubles.go.set()
        found = [each.result(30) for each in (first, *sent)]
    assert [each.results for each in found] == [[0], [2, 4], [6], [8], [10, 12]]
    # Those of another group, and those for which there is no room, are run apart.
    assert doubles.batches == [[0], [1, 2, 3], [4], [5, 6]]
    assert [each.together for each in found] == [1, 3, 3, 1, 2]
    assert found[1].seconds == pytest.approx(2 * found[2].seconds)


def test_the_next_batch_begins_while_texts_are_made_of_the_last(started: tuple[Engine, Remote], doubles: Doubles) -> None:
    remote, doubles.hold = started[1], True
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, remote, 1)
        wait_for(lambda: doubles.batches)
        assert run(remote, 2).results == [4] and first.result(30).results == [2]
        assert doubles.batches == [[1], [2]]
    with pytest.raises(WeftError, match="13 has no text"):
        run(remote, 13)
    assert run(remote, 3).results == [6], "the thread that makes texts goes on"


def test_a_task_that_is_too_large_for_the_device_is_divided(started: tuple[Engine, Remote], doubles: Doubles) -> None:
    _, remote = started
    parts = [BatchItem([number] * 10) for number in range(1, 8)]  # three of them fill the budget
    ran = remote.run(remote.open(LOCATION), (), None, parts, None)
    assert ran.results == [2, 4, 6, 8, 10, 12, 14] and ran.together == 7
    assert doubles.batches == [[1, 2, 3], [4, 5, 6], [7]]


def test_a_task_that_fails_does_not_hurt_the_others_of_its_batch(started: tuple[Engine, Remote], doubles: Doubles) -> None:
    engine, remote = started
    with ThreadPoolExecutor(3) as pool:
        pool.submit(run, remote, 0)
        wait_for(lambda: doubles.batches)
        bad, good = pool.submit(run, remote, -1), pool.submit(run, remote, 1)
        wait_for(lambda: len(engine._waiting) == 2)
        doubles.go.set()
        assert good.result(30).results == [2]
        with pytest.raises(WeftError, match="-1 is negative"):
            bad.result(30)


def test_rows_that_nobody_waits_for_are_stopped(started: tuple[Engine, Remote], doubles: Doubles) -> None:
    remote, left = started[1], set[int]()
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(run, remote, 0, 7, 8, wanted=lambda row: row not in left)
        wait_for(lambda: doubles.batches)
        left.add(1)
        wait_for(lambda: doubles.stopped == [1])
        doubles.go.set()
        assert len(sent.result(30).results) == 3
    doubles.go.clear()
    with ThreadPoolExecutor(1) as pool:
        link = pool.submit(remote._link).result()
        gone = pool.submit(run, remote, 0, 9)
        wait_for(lambda: len(doubles.batches) == 2)
        socket.socket(fileno=os.dup(link.fileno())).shutdown(socket.SHUT_RDWR)  # as if its process had ended
        wait_for(lambda: doubles.stopped == [1, 0, 1])
        doubles.go.set()
        assert gone.result(30).results == [0, 18], "it is sent again"


def test_what_cannot_be_run_or_sent_is_an_error_of_its_task(started: tuple[Engine, Remote], doubles: Doubles) -> None:
    remote, version = started[1], started[1].open(LOCATION)
    parts, control = [BatchItem([4])], Cancellation(1, lambda row: True)
    with pytest.raises(WeftError, match="no such option"):
        remote.run(version, (("bad", 1),), "a", parts, control)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doubles, "run", lambda parts, control: [lambda: None])
        with pytest.raises(RuntimeError):
            remote.run(version, (), "a", parts, control)
    assert remote.run(version, (), "a", parts, control).results == [8]


def test_a_task_for_a_model_that_is_not_open_opens_it(started: tuple[Engine, Remote]) -> None:
    engine, remote = started
    version = remote.open(LOCATION)
    engine._models.clear()  # as after a restart
    assert remote.run(version, (), "a", [BatchItem([4])], Cancellation(1, lambda row: True)).results == [8]


def test_a_version_is_loaded_once_and_two_are_kept(tmp_path: Path) -> None:
    loaded: list[ModelLocation] = []
    location = ModelLocation((str(tmp_path),))
    engine, remote = start(
        tmp_path, lambda location: loaded.append(location) or SimpleNamespace(predictor=lambda options: Doubles())
    )
    for number in (1, 2, 3):
        (tmp_path / "model.safetensors").write_bytes(b"x" * number)
        assert remote.open(location) == remote.open(location) == name_version(location)
    assert len(loaded) == 3
    assert [each.files[0][1] for each in engine._models] == [2, 3]


def test_a_run_that_cannot_be_opened_is_an_error_of_the_server(tmp_path: Path) -> None:
    _, remote = start(tmp_path, lambda location: Models([location], device="cpu").served[0])
    with pytest.raises(WeftError, match="there is no such run folder"):
        remote.open(ModelLocation((str(tmp_path / "nowhere"),)))


def test_a_server_answers_as_without_the_other_process(tmp_path: Path, reverse_run: Path, served: Any) -> None:
    location = ModelLocation((str(reverse_run),), ("en", "de"))
    engine, remote = start(tmp_path, lambda location: Models([location], device="cpu").served[0])
    texts = [f"a b {letter}" for letter in "abcdefgh"]
    with running(Models([location], device="cpu", remote=remote), cache=0) as shown, ThreadPoolExecutor(8) as pool:
        together = [each[0]["text"] for each in pool.map(shown.translate, texts)]
        assert together == [served.translate(text, model="reverse")[0]["text"] for text in texts]
        for options in ({"beam": 3, "n_best": 2}, {"use": ["x"]}, {"prefix": "c"}, {"attention": True}):
            assert shown.translate("a b c", **options) == served.translate("a b c", model="reverse", **options)
        explained = shown.client.post("/v1/explain", json={"text": "a b"})
        assert explained.status_code == 200 and "<html" in explained.text
        shown.post("/v1/translate", status=400, text="a b", beam=99)
        assert len(engine._models) == 1 and shown.client.get("/health").status_code == 200


def test_searches_of_usual_sizes_are_recorded_before_the_first_request(
    reverse_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = Models([ModelLocation((str(reverse_run),))], device="cpu").served
    recorder = SearchGraphs(lambda work: work)
    predictor: Any = model.predictor(())
    predictor.runner = recorder.runner("one")
    predictor.request = partial(predictor.request, runner=predictor.runner)
    monkeypatch.setattr(engine, "WORDS", (3,))
    monkeypatch.setattr(engine, "COPIES", (2, 4))
    monkeypatch.setattr(tensor_slots, "FEWEST", 2)
    engine.warm_up(model)
    sizes = {shapes[0][0][0] for what, _, shapes in recorder.graphs if what == "step"}
    assert recorder.counts()["refused"] == 0 and {2, 4} <= sizes
    assert any(what == "change" for what, _, _ in recorder.graphs)
