"""Continuous batching: a search with places for sources. One whose text is complete is given to a waiting source at once.

A search of a batch (`search_loop.py`) ends with its longest text, and whatever comes meanwhile waits for that. Here every place
has its own first step, so sources come and go at any time. A text does not depend on what runs beside it, so it is that of a
batch. `docs/architecture.md` has the design, under continuous batching.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

import torch

from weft.decoding.cpp_search import CppMethod, CppSearch, cpp_method
from weft.decoding.generate import GenerationRequest, Writer, encode_sources, search_request
from weft.decoding.hypotheses import Hypothesis, backtrace, or_lost
from weft.decoding.ngram_blocking_and_rules import usual_constraints
from weft.models.base import Model

STEPS = 2
"""Steps in C++ between the checks which sources are done and which wait: short, since a check costs little there."""

PREFIX = 64
"""The most tokens of a prefix, BOS included. Sources with longer ones are searched in batches."""

SOURCE = 128
"""The most tokens of a source where all places have the same size, as on a GPU; longer ones are searched in batches."""


class HasIds(Protocol):
    """A source that waits: its token ids."""

    ids: list[int]


Part = TypeVar("Part", bound=HasIds)
Texts = Callable[[], list[list[Hypothesis]]]
"""Waits for the texts of some sources, best first."""


class Feed(ABC, Generic[Part]):
    """The sources that wait for a search, and the way that their results take. A search calls it in its own thread."""

    @abstractmethod
    def take(self, room: int) -> Sequence[Part]:
        """Up to `room` sources to begin with now. When nothing runs and there are none, the search ends."""

    @abstractmethod
    def finish(self, parts: Sequence[Part], results: Callable[[], Sequence[Any]]) -> None:
        """Takes the results of some sources, in their order. Another thread may call `results`."""

    def wanted(self, part: Part) -> bool:
        """Whether somebody still waits for the result. Otherwise it is cut off, and must not be kept."""
        return True

    def between(self) -> None:
        """Called every few steps."""


class Slots(ABC):
    """A running search with `size` places for sources, numbered from 0."""

    size: int

    def possible(self) -> bool:
        """Whether sources can begin at different times, tried with places that are empty."""
        return True

    @abstractmethod
    def admit(self, places: Sequence[int], sources: Sequence[Sequence[int]], request: GenerationRequest) -> None:
        """Begins to search for the texts of some sources, in places that are free."""

    @abstractmethod
    def advance(self) -> list[int]:
        """Makes some steps. Returns the places whose texts are complete; the same ones again until they are collected."""

    @abstractmethod
    def collect(self, places: Sequence[int]) -> Texts:
        """Reads the texts of places that are complete, which are free from now on."""

    @abstractmethod
    def stop(self, places: Sequence[int]) -> None:
        """Ends the texts in these places at the next step."""

    @abstractmethod
    def close(self) -> None:
        """Frees the memory of the search, once."""


def search_continuously(
    slots: Slots,
    first: Sequence[Part],
    feed: Feed[Part],
    request: Callable[[Sequence[Part]], GenerationRequest],
    read: Callable[[Sequence[Part], list[list[Hypothesis]]], Sequence[Any]],
) -> None:
    """Searches for the texts of the first sources, and of those that the feed gives. read: turns hypotheses into results."""
    waiting = list(first)
    free, running = list(range(slots.size)), dict[int, Part]()
    stopped: set[int] = set()
    while True:
        parts = waiting[: len(free)] or (feed.take(len(free)) if free else [])
        if parts:
            waiting = waiting[len(free) :]
            places = [heappop(free) for _ in parts]  # the lowest, so that few places are in use
            slots.admit(places, [part.ids for part in parts], request(parts))
            running.update(zip(places, parts, strict=True))
        if not running:
            return
        done = [place for place in slots.advance() if place in running]
        if done:
            parts, texts = [running.pop(place) for place in done], slots.collect(done)
            feed.finish(parts, partial(_read, read, parts, texts))
            for place in done:
                heappush(free, place)
            stopped -= set(done)
        feed.between()
        if gone := [place for place, part in running.items() if place not in stopped and not feed.wanted(part)]:
            slots.stop(gone)
            stopped.update(gone)


def _read(read: Callable[[Sequence[Part], list[list[Hypothesis]]], Sequence[Any]], parts: Sequence[Part], texts: Texts) -> Any:
    return read(parts, [or_lost(each) for each in texts()])


class CppSlots(Slots):
    """Places of a search in C++."""

    def __init__(self, model: Writer, method: CppMethod, max_tokens: int, n_best: int, size: int) -> None:
        self.model, self.size, self._n_best, self._method = model, size, n_best, method
        self._search = CppSearch(method, size, PREFIX, max_tokens)

    def admit(self, places: Sequence[int], sources: Sequence[Sequence[int]], request: GenerationRequest) -> None:
        each, encoded = search_request(self.model, request), encode_sources(self.model, sources, request)
        layout, prefix = each.prefix_layout, each.prefix
        lengths = torch.full((len(prefix),), prefix.size(1)) if layout is None else layout.lengths
        self._search.admit(torch.tensor(places), self._method.read(encoded), prefix, lengths, each.limits)

    def advance(self) -> list[int]:
        self._search.run(STEPS)
        done: list[int] = self._search.tables.selector_state.done.nonzero()[:, 0].tolist()
        return done

    def collect(self, places: Sequence[int]) -> Texts:
        texts = backtrace(self._search.tables.at(torch.tensor(places)), self._n_best)
        return lambda: texts

    def stop(self, places: Sequence[int]) -> None:
        self._search.limits.max_tokens[torch.tensor(places)] = 0

    def close(self) -> None:
        self._search.close()


def slots_opener(model: Writer, request: GenerationRequest) -> Callable[[int], Slots] | None:
    """Opens that many places for texts of this request, whose `max_tokens` are the most of any; None if batches are needed.

    That is the contract: the search is `continuous` (see `Search`), single sources have nothing of their own in the request but
    prefixes, limits and seeds, and the search runs in C++, or is captured and the model has positions for any number of tokens.
    Opened places are those of the present weights.
    """
    own = request.required, request.bias, request.shortlist, request.selector
    if not request.search.continuous or request.constraints or request.trace or any(each is not None for each in own):
        return None
    if request.runner is not None:
        from weft.decoding.tensor_slots import TensorSlots  # which extends the classes above

        if not isinstance(model, Model) or model.max_target is not None or model.decoder.parallel:
            return None
        return partial(TensorSlots, model, request, request.runner, max(request.max_tokens))
    longest = max(request.max_tokens)
    most = longest if model.max_target is None else min(longest, model.max_target - 1)
    decoder, selector = request.search.wrap_decoder(model.decoder), request.search.selector(request.n_best)
    method = cpp_method(decoder, selector, usual_constraints(request.no_repeat_ngram, PREFIX + most))
    return None if method is None else partial(CppSlots, model, method, most, request.n_best)
