"""Continuous batching in the server: requests join a running search, and get the texts that they get alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.serving import Running, wait_for
from tests.serve.test_serve_engine import LOCATION, start
from weft.decoding import continuous_search, tensor_slots
from weft.decoding.continuous_search import CppSlots
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.tensor_slots import TensorSlots
from weft.layers.kernels import cpp
from weft.layers.kernels.cpp import CannotBuild
from weft.serve import engine_process
from weft.serve.engine_process import Remote
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models


@pytest.fixture(scope="module")
def fast(reverse_run: Path) -> Models:
    try:
        cpp.kernels()
    except CannotBuild as error:
        pytest.skip(str(error))
    return Models([ModelLocation((str(reverse_run),), ("en", "de"))], device="cpu", fast=True)


class Held:
    """Lets a running search take a step only while `go` is set; counts sources per admission."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.admitted, self.running = threading.Event(), list[int](), list[int]()
        admit, advance = CppSlots.admit, CppSlots.advance

        def noted(slots: CppSlots, places: Any, sources: Any, request: Any) -> None:
            self.admitted.append(len(places))
            admit(slots, places, sources, request)

        def held(slots: CppSlots) -> list[int]:
            if not self.go.wait(0.05):
                return []
            return advance(slots)

        monkeypatch.setattr(CppSlots, "admit", noted)
        monkeypatch.setattr(CppSlots, "advance", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setattr(continuous_search, "STEPS", 1)
    return Held(monkeypatch)


def test_requests_join_a_running_search(fast: Models, serve: Callable[..., Running], held: Held) -> None:
    shown = serve(fast, cache=0)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(shown.translate, "a b c d")
        wait_for(lambda: held.admitted == [1])
        more = [pool.submit(shown.translate, text) for text in ("e f", "g")]
        wait_for(lambda: sum(held.admitted) == 3)  # although the first one is not done
        held.go.set()
        found = [each.result(30)[0]["text"] for each in (first, *more)]
    assert found == ["d c b a", "f e", "g"]
    wait_for(lambda: shown.server.service.batcher.busy_since is None)
    metrics = shown.client.get("/metrics").text
    assert "weft_texts_total 3.0" in metrics


def test_a_request_that_was_given_up_frees_its_places(fast: Models, serve: Callable[..., Running], held: Held) -> None:
    shown = serve(fast, cache=0, timeout=0.3)
    shown.post("/v1/translate", text=["a b", "c d"], status=504)
    held.go.set()
    wait_for(lambda: shown.server.service.batcher.busy_since is None)
    assert shown.translate("c d")[0]["text"] == "d c"


def test_a_search_that_fails_is_said_and_its_texts_run_one_by_one(
    fast: Models, serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = serve(fast, cache=0)

    def fail(slots: CppSlots) -> list[int]:
        raise ValueError("broken")

    monkeypatch.setattr(CppSlots, "advance", fail)
    assert shown.translate("a b c")[0]["text"] == "c b a"
    (event,) = [each for each in shown.lines if each["event"] == "a batch failed; its texts run one by one"]
    assert event["error"] == "ValueError"


def test_texts_and_scores_are_those_of_the_translator(fast: Models, serve: Callable[..., Running]) -> None:
    """64 clients, mixed lengths and options; some ask for terms, which need batches of their own."""
    shown, translator, chance = serve(fast, cache=0), fast.served[0].translator, random.Random(0)
    letters = "abcdefghij"
    texts = [" ".join(chance.choice(letters) for _ in range(chance.randint(1, 7))) for _ in range(60)]
    bodies = [{"beam": chance.choice([1, 4]), "n_best": chance.choice([1, 1, 2])} for _ in texts]
    for body in bodies:
        if body["n_best"] > 1:
            body["beam"] = 4
    bodies[7] |= {"avoid": ["a"], "beam": 4}

    def ask(number: int) -> Any:
        return shown.post("/v1/translate", text=texts[number], **bodies[number])["translations"][0]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(len(texts))))
    for number, (text, body, answer) in enumerate(zip(texts, bodies, found, strict=True)):
        if number == 7:
            assert "a" not in answer["text"].split()
            continue
        plain = translator.translate(text, beam=body["beam"], n_best=body["n_best"])
        assert answer["text"] == plain.text and answer["score"] == pytest.approx(plain.score, abs=1e-4)


def test_tasks_join_each_other_in_the_process_of_the_models(
    reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with a recorder that runs the work again. A cancelled row does not hold up its task."""
    (model,) = Models([ModelLocation((str(reverse_run),))], device="cpu").served
    predictor: Any = model.predictor(())
    predictor.runner = SearchGraphs(lambda work: work).runner("one")
    predictor.request = partial(predictor.request, runner=predictor.runner)
    monkeypatch.setattr(tensor_slots, "FEWEST", 2)
    monkeypatch.setattr(engine_process, "WORDS", ())
    admitted = list[int]()
    admit = TensorSlots.admit

    def noted(slots: TensorSlots, places: Any, sources: Any, request: Any) -> None:
        admitted.append(len(places))
        admit(slots, places, sources, request)

    monkeypatch.setattr(TensorSlots, "admit", noted)
    _, remote = start(tmp_path, lambda location: model)
    version, chance = remote.open(LOCATION), random.Random(2)
    sizes = [chance.choice([1, 3]) for _ in range(20)]
    texts = [[" ".join(chance.choices("abcdefghij", k=chance.randint(1, 7))) for _ in range(size)] for size in sizes]

    def ask(some: list[str]) -> list[str]:
        items = [group[0] for group in predictor.encode_input([predictor.parse_input(text) for text in some], 1)]
        return [result[0].text for result in remote.run(version, (), predictor.group(items[0]), items, None).results]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, texts))
    plain = model.translator.translate([text for some in texts for text in some])
    assert [text for some in found for text in some] == [each.text for each in plain]
    assert sum(admitted) == sum(sizes)


def answers(remote: Remote, predictor: Any, items: list[Any]) -> list[str]:
    """The texts of a task; fails if they do not come."""
    found = list[str]()

    def ask() -> None:
        ran = remote.run(remote.open(LOCATION), (), predictor.group(items[0]), items, None)
        found.extend(result[0].text for result in ran.results)

    threading.Thread(target=ask, daemon=True).start()  # a thread of a pool would keep a failed test from ending
    wait_for(lambda: found)
    return found


def test_a_task_may_have_the_same_row_several_times(fast: Models, tmp_path: Path) -> None:
    """As the one that measures the speed of a model before the server is ready."""
    (model,) = fast.served
    _, remote = start(tmp_path, lambda location: model)
    predictor = model.predictor(())
    ((item,),) = predictor.encode_input([predictor.parse_input("a b c")], 1)
    assert answers(remote, predictor, [item] * 4) == ["c b a"] * 4


def test_a_search_that_fails_leaves_no_task_without_an_answer(
    fast: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails between a text that is complete and its results; that text is searched for again."""
    (model,) = fast.served
    _, remote = start(tmp_path, lambda location: model)
    predictor = model.predictor(())

    def fails(feed: Any, parts: Any, results: Any) -> None:
        for part in parts:
            feed._rows.pop(part)
        raise RuntimeError("planted")

    monkeypatch.setattr(engine_process.TaskFeed, "finish", fails)
    items = [predictor.encode_input([predictor.parse_input(text)], 1)[0][0] for text in ("a b", "c d")]
    assert answers(remote, predictor, items) == ["b a", "d c"]
