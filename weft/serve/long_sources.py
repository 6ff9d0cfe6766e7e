"""Long sources: they run beside each other only, and leave a lane to short ones.

Encoding a source of a thousand tokens takes as long as translating many sentences, and nothing can interrupt it.
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
"""Seconds after a short source in which more of them are expected."""


def magnitude(item: BatchItem) -> int:
    """The order of magnitude of the length of a source; 0: it is short."""
    return (item.size // SIZES).bit_length()


class LongSources:
    """Which lanes run long sources. One lane runs none as long as short ones come. Not thread-safe."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._running: set[int] = set()
        self._short = -RECENT  # when the last short source began

    def begin(self, lane: int, jobs: Sequence[Job]) -> None:
        """Notes jobs that begin in a lane, which are all long or all short."""
        if jobs and magnitude(jobs[0].item):
            self._running.add(lane)
        elif jobs:
            self._short = time.monotonic()

    def end(self, lane: int) -> None:
        """Notes that nothing runs in a lane."""
        self._running.discard(lane)

    @property
    def wait(self) -> bool:
        """Whether short sources are expected, which long ones must not delay."""
        return time.monotonic() - self._short < RECENT

    def excluded(self, lane: int) -> bool:
        """Whether a lane must not begin with long sources: it is the last one for short ones."""
        return self._lanes > 1 and self.wait and len(self._running - {lane}) >= self._lanes - 1
