"""Recent traffic: which long work must leave room for others.

Encoding a source of a thousand tokens takes as long as translating many sentences, and so do the steps of many wide searches.
Neither can be interrupted, so others would wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.decoding.predictor import BatchItem

if TYPE_CHECKING:
    from weft.serve.fair_queue import Job

SIZES = 128
"""Tokens of a source from which on it runs beside those of its order of magnitude only: shorter ones would be padded to it,
and each of their steps would take as long as one of its steps."""

RECENT = 1.0
"""Seconds after a short source, or another client, in which more of them are expected."""


def magnitude(item: BatchItem) -> int:
    """The order of magnitude of the length of a source; 0: it is short."""
    return (item.size // SIZES).bit_length()


class RecentTraffic:
    """What runs in each lane, and what else has begun lately. Not thread-safe."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._long: set[int] = set()
        self._client = ""
        self._short = self._turned = -RECENT  # when the last short source, and that of another client than before, began

    def begin(self, lane: int, jobs: Sequence[Job]) -> None:
        """Notes jobs that begin in a lane, which are all long or all short."""
        now = time.monotonic()
        for job in jobs:
            if magnitude(job.item):
                self._long.add(lane)
            else:
                self._short = now
            if job.ticket.client != self._client:
                self._client, self._turned = job.ticket.client, now

    def end(self, lane: int) -> None:
        """Notes that nothing runs in a lane."""
        self._long.discard(lane)

    @property
    def short(self) -> bool:
        """Whether short sources are expected, which long ones must not delay."""
        return time.monotonic() - self._short < RECENT

    @property
    def several(self) -> bool:
        """Whether several clients are expected."""
        return time.monotonic() - self._turned < RECENT

    def reserved(self, lane: int) -> bool:
        """Whether a lane must not begin with long sources: it is the last one for the short ones that are expected."""
        return self._lanes > 1 and self.short and len(self._long - {lane}) >= self._lanes - 1
