"""Clients take turns: no request holds up another for long."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from tests.helpers.serving import connected, post, wait_for
from weft.decoding.predictor import BatchItem, ExpectedCost
from weft.serve import continuous_batch, recent_traffic
from weft.serve import request_batcher as batcher
from weft.serve.continuous_batch import Done, JobFeed
from weft.serve.fair_queue import Batch, BatchTimeModel, FairQueue, Job, RequestTicket
from weft.serve.prometheus import Metrics
from weft.serve.recent_traffic import RecentTraffic
from weft.serve.request_batcher import CpuThreads, tokenize
from weft.serve.served_model import BatchResult, TranslationQuery
from weft.serve.settings import Settings
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.predictor import TranslationPredictor

HOSTILE = {"text": [f"a b c d e f g h i j k l m n o p q {k}" for k in range(256)], "model": "reverse"}
HOSTILE |= {"beam": 16, "min_length": 100}


def ticket(client: str, parts: int, *, rows: int = 1, steps: int = 10, group: str = "g", since: float = 0.0) -> RequestTicket:
    made = RequestTicket(client, [], SimpleNamespace(done=lambda: False))  # type: ignore[arg-type]
    made.jobs = [Job(made, None, BatchItem([1] * steps), group, "kind", ExpectedCost(rows, steps), since) for _ in range(parts)]  # type: ignore[arg-type]
    return made


def clients(queue: FairQueue, seconds: float = 1.0) -> list[str]:
    return [job.ticket.client for job in queue.take(seconds, 10_000).jobs]


def test_a_batch_is_bounded_by_the_measured_time_of_its_rows_and_steps() -> None:
    times = BatchTimeModel(first=0.01)
    queue = FairQueue(times)
    queue.add(ticket("a", 1000, rows=4, steps=5))
    assert len(queue.take(1.0, 10_000).jobs) == 5  # 4 rows · 5 steps · 10 ms each
    for rows in (4, 40, 80) * 20:
        times.learn("kind", rows, 5, 5 * (0.05 + 0.001 * rows))
    assert len(queue.take(1.0, 10_000).jobs) == 37  # a step takes 50 ms and 1 ms per row
    assert len(queue.take(9.0, 10_000).jobs) == 80  # at most four times as many rows as before
    assert len(queue.take(0.0, 10_000).jobs) == 1
    assert times.seconds("kind", 100, 10) == pytest.approx(1.5, rel=0.1)


def test_texts_are_read_in_turns(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(batcher, "tokenize", lambda queries: counts.append(len(queries)) or tokenize(queries))
    tested, model = batcher.Batcher(Settings(), Metrics()), models.served[0]

    async def ask() -> list[list[Any]]:
        many, one = [TranslationQuery(model, f"a {number}") for number in range(40)], [TranslationQuery(model, "b c")]
        return await asyncio.gather(tested.answer(many, "greedy"), tested.answer(one, "other"))

    tested.start()
    try:
        found = asyncio.run(ask())
    finally:
        tested.close()
    assert list(map(len, found)) == [40, 1] and found[1][0].text == "c b"
    assert counts == [16, 1, 16, 8], "the other client waits for a few of the texts, not for all"


def test_the_batch_of_the_other_lane_begins_when_this_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = batcher.Batcher(Settings(), Metrics())
    monkeypatch.setattr(tested, "_decode_batch", lambda batch, began, between: BatchResult([None], 1, 0.0))
    monkeypatch.setattr(tested, "_finish", lambda batch, result: None)
    monkeypatch.setattr(batcher, "joins", lambda job: False)
    monkeypatch.setattr(tested, "_threads", SimpleNamespace(set=lambda *_, **__: None, learn=lambda *_: None))
    tested._running[1] = 5.0  # sent long ago, while the model process ran the batch of lane 0
    batch = Batch()
    batch.add(ticket("a", 1).jobs[0])
    tested._run(batch, 0)
    assert tested._running == {1: tested._ended} and tested.busy_since == tested._ended > 5.0


def test_a_wide_or_long_search_makes_small_batches(models: Any) -> None:
    model = models.served[0]

    def cost(**options: Any) -> ExpectedCost:
        terms = Terms(options.pop("use", ()))
        (pending,) = tokenize([TranslationQuery(model, "a b c", tuple(options.items()), terms=terms)])
        return pending.predictor.expected_cost(pending.items[0])

    assert cost(beam=1) == (1, 4) and cost(beam=16) == (16, 4) and cost(n_best=7) == (7, 4)
    assert cost(beam=2, min_length=9).steps == 9 and cost(beam=2, use=("b",)).rows == 8


def test_clients_take_turns() -> None:
    queue = FairQueue(BatchTimeModel(first=0.01))
    queue.add(ticket("greedy", 100))
    assert clients(queue) == ["greedy"] * 10
    queue.add(ticket("small", 1))
    queue.add(ticket("other", 20))
    assert sorted(clients(queue)[:3]) == ["greedy", "other", "small"]
    later = clients(queue)
    assert later.count("greedy") == later.count("other") == 5
    queue.remove(queue.newest("other"))
    assert set(clients(queue)) == {"greedy"}


def test_small_requests_of_a_client_do_not_wait_for_its_large_ones() -> None:
    queue = FairQueue(BatchTimeModel(first=0.01))
    large, small = ticket("one", 100), ticket("one", 1)
    queue.add(large)
    clients(queue)
    queue.add(small)
    assert small in [job.ticket for job in queue.take(1.0, 10_000).jobs]
    assert len(queue) == len(large.jobs) == 100 - 10 - 9


def test_a_single_request_gets_all_cores_if_that_is_faster() -> None:
    before, threads, batch = torch.get_num_threads(), CpuThreads(1, 2), Batch(work=40, steps=10)
    try:
        for seconds in ({1: 0.4, 2: 0.2}, {1: 0.2, 2: 0.4}):
            chosen = []
            for _ in range(100):
                chosen.append(threads.set(batch, single=True))
                threads.learn(batch, seconds[chosen[-1]])
            assert chosen[50:].count(min(seconds, key=seconds.__getitem__)) >= 45  # the other is tried again
        assert threads.set(batch, single=False) == torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_nobody_is_overtaken_for_ever() -> None:
    queue = FairQueue(BatchTimeModel(first=0.01))
    large = ticket("one", 3)
    queue.add(large)
    old = ticket("two", 100)
    queue.add(old)
    for number in range(40):
        queue.add(ticket("one", 1))
        queue.add(ticket(f"new {number}", 1))
        queue.take(0.3, 10_000)
    assert not large.jobs and len(old.jobs) < 95


def test_only_jobs_of_one_group_are_batched() -> None:
    queue = FairQueue(BatchTimeModel(first=0.01))
    for number in range(4):
        queue.add(ticket(f"client {number}", 2, group="even" if number % 2 == 0 else "odd"))
    assert sorted(clients(queue)) == ["client 0"] * 2 + ["client 2"] * 2
    assert sorted(clients(queue)) == ["client 1"] * 2 + ["client 3"] * 2
    assert not queue


def test_a_short_request_overtakes_a_costly_one_which_ends_when_its_client_leaves(serve: Any) -> None:
    shown = serve()
    batcher = shown.server.service.batcher
    with connected(shown) as line:
        line.sendall(post(json.dumps(HOSTILE).encode()))
        wait_for(lambda: batcher.busy_since is not None and batcher.length > 0)
        assert shown.translate("a b", model="reverse")[0]["text"] == "b a"
        assert batcher.length > 0  # the costly one is not done
    wait_for(lambda: batcher.length == 0 and batcher.busy_since is None)
    text = shown.client.get("/metrics").text
    assert int(re.search(r"^weft_texts_total (\d+)\.0$", text, re.M).group(1)) < 200  # type: ignore[union-attr]


def test_a_long_part_is_interrupted_for_other_clients(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, real = serve(), TranslationPredictor.run
    began, answered = threading.Event(), threading.Event()

    def run(predictor: Any, parts: Any, control: Any = None) -> Any:
        if parts[0].text != "long":
            return real(predictor, parts, control)
        began.set()
        for _ in range(1000):
            control.stop_unwanted(torch.tensor([0]), torch.tensor([5]))
            if answered.wait(0.01):
                return real(predictor, parts, control)
        raise AssertionError("nobody was answered meanwhile")

    monkeypatch.setattr(TranslationPredictor, "run", run)
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=shown.url, transport=transport, timeout=30) as other:
        long = pool.submit(shown.translate, "long", model="reverse")
        assert began.wait(30)
        body = {"text": "a b", "model": "reverse"}
        assert other.post("/v1/translate", json=body).json()["translations"][0]["text"] == "b a"
        answered.set()
        assert len(long.result()) == 1


def test_a_full_queue_drops_the_newest_request_of_the_greediest_client(serve: Any, slow: Any) -> None:
    shown = serve(queue=4)
    first = slow.pool.submit(shown.translate, "a b", model="reverse")
    assert slow.began.wait(30)
    body = {"text": ["c d", "e f"], "model": "reverse"}
    waiting = [slow.pool.submit(shown.client.post, "/v1/translate", json=body | {"beam": k}) for k in (1, 2)]
    wait_for(lambda: shown.server.service.batcher.length == 4)
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(base_url=shown.url, transport=transport, timeout=30) as other:
        asked = slow.pool.submit(other.post, "/v1/translate", json={"text": "g h", "model": "reverse"})
        wait_for(lambda: shown.server.service.batcher.length == 3)
        slow.go.set()
        assert asked.result().json()["translations"][0]["text"] == "h g"
    assert first.result() and sorted(each.result().status_code for each in waiting) == [200, 503]
    found = shown.post("/v1/translate", status=400, text=list("hijklm"), model="reverse")
    assert "at most 4" in found["error"]


def interrupted(tested: batcher.Batcher, names: tuple[str, ...] = ("one",), steps: int = 100) -> list[int]:
    """How many jobs run when a batch of these clients can be interrupted for others."""
    ran: list[int] = []

    def decode(batch: Batch, began: float, between: Any) -> BatchResult:
        ran.append(len(batch.jobs))
        between()
        return BatchResult([None] * len(batch.jobs), len(batch.jobs), 0.0)

    tested._decode_batch = decode  # type: ignore[method-assign]
    tested._finish = lambda batch, result: None  # type: ignore[method-assign]
    long = Batch()
    for name in names:
        long.add(ticket(name, 1, steps=steps).jobs[0])
        tested._queue.add(waiting := ticket(name, 1))
        tested._queue.remove(waiting)  # the client has got something
    tested._interludes[0] = 0.0
    tested._interlude(long, 0.0, 0)
    return ran


def test_only_as_much_joins_a_batch_at_once_as_is_encoded_quickly() -> None:
    queue, running = FairQueue(BatchTimeModel(first=1e-6)), ticket("one", 1).jobs
    queue.add(ticket("one", 50, steps=10))
    assert [len(queue.join(1.0, 10_000, running, 50, most)) for most in (100, 35, 5)] == [10, 3, 1]


def test_long_sources_are_batched_apart_and_timed_apart(models: Any) -> None:
    """Short ones would be padded to them, and the time of their steps would not tell the time of short ones."""
    queries = [TranslationQuery(models.served[0], text) for text in ("a b", "c", "a b " * 100)]
    pending = tokenize(queries)
    assert [len(each.items) for each in pending] == [1, 1, 1]
    jobs = batcher.make_jobs(RequestTicket("one", pending, None))  # type: ignore[arg-type]
    assert jobs[0].group == jobs[1].group != jobs[2].group and jobs[0].kind == jobs[1].kind != jobs[2].kind


def test_a_lane_is_left_to_short_sources_as_long_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding a long one cannot be interrupted, so those who come meanwhile would wait for it in every lane."""
    clock = [100.0]
    monkeypatch.setattr(recent_traffic.time, "monotonic", lambda: clock[0])
    long, short = ticket("one", 1, steps=500).jobs, ticket("two", 1).jobs
    lanes = RecentTraffic(2)
    lanes.begin(0, long)
    assert not lanes.reserved(1), "nobody has sent short ones"
    lanes.begin(1, short)
    assert lanes.reserved(1) and not lanes.reserved(0) and lanes.short
    clock[0] += 2.0
    assert not lanes.reserved(1) and not lanes.short
    lanes.begin(1, short)
    lanes.end(0)
    assert not lanes.reserved(1)
    alone = RecentTraffic(1)
    alone.begin(0, short)
    assert not alone.reserved(0), "the only lane runs everything"


def test_other_clients_are_expected_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(recent_traffic.time, "monotonic", lambda: clock[0])
    traffic, seen = RecentTraffic(2), list[bool]()
    for client, seconds in (("one", 2.0), ("one", 0.5), ("two", 0.5), ("two", 0.3), ("two", 0.3)):
        traffic.begin(0, ticket(client, 1).jobs)
        clock[0] += seconds
        seen.append(traffic.several)
    assert seen == [False, False, True, True, False]


def test_long_sources_have_no_turn_in_a_lane_that_is_left_to_short_ones() -> None:
    queue = FairQueue(BatchTimeModel(first=1e-6))
    queue.add(long := ticket("one", 2, steps=500, group="long"))
    assert queue.head() is long.jobs[0] and queue.head(short=True) is None and not queue.take(1.0, 10_000, short=True).jobs
    queue.add(short := ticket("two", 3))
    running = ticket("three", 1).jobs
    assert queue.join(1.0, 10_000, running, 9, 100) == [], "it is the turn of the long one"
    head, *others = short.jobs
    assert queue.head(short=True) is head and queue.join(1.0, 10_000, running, 1, 100, short=True) == [head]
    assert queue.take(1.0, 10_000, short=True).jobs == others and queue.head(short=True) is None


def test_a_client_beside_others_makes_short_steps_only() -> None:
    """Nobody is answered between two steps, so the many rows of one client would make all others wait."""
    queue, running = FairQueue(BatchTimeModel(first=0.001)), ticket("one", 1).jobs
    queue.add(ticket("greedy", 50, rows=4))
    queue.add(ticket("two", 2))
    joined = queue.join(9.0, 10_000, running, 50, 10_000, piece=0.012)
    assert sorted(job.ticket.client for job in joined) == ["greedy"] * 3 + ["two"] * 2
    assert [len(queue.take(9.0, 10_000, piece=piece).jobs) for piece in (0.0, 0.02, math.inf)] == [1, 5, 41]


def test_small_requests_come_first_in_the_middle_of_a_batch() -> None:
    queue = FairQueue(BatchTimeModel(first=0.001))
    for client in ("one", "one"):
        queue.add(made := ticket(client, 1, steps=1000))
        queue.remove(made)
    long = Batch()
    long.add(made.jobs[0])
    for client, parts, steps in (("many", 30, 10), ("wide", 1, 90), ("small", 1, 10), ("next", 1, 10)):
        queue.add(ticket(client, parts, steps=steps))
    names = [job.ticket.client for job in queue.take(0.12, 10_000, before=long).jobs]
    assert names[:3] == ["small", "next", "wide"]


def test_the_last_lane_takes_short_sources_and_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "joins", lambda job: True)
    tested = batcher.Batcher(Settings(lanes=2, window=0.0), Metrics())
    for made in (ticket("one", 1, steps=500, group="long"), ticket("two", 1)):
        for job in made.jobs:
            job.pending = SimpleNamespace(query=SimpleNamespace(model=SimpleNamespace(remote=None)))  # type: ignore[assignment]
        tested._queue.add(made)
    tested._traffic.begin(0, ticket("three", 1, steps=500).jobs)
    tested._traffic.begin(1, ticket("three", 1).jobs)
    assert [job.ticket.client for job in tested._take(1).jobs] == ["two"]
    assert [job.ticket.client for job in tested._take(0).jobs] == ["one"]


def test_a_long_batch_of_several_clients_is_interrupted_too() -> None:
    for steps, jobs in ((1000, [1]), (10, [])):  # expected to take longer than a batch may, or not
        tested = batcher.Batcher(Settings(slice=0.5), Metrics())
        tested._queue.add(ticket("third", 1))
        assert interrupted(tested, ("one", "two"), steps) == jobs


def test_the_time_of_others_that_interrupt_a_batch_is_not_that_of_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else short jobs would seem to be long, and none would join others any more."""
    clock, done, ages = [0.0], list[Done](), list[float]()
    monkeypatch.setattr(continuous_batch.time, "monotonic", lambda: clock[0])

    def pause(running: Batch, seconds: float) -> None:
        ages.append(seconds)
        clock[0] += 100.0

    feed = JobFeed(lambda running, room: [], done.append, pause, _since=0.0)
    first, second = ticket("one", 2).jobs
    for job in (first, second):
        feed.begin([job])
        clock[0] += 1.0
        feed.between()
    clock[0] += 1.0
    feed.finish([second.item, first.item], lambda: ["b", "a"])
    assert ages == [1.0, 2.0] and done[0].took == [2.0, 3.0] and done[0].seconds == 3.0


def test_what_interrupts_a_batch_is_short() -> None:
    """As whoever waits for the batch waits for it, too: a tenth of its time, or a single job."""
    for seconds, jobs in ((0.001, 10), (0.05, 1)):
        tested = batcher.Batcher(Settings(slice=1.0), Metrics())
        tested.times.first = seconds
        tested._queue.add(ticket("other", 50))
        assert interrupted(tested) == [jobs]


def test_a_long_job_that_interrupts_is_interrupted_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]

    def monotonic() -> float:
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(batcher.time, "monotonic", monotonic)
    tested = batcher.Batcher(Settings(slice=1.0), Metrics())
    tested.times.first = 0.05
    for client in ("other", "third", "fourth"):
        tested._queue.add(ticket(client, 1))
    assert interrupted(tested) == [1, 1] and len(tested._queue) == 1


def test_a_batch_is_not_interrupted_while_another_lane_runs_the_model() -> None:
    """Else it would wait for the batch of that lane, and nobody would be answered in the meantime."""
    tested = batcher.Batcher(Settings(), Metrics())
    tested._queue.add(ticket("other", 1))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with tested._own:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(30)
        asked = threading.Thread(target=interrupted, args=(tested,), daemon=True)
        asked.start()
        asked.join(10)
        assert not asked.is_alive() and len(tested._queue) == 1
    finally:
        done.set()
        thread.join()
    assert interrupted(tested) == [1]
