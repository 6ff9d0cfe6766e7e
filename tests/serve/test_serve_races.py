"""State that several threads of the server share."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from weft.serve import fair_queue
from weft.serve.bounded_cache import BoundedCache
from weft.serve.fair_queue import BatchTimeModel


def beside(work: Any) -> None:
    """Runs `work` in another thread; goes on if it has to wait for this one."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(0.2)


class Key:
    """A key that lets another thread act whenever it is looked up."""

    def __init__(self, act: Any) -> None:
        self.act, self.lookups = act, 0

    def __hash__(self) -> int:
        self.lookups += 1
        if self.lookups > 1:
            act, self.act = self.act, lambda: None
            beside(act)
        return 1


def test_two_threads_may_set_entries_of_a_full_cache() -> None:
    cache: BoundedCache[Any, str] = BoundedCache(1)
    key = Key(lambda: None)
    cache[key] = "first"
    key.act, key.lookups = lambda: cache.__setitem__("other", "theirs"), 0
    cache[key] = "second"  # the other thread evicts the entry while it is replaced
    assert cache.used == len(cache) == 1


def test_no_batch_is_lost_if_two_threads_learn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times, add = BatchTimeModel(), fair_queue._LinearFit.add
    waiting = [lambda: times.learn("kind", 1, 1, 1.0)]

    def slow_add(fit: Any, *values: float) -> None:
        while waiting:
            beside(waiting.pop())
        add(fit, *values)

    monkeypatch.setattr(fair_queue._LinearFit, "add", slow_add)
    times.learn("kind", 1, 1, 1.0)
    for thread in threading.enumerate():
        if thread.daemon and thread.name.endswith("(<lambda>)"):
            thread.join(5)
    assert times._fits["kind"].weight == pytest.approx(1 + fair_queue.DECAY)


def test_running_batches_are_changed_only_by_the_holder_of_the_lock(serve: Any) -> None:
    shown, unlocked = serve(), []
    batcher = shown.server.service.batcher

    class Watched(dict[int, float]):
        def __setitem__(self, lane: int, since: float) -> None:
            unlocked.extend([] if batcher._changed._is_owned() else [lane])
            super().__setitem__(lane, since)

        def __delitem__(self, lane: int) -> None:
            unlocked.extend([] if batcher._changed._is_owned() else [lane])
            super().__delitem__(lane)

    batcher._running = Watched()
    shown.translate(["a b", "c d"], model="reverse")
    assert not unlocked
