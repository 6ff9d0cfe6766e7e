"""Checks of decoding state, for mechanisms and whole decoders: pieces, rows, beams, ragged prefixes.

A subject provides `Steps`; feeding piece by piece, row by row or beam by beam must equal feeding all tokens at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from weft.attention.core.kv_store import KeyValueCache
from weft.batch import Layout
from weft.state import State, grow, select
from weft_contract.entries import same

SOURCES = 3
ROOMS = ("none", "from the start", "later")
"""No cache of fixed size; one from the start; or room requested after two pieces were fed without."""


class Steps(Protocol):
    """Something that reads tokens, for several sources. `extent`: the length of sequences to test."""

    extent: int

    def draw(self, rows: int, count: int, seed: int) -> Tensor: ...
    def start(self, sources: Tensor, room: int | None = None) -> State: ...
    def feed(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Tensor, State]: ...


class Subject(Protocol):
    def steps(self) -> Steps: ...


class Feeding:
    """Feeds a state, whose room grows in small buckets as in the search loop."""

    def __init__(self, steps: Steps, sources: Tensor, room: str) -> None:
        self.steps, self.room, self.fed, self.calls = steps, room, 0, 0
        self.state = steps.start(sources, room=4 if room == "from the start" else None)

    def feed(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        if self.room == "from the start" or (self.room == "later" and self.calls >= 2):
            self.state = grow(self.state, 8 * -(-(self.fed + tokens.size(1)) // 8))
        self.fed, self.calls = self.fed + tokens.size(1), self.calls + 1
        found, self.state = self.steps.feed(tokens.contiguous(), self.state, layout)
        return found

    def select(self, rows: Tensor, groups: Tensor | None = None) -> None:
        self.state = select(self.state, rows, groups)


def check_chunks(subject: Subject) -> None:
    """Feeding single tokens, or pieces of any size, with growing caches, equals feeding all at once.

    Every other time, a layout says how long the pieces are.
    """
    steps, sources = subject.steps(), torch.arange(SOURCES)
    tokens = steps.draw(SOURCES, steps.extent, seed=21)
    whole = Feeding(steps, sources, "none").feed(tokens)
    for number, (room, sizes) in enumerate(product(ROOMS, _pieces(steps.extent))):
        feeding = Feeding(steps, sources, room)
        found = [
            feeding.feed(piece, Layout.padded([piece.size(1)] * SOURCES) if number % 2 else None)
            for piece in tokens.split(sizes, 1)
        ]
        same(torch.cat(found, 1), whole, f"room {room}, pieces {sizes[:5]}…")


def check_rows(subject: Subject) -> None:
    """Sources that leave, move or appear twice: select then step equals step then select."""
    steps, rows = subject.steps(), torch.tensor([2, 0, 0, 2])
    for room in ROOMS:
        feeding = Feeding(steps, torch.arange(SOURCES), room)
        feeding.feed(steps.draw(SOURCES, 5, seed=22))
        feeding.feed(steps.draw(SOURCES, 1, seed=23))
        feeding.state = grow(feeding.state, 16) if room != "none" else feeding.state
        chosen = select(feeding.state, rows, rows)
        after = steps.draw(SOURCES, 2, seed=24)
        found, chosen = steps.feed(after[rows], chosen)
        same(found, feeding.feed(after)[rows], f"room {room}: first step")
        after = steps.draw(SOURCES, 1, seed=25)
        same(steps.feed(after[rows], chosen)[0], feeding.feed(after)[rows], f"room {room}: second step")


def check_ragged(subject: Subject) -> None:
    """Rows of different lengths, in several calls, equal each row alone. Padding counts as never fed."""
    steps = subject.steps()
    calls: list[tuple[int, ...] | None] = [(5, 0, 3), None, None, (1, 3, 0), (0, 0, 2), None]
    for room in ROOMS:
        feeding = Feeding(steps, torch.arange(SOURCES), room)
        fed: list[list[Tensor]] = [[] for _ in range(SOURCES)]
        found: list[list[Tensor]] = [[] for _ in range(SOURCES)]
        for call, lengths in enumerate(calls):
            layout = None if lengths is None else Layout.padded(lengths, max(lengths) + 1)
            tokens = steps.draw(SOURCES, 1 if layout is None else layout.segments.size(1), seed=30 + call)
            context = feeding.feed(tokens, layout)
            for row in range(SOURCES):
                count = 1 if lengths is None else lengths[row]
                fed[row].append(tokens[row : row + 1, :count])
                found[row].append(context[row : row + 1, :count])
        for row in range(SOURCES):
            alone = steps.feed(torch.cat(fed[row], 1), steps.start(torch.tensor([row])))[0]
            same(torch.cat(found[row], 1), alone, f"room {room}, row {row}")


def check_beams(subject: Subject) -> None:
    """Beams against one shared memory, reordered, narrowed, widened, with sources leaving, equal each history alone."""
    for room in ROOMS:
        _follow_beams(subject, room, wide=4, prefix=(2, 1, 3))
    _follow_beams(subject, "from the start", wide=3, prefix=None)


def check_wide_beams(subject: Subject) -> None:
    """The same with more beams than the cache tracks by ancestry."""
    for room in ROOMS:
        _follow_beams(subject, room, wide=KeyValueCache.widest + 1, prefix=(2, 1, 3))


def _follow_beams(subject: Subject, room: str, wide: int, prefix: tuple[int, ...] | None) -> None:
    steps, generator = subject.steps(), torch.Generator().manual_seed(5)
    feeding = Feeding(steps, torch.arange(SOURCES), room)
    histories = [steps.draw(1, 0, seed=0) for _ in range(SOURCES)]
    if prefix is not None:
        tokens = steps.draw(SOURCES, max(prefix), seed=40)
        feeding.feed(tokens, Layout.padded(prefix))
        histories = [tokens[row : row + 1, :count] for row, count in enumerate(prefix)]
    owners, beams = torch.arange(SOURCES), 1
    for step, (keep, width) in enumerate(_fates(wide)):
        kept = torch.arange(len(owners)) if keep is None else torch.tensor(keep)
        parents = torch.randint(beams, (len(kept), width), generator=generator)
        feeding.select((kept[:, None] * beams + parents).flatten(), None if keep is None else kept)
        histories = [histories[source][chosen] for source, chosen in zip(kept.tolist(), parents, strict=True)]
        owners, beams = owners[kept], width
        tokens = steps.draw(len(owners) * beams, 2 if step == 2 else 1, seed=50 + step)
        found = feeding.feed(tokens)
        for source, (new, got) in enumerate(zip(tokens.split(beams), found.split(beams), strict=True)):
            histories[source] = torch.cat([histories[source], new], 1)
            alone = steps.feed(histories[source], steps.start(owners[source].repeat(beams)))[0]
            same(got, alone[:, -new.size(1) :], f"room {room}, {wide} beams, step {step}, source {source}")


def _fates(wide: int) -> Iterator[tuple[list[int] | None, int]]:
    """Before each step: which sources stay (None: all, in place), and how many beams each has afterwards."""
    yield None, wide
    yield None, wide
    yield None, wide
    yield [2, 0], wide
    yield None, wide
    yield None, wide - 1
    yield None, wide
    yield [1], wide
    yield None, wide


def _pieces(extent: int) -> Iterator[list[int]]:
    yield [1] * extent
    yield [3, 1, 2, 1, 2, 6, extent - 15]
    yield [extent - 7, 3, 4]
