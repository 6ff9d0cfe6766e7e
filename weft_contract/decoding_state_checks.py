"""Checks of decoding state, for mechanisms and whole decoders: pieces, rows, beams, ragged prefixes.

A subject provides `Steps`; feeding piece by piece, row by row or beam by beam must equal feeding all tokens at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from weft.attention.core.kv_cache import KeyValueCache
from weft.data.batch import Layout
from weft.layers.decoder_state import State, grow, select
from weft_contract.mechanism_entries import same

SOURCES = 3
ROOMS = ("none", "from the start", "later")
"""No cache of fixed size; one from the start; or room requested after two pieces were fed without."""


class Steps(Protocol):
    """Something that reads tokens, for several sources. `extent`: the length of sequences to test."""

    extent: int

    def draw(self, rows: int, count: int, seed: int) -> Tensor: ...
    def init_state(self, sources: Tensor, room: int | None = None) -> State: ...
    def feed(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Tensor, State]: ...


class Subject(Protocol):
    def steps(self) -> Steps: ...


class Feeding:
    """Feeds a state, whose room grows in small buckets as in the search loop."""

    def __init__(self, steps: Steps, sources: Tensor, room: str) -> None:
        self.steps, self.room, self.fed, self.calls = steps, room, 0, 0
        self.state = steps.init_state(sources, room=4 if room == "from the start" else None)

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
    expected = Feeding(steps, sources, "none").feed(tokens)
    cases = [(room, sizes) for room in ROOMS for sizes in _pieces(steps.extent, whole=room == "from the start")]
    for number, (room, sizes) in enumerate(cases):
        feeding = Feeding(steps, sources, room)
        found = [
            feeding.feed(piece, Layout.padded([piece.size(1)] * SOURCES) if number % 2 else None)
            for piece in tokens.split(sizes, 1)
        ]
        same(torch.cat(found, 1), expected, f"room {room}, pieces {sizes[:5]}…")


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
    steps, sources = subject.steps(), torch.arange(SOURCES)
    calls: list[tuple[Tensor, Layout | None]] = []
    fed: list[list[Tensor]] = [[] for _ in range(SOURCES)]
    for call, lengths in enumerate([(5, 0, 3), None, None, (1, 3, 0), (0, 0, 2), None]):
        layout = None if lengths is None else Layout.padded(lengths, max(lengths) + 1)
        tokens = steps.draw(SOURCES, 1 if layout is None else layout.segments.size(1), seed=30 + call)
        calls.append((tokens, layout))
        for row, count in enumerate(lengths or [1] * SOURCES):
            fed[row].append(tokens[row, :count])
    alone = _alone(steps, sources, [torch.cat(pieces) for pieces in fed])
    for room in ROOMS:
        feeding = Feeding(steps, sources, room)
        found = [feeding.feed(*call) for call in calls]
        for row, expected in enumerate(alone):
            pieces = [context[row, : len(piece)] for context, piece in zip(found, fed[row], strict=True)]
            same(torch.cat(pieces), expected, f"room {room}, row {row}")


def check_beams(subject: Subject) -> None:
    """Beams of several sources, from a ragged prefix or from nothing, equal each history alone."""
    steps = subject.steps()
    _follow_beams(steps, ROOMS, beam_size=4, prefix=(2, 1, 3))
    _follow_beams(steps, ("from the start",), beam_size=3, prefix=(0, 0, 0))


def check_wide_beams(subject: Subject) -> None:
    """The same with more beams than the cache tracks by ancestry."""
    _follow_beams(subject.steps(), ROOMS, beam_size=KeyValueCache.max_shared + 1, prefix=(2, 1, 3))


@dataclass(frozen=True)
class Move:
    """A step of a search: the rows that go on, the sources if some have left, the next tokens, and what was fed to each row."""

    rows: Tensor
    groups: Tensor | None
    tokens: Tensor
    owners: Tensor
    histories: list[Tensor]


def _follow_beams(steps: Steps, rooms: Sequence[str], beam_size: int, prefix: tuple[int, ...]) -> None:
    first = steps.draw(SOURCES, max(prefix), seed=40)
    moves = list(_moves(steps, beam_size, [row[:count] for row, count in zip(first, prefix, strict=True)]))
    owners = torch.cat([move.owners for move in moves])
    alone = _alone(steps, owners, [history for move in moves for history in move.histories])
    for room in rooms:
        feeding, expected = Feeding(steps, torch.arange(SOURCES), room), iter(alone)
        if any(prefix):
            feeding.feed(first, Layout.padded(prefix))
        for number, move in enumerate(moves):
            feeding.select(move.rows, move.groups)
            found = feeding.feed(move.tokens)
            wanted = torch.stack([row[-found.size(1) :] for row in islice(expected, len(found))])
            same(found, wanted, f"room {room}, {beam_size} beams, step {number}")


def _moves(steps: Steps, beam_size: int, histories: list[Tensor]) -> Iterator[Move]:
    """A search in which parents are random."""
    generator, owners, beams = torch.Generator().manual_seed(5), torch.arange(SOURCES), 1
    for step, (keep, width) in enumerate(_fates(beam_size)):
        kept = torch.arange(len(owners) // beams) if keep is None else torch.tensor(keep)
        parents = torch.randint(beams, (len(kept), width), generator=generator)
        rows, beams = (kept[:, None] * beams + parents).flatten(), width
        owners, tokens = owners[rows], steps.draw(len(rows), 2 if step == 2 else 1, seed=50 + step)
        histories = [torch.cat([histories[row], new]) for row, new in zip(rows.tolist(), tokens, strict=True)]
        yield Move(rows, None if keep is None else kept, tokens, owners, histories)


def _alone(steps: Steps, sources: Tensor, histories: list[Tensor]) -> list[Tensor]:
    """The outputs of each history, fed at once. The zeros after a short one are its future and do not matter."""
    whole = steps.feed(pad_sequence(histories, batch_first=True), steps.init_state(sources))[0]
    return [row[: len(history)] for row, history in zip(whole, histories, strict=True)]


def _fates(beam_size: int) -> Iterator[tuple[list[int] | None, int]]:
    """Before each step: which sources stay (None: all, in place), and how many beams each has afterwards."""
    yield None, beam_size
    yield None, beam_size
    yield None, beam_size
    yield [2, 0], beam_size
    yield None, beam_size
    yield None, beam_size - 1
    yield None, beam_size
    yield [1], beam_size
    yield None, beam_size


def _pieces(extent: int, whole: bool) -> Iterator[list[int]]:
    """Sizes of pieces; first single tokens, in the whole sequence or at both ends."""
    yield [1] * extent if whole else [1] * 8 + [extent - 15] + [1] * 7
    yield [3, 1, 2, 1, 2, 6, extent - 15]
    yield [extent - 7, 3, 4]
