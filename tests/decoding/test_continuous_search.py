"""Continuous batching: texts are those of a batch, whatever comes, goes and is cancelled beside them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.decoding.test_cpp_search import MODELS, VOCABULARY, made, same
from tests.helpers.int8_kernel import with_all_levels
from weft.data.batch import BOS, EOS
from weft.decoding.beam_search import BeamSearch
from weft.decoding.continuous_search import Feed, search_continuously, slots_opener
from weft.decoding.generate import GenerationRequest, generate
from weft.decoding.greedy_search import GreedySearch
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.sampling import SampleSearch
from weft.decoding.search_methods import Search
from weft.layers.int8 import in_int8
from weft.layers.kernels import cpp
from weft.layers.kernels.cpp import CannotBuild
from weft.models.base import Model

SEARCHES: dict[str, tuple[Search, int]] = {
    "greedy": (GreedySearch(), 1),
    "beam": (BeamSearch(width=4), 3),
    "sample": (SampleSearch(temperature=0.9, top_p=0.8, seed=3), 2),
}


@pytest.fixture(autouse=True)
def _all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    with_all_levels(monkeypatch)


@pytest.fixture
def in_cpp() -> Iterator[None]:
    try:
        kernels = cpp.kernels()
    except CannotBuild as error:
        pytest.skip(str(error))
    with torch.inference_mode(), cpp.using(kernels):
        yield


@dataclass(eq=False)
class Sentence:
    """A source, its prefix and the most tokens of its text; `number` names it to sampling."""

    ids: list[int]
    prefix: list[int]
    most: int
    number: int


def sentences(count: int, chance: random.Random) -> list[Sentence]:
    """Sentences of mixed lengths, some with a forced prefix."""
    found = []
    for number in range(count):
        ids = [chance.randrange(4, VOCABULARY) for _ in range(chance.randrange(1, 12))]
        prefix = [chance.randrange(4, VOCABULARY) for _ in range(chance.choice([0, 0, 1, 3]))]
        found.append(Sentence([*ids, EOS], [BOS, *prefix], chance.randrange(1, 25), number))
    return found


def request(some: Sequence[Sentence], kind: str, **options: Any) -> GenerationRequest:
    search, n_best = SEARCHES[kind]
    return GenerationRequest(
        search,
        [each.most for each in some],
        min_tokens=2,
        n_best=n_best,
        prefixes=[each.prefix for each in some],
        seeds=[each.number for each in some],
        **options,
    )


def ask(kind: str) -> Callable[[Sequence[Sentence]], tuple[list[list[int]], GenerationRequest]]:
    return lambda some: ([each.ids for each in some], request(some, kind))


@dataclass(eq=False)
class RandomFeed(Feed[Sentence]):
    """Gives sentences in random groups, sometimes none although places are free, and forgets the unwanted at random times."""

    waiting: list[Sentence]
    chance: random.Random
    unwanted: set[int] = field(default_factory=set)
    found: dict[int, list[Hypothesis]] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)
    running: int = 0
    most: int = 0

    def take(self, room: int) -> Sequence[Sentence]:
        least = 0 if self.running else min(1, len(self.waiting))
        count = self.chance.randint(least, max(least, min(room, len(self.waiting))))
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.running += count
        self.most = max(self.most, self.running)
        return taken

    def finish(self, parts: Sequence[Sentence], results: Callable[[], Sequence[Any]]) -> None:
        self.running -= len(parts)
        self.found.update(zip([part.number for part in parts], results(), strict=True))

    def between(self) -> None:
        self.forgotten.update(number for number in self.unwanted if self.chance.random() < 0.3)

    def wanted(self, part: Sentence) -> bool:
        return part.number not in self.forgotten


def searched(model: Model, kind: str, some: list[Sentence], size: int, seed: int, unwanted: Sequence[int] = ()) -> RandomFeed:
    feed = RandomFeed(list(some), random.Random(seed), set(unwanted))
    opener = slots_opener(model, replace(request(some, kind), max_tokens=[25]))
    assert opener is not None
    with closing(opener(size)) as slots:
        search_continuously(slots, feed.take(size), feed, ask(kind), lambda parts, texts: texts)
    return feed


def in_a_batch(model: Model, kind: str, some: list[Sentence]) -> list[list[Hypothesis]]:
    return generate(model, [each.ids for each in some], request(some, kind))[0]


@pytest.mark.usefixtures("in_cpp")
@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("name", MODELS)
def test_texts_are_those_of_a_batch(name: str, kind: str) -> None:
    model, some = made(name), sentences(23, random.Random(name + kind))
    plain = in_a_batch(model, kind, some)
    for seed, size in enumerate((1, 4, 9)):
        feed = searched(model, kind, some, size, seed)
        same([feed.found[each.number] for each in some], plain)
        assert feed.most == size  # as many side by side as there are places


@pytest.mark.usefixtures("in_cpp")
@pytest.mark.parametrize("kind", SEARCHES)
def test_int8_texts_are_those_of_a_batch(kind: str) -> None:
    model, some = in_int8(made("pre"), cpp.kernels()), sentences(15, random.Random(kind))
    feed = searched(model, kind, some, 4, 1)
    same([feed.found[each.number] for each in some], in_a_batch(model, kind, some))


@pytest.mark.usefixtures("in_cpp")
def test_a_sentence_that_nobody_waits_for_frees_its_place() -> None:
    model, some = made("pre"), sentences(12, random.Random(5))
    plain = in_a_batch(model, "sample", some)
    feed = searched(model, "sample", some, 2, 7, unwanted=[0, 1, 5])
    rest = [number for number in range(12) if number not in {0, 1, 5}]
    same([feed.found[number] for number in rest], [plain[number] for number in rest])
    cut = [len(feed.found[number][0].tokens) for number in (0, 1, 5)]
    assert feed.forgotten == {0, 1, 5} and sum(cut) < sum(len(plain[number][0].tokens) for number in (0, 1, 5))


@pytest.mark.usefixtures("in_cpp")
def test_what_belongs_to_single_sentences_is_searched_in_batches() -> None:
    model, some = made("pre"), sentences(2, random.Random(0))
    plain = request(some, "beam")
    assert slots_opener(model, replace(plain, no_repeat_ngram=2)) is None
    assert slots_opener(model, replace(plain, trace=True)) is None
    assert slots_opener(model, replace(plain, bias=torch.zeros(2, VOCABULARY))) is None
    assert slots_opener(model, replace(plain, search=BeamSearch(coverage_penalty=0.3))) is None
