"""Places of a continuous search by operations of torch, whose steps are recorded as CUDA graphs.

All places make a step together, also those that are empty. Sources are admitted by the ordinary beginning of a search
(encoding, prefix, first choice) in a small batch of their own, whose rows are then written over those of their places. That
works for any decoder whose state has a row for each source or hypothesis (`insert_rows`). The host reads two steps late which
texts are complete, so the device does not wait for it.

Shapes: G places · N sources that are admitted together, rounded up · S source tokens · P prefix tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from weft.data.batch import BOS, EOS, PAD, Layout, Source, power_of_two
from weft.decoding.continuous_search import PREFIX, SOURCE, Slots, Texts
from weft.decoding.generate import GenerationRequest, max_tokens
from weft.decoding.hypotheses import BackpointerTables, Hypothesis, backtrace
from weft.decoding.ngram_blocking_and_rules import usual_constraints
from weft.decoding.search_loop import ActiveHypotheses, SearchInput, SearchStep, StepRunner
from weft.decoding.token_selection import LengthLimits, SelectorState
from weft.layers.decoder_state import clone, insert_rows, leaves, select
from weft.models.base import Model

FEWEST, ADMITTED = 32, 8
"""A step is hardly faster with fewer places, and a beginning with fewer sources."""

CALM = 64
"""Pairs of steps after which places that nobody needed are given up."""

SHARE = 0.05
"""The share of the device's memory that the places of a search may hold."""

MARGIN = 8
"""Steps that a text may go on for after it is complete, until it is collected."""

HEAD = 6
"""Numbers before the prefix in a line of the table of admitted sources: the place, two lengths, two limits and the seed."""


@dataclass
class Flags:
    """The places that were done after a number of steps, on the way to the host."""

    done: Tensor
    copied: torch.cuda.Event | None
    step: int


class TensorSlots(Slots):
    """Places of a search by torch. `size` is the most; the step runs a power of two of them, as many as are in use.

    longest: the most tokens of a text · few: the fewest places.
    """

    def __init__(
        self, model: Model, request: GenerationRequest, runner: StepRunner, longest: int, size: int, few: int | None = None
    ) -> None:
        few = FEWEST if few is None else few
        self.model, self._request, self._runner, self._few = model, request, runner, few
        self._room = PREFIX + longest + MARGIN
        decoder, selector = request.search.wrap_decoder(model.decoder), request.search.selector(request.n_best)
        self._step = SearchStep(decoder, selector, usual_constraints(request.no_repeat_ngram, self._room))
        self._count = 0  # steps so far
        self._busy: set[int] = set()
        self._flags: Flags | None = None
        self._calm = 0  # how often more places than needed have made steps
        self._now = self._open(few)
        self.size = max(few, size if model.device.type != "cuda" else min(size, self._affordable()))
        self._began = [0] * self.size  # after which step the row of each place began

    def _affordable(self) -> int:
        """The places for which the device has memory."""
        each = sum(leaf.nbytes for leaf in leaves(self._now)) // self._width
        most = int(SHARE * torch.cuda.get_device_properties(self.model.device).total_memory / each)
        return power_of_two(most + 1) // 2

    def possible(self) -> bool:
        try:
            self._now = self._step(self._now)
            self._count += 1
            self._write([0], [[EOS]], GenerationRequest(self._request.search, [1]))
        except ValueError:
            return False
        return True

    @property
    def _width(self) -> int:
        return self._now.owner.numel()

    def admit(self, places: Sequence[int], sources: Sequence[Sequence[int]], request: GenerationRequest) -> None:
        first = not self._busy
        self._busy.update(places)
        needed = self._needed()
        if first and (needed != self._width or not self._runner.holds(self._now)):
            self._began, self._now = [self._count] * self.size, self._open(needed)
            self._forward()
        elif needed > self._width:
            self._resize(needed)
        self._write(places, sources, request)

    def _needed(self) -> int:
        return max(self._few, power_of_two(max(self._busy) + 1))

    def advance(self) -> list[int]:
        """Makes two steps, and says what was complete before them."""
        needed = self._needed()
        self._calm = self._calm + 1 if needed < self._width else 0
        if self._calm > CALM:
            self._resize(needed)
        self._park()
        flags = self._flags
        self._forward()
        done: list[int] = []
        if flags is not None:
            if flags.copied is not None:
                flags.copied.synchronize()
            # A place may have been given away since.
            complete = flags.done.nonzero()[:, 0].tolist()
            done = [place for place in complete if place in self._busy and self._began[place] < flags.step]
        self._forward()
        self._flags = self._look()
        return done

    def _forward(self) -> None:
        """Makes a step, after which the search is in the tensors of a graph, if its size is captured."""
        self._now = self._runner.step(self._step, self._now)
        self._count += 1

    def _look(self) -> Flags:
        done = self._now.selector_state.done
        copy, copied = _to_host([done])
        return Flags(copy[0], copied, self._count)

    def collect(self, places: Sequence[int]) -> Texts:
        steps = self._count + 1 - min(self._began[place] for place in places)
        self._busy.difference_update(places)
        there = self._to_device(torch.tensor(list(places)))
        tables, state = self._now.tables.at(there, steps), select(self._now.selector_state, there)
        names = [part.name for part in fields(state)]
        parts, copied = _to_host([tables.tokens, tables.parents, *(getattr(state, name) for name in names)])

        def read() -> list[list[Hypothesis]]:
            if copied is not None:
                copied.synchronize()
            host = SelectorState(**dict(zip(names, parts[2:], strict=True)))
            return backtrace(BackpointerTables(parts[0], parts[1], None, host), self._request.n_best)

        return read

    def stop(self, places: Sequence[int]) -> None:
        self._now.limits.max_tokens.index_fill_(0, self._to_device(torch.tensor(list(places))), 0)

    def close(self) -> None:
        self._busy.clear()
        self._flags = None

    def _to_device(self, numbers: Tensor) -> Tensor:
        """Copied from pinned memory, which does not wait for the device."""
        device = self.model.device
        return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers

    def _write(self, places: Sequence[int], sources: Sequence[Sequence[int]], request: GenerationRequest) -> None:
        """Begins sources in these places. Lines that fill up a power of two repeat the first one."""
        for place in places:
            self._began[place] = self._count
        prefixes, longest = request.prefixes or [[BOS]] * len(places), max_tokens(self.model, request)
        extent = 1 if max(map(len, prefixes)) == 1 else PREFIX
        count = max(ADMITTED, power_of_two(len(places)))
        table = np.full((count, HEAD + extent + SOURCE), PAD, dtype=np.int64)
        seeds = request.seeds or [0] * len(places)
        for row, (place, source, prefix, most, seed) in enumerate(zip(places, sources, prefixes, longest, seeds, strict=True)):
            table[row, :HEAD] = place, len(source), len(prefix), most, min(request.min_tokens, most - 1), seed
            table[row, HEAD : HEAD + len(prefix)] = prefix
            table[row, HEAD + extent : HEAD + extent + len(source)] = source
        table[len(places) :] = table[0]
        given = self._to_device(torch.from_numpy(table))
        self._runner.change(("admit", count, extent), self._insert, self._now, given)

    def _insert(self, now: ActiveHypotheses, given: Tensor) -> None:
        """Begins the sources of a table [N, HEAD + P + S] in their places of a search."""
        places, lengths, fed, most, least, seeds = given[:, :HEAD].unbind(1)
        prefix, ids = given[:, HEAD:-SOURCE], given[:, -SOURCE:]
        begun = self._begin(ids, lengths, prefix, fed, LengthLimits(most, least, seeds), prefix.size(1) + 1, 1)
        insert_rows(_rows_of(now), _rows_of(begun), places, now.owner.numel())
        now.t.index_fill_(0, places, 1)
        for table, first in ((now.tables.tokens, begun.tables.tokens), (now.tables.parents, begun.tables.parents)):
            table[0].index_copy_(0, places, first[0])

    def _begin(
        self, ids: Tensor, lengths: Tensor, prefix: Tensor, fed: Tensor, limits: LengthLimits, room: int, steps: int
    ) -> ActiveHypotheses:
        """A search after its first choice. ids [N, S], lengths [N] · prefix [N, P], fed [N]: the lengths of prefixes."""
        encoded = self.model.encode(Source(ids, _layout(lengths, ids.size(1))))
        ragged = _layout(fed, prefix.size(1)) if prefix.size(1) > 1 else None
        return self._step(self._step.open(SearchInput(encoded, prefix, ragged, limits), room, steps, False))

    def _open(self, width: int) -> ActiveHypotheses:
        """So many places, whose texts are complete."""
        one = torch.ones(width, dtype=torch.long, device=self.model.device)
        ids = torch.full((width, SOURCE), PAD, device=one.device)
        ids[:, 0] = EOS
        limits = LengthLimits(one, torch.zeros_like(one), torch.zeros_like(one))
        now = self._begin(ids, one, torch.full_like(one, BOS)[:, None], one, limits, self._room, self._room)
        now.t = now.t.expand(width, 1)
        return clone(now)

    def _resize(self, width: int) -> None:
        """Goes on with more places or fewer. All that are in use must be among them."""
        self._calm, self._flags = 0, None
        old, count = self._now, min(width, self._width)
        self._began[self._width :] = [self._count] * (self.size - self._width)
        self._now = self._open(width)
        kept = torch.arange(count, device=old.owner.device)
        rows = torch.arange(count * old.tokens.size(0) // old.owner.numel(), device=kept.device)
        mine = _rows_of(old)
        if count < old.owner.numel():
            mine = [*(select(each, kept) for each in mine[:2]), *(select(each, rows, kept) for each in mine[2:])]
        insert_rows(_rows_of(self._now), mine, kept, width)
        self._now.t[:count] = old.t[:count]
        for table, other in ((self._now.tables.tokens, old.tables.tokens), (self._now.tables.parents, old.tables.parents)):
            table[:, :count] = other[:, :count]
        self._forward()

    def _park(self) -> None:
        """Begins empty texts in places that have been free until their stores are nearly full."""
        late = [place for place in range(self._width) if self._count - self._began[place] > self._room - PREFIX - MARGIN]
        if free := [place for place in late if place not in self._busy]:
            self._write(free, [[EOS]] * len(free), GenerationRequest(self._request.search, [1] * len(free)))


def _to_host(tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.cuda.Event | None]:
    """Copies of tensors, and the event after which they are there."""
    if tensors[0].device.type != "cuda":
        return [each.clone() for each in tensors], None
    copies = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors]
    for copy, each in zip(copies, tensors, strict=True):
        copy.copy_(each, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return copies, copied


def _layout(lengths: Tensor, extent: int) -> Layout:
    """The layout of rows whose lengths only the device knows."""
    rank = torch.arange(extent, device=lengths.device).expand(len(lengths), extent)
    return Layout((rank < lengths[:, None]).int(), rank.contiguous(), longest=extent)


def _rows_of(now: ActiveHypotheses) -> list[object]:
    """The tensors with a row for each source or hypothesis."""
    return [now.selector_state, now.limits, now.state, now.constraint_states, now.tokens, now.hidden]
