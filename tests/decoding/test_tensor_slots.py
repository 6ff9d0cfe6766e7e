"""Continuous batching by operations of torch: as it is, and recorded, with a recorder that runs the work again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from tests.decoding.test_continuous_search import SEARCHES, RandomFeed, ask, in_a_batch, request, sentences
from tests.decoding.test_cpp_search import made, same
from weft.decoding import tensor_slots
from weft.decoding.continuous_search import search_continuously
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.search_loop import EAGER, StepRunner
from weft.decoding.tensor_slots import TensorSlots

FAMILIES = ("pre", "post", "rotary", "linear", "bahdanau", "luong")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def runner(recorded: bool) -> StepRunner:
    return SearchGraphs(lambda work: work).runner("one") if recorded else EAGER


@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("name", FAMILIES)
def test_texts_are_those_of_a_batch(name: str, kind: str, recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are few at first, and their stores are nearly full when the last sources come."""
    monkeypatch.setattr(tensor_slots, "PREFIX", 6)
    monkeypatch.setattr(tensor_slots, "SOURCE", 16)
    model, chance = made(name, **({"max_length": 200} if name == "post" else {})), random.Random(name + kind)
    some = sentences(20, chance)
    feed = RandomFeed(list(some), chance)
    slots = TensorSlots(model, replace(request(some, kind), max_tokens=[]), runner(recorded), 25, 8, few=2)
    with closing(slots):
        search_continuously(slots, feed.take(1), feed, ask(kind), lambda parts, texts: texts)
    same([feed.found[each.number] for each in some], in_a_batch(model, kind, some))
    assert feed.most == 8


def test_idle_places_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence after the other in the same place, for longer than the stores of the other places are."""
    monkeypatch.setattr(tensor_slots, "PREFIX", 6)
    model, some = made("pre"), sentences(12, random.Random(3))
    for each in some:
        each.most = 24
    feed, slots = (
        RandomFeed(list(some), random.Random(3)),
        TensorSlots(model, replace(request(some, "beam"), max_tokens=[]), EAGER, 25, 4, few=4),
    )
    feed.take = lambda room: [feed.waiting.pop(0)] if feed.waiting and not slots._busy else []  # type: ignore[method-assign]
    search_continuously(slots, feed.take(1), feed, ask("beam"), lambda parts, texts: texts)
    same([feed.found[each.number] for each in some], in_a_batch(model, "beam", some))


def test_a_cancelled_sentence_frees_its_place() -> None:
    model, some = made("pre"), sentences(9, random.Random(1))
    for each in some:
        each.most = 25
    feed = RandomFeed(list(some), random.Random(4), unwanted={0, 4})
    slots = TensorSlots(model, replace(request(some, "sample"), max_tokens=[]), EAGER, 25, 2, few=2)
    search_continuously(slots, feed.take(1), feed, ask("sample"), lambda parts, texts: texts)
    plain = in_a_batch(model, "sample", some)
    rest = [number for number in range(9) if number not in {0, 4}]
    same([feed.found[number] for number in rest], [plain[number] for number in rest])
    assert len(feed.found[0][0].tokens) < 25


def test_a_state_whose_sources_begin_together_has_no_places() -> None:
    """The cache of a window counts its calls on the host, for all sources alike."""
    model, some = made("local"), sentences(1, random.Random(1))
    slots = TensorSlots(model, replace(request(some, "greedy"), max_tokens=[]), EAGER, 25, 2, few=2)
    assert not slots.possible()
    assert TensorSlots(made("pre"), replace(request(some, "greedy"), max_tokens=[]), EAGER, 25, 2, few=2).possible()
