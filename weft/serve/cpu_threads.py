"""How many CPU threads a batch gets."""

from __future__ import annotations

from itertools import count

import torch

from weft.serve.fair_queue import Batch, BatchTimeModel

TRIES = 16
"""Single requests between two that try the number of threads that was slower so far, since that may have changed."""


class CpuThreads:
    """Gives `usual` threads to batches, which leaves a core for reading requests.

    A single request for which nothing else waits gets `alone` threads, unless that turns out to be slower, as it is if other
    programs use the cores. 0: the number stays as it is.
    """

    def __init__(self, usual: int, alone: int) -> None:
        self.usual, self.alone = usual, alone or usual
        self._pace = BatchTimeModel(first=0.0)  # so that each number is tried
        self._turns = count(1)
        self._single = False

    def set(self, batch: Batch, single: bool) -> int:
        """Sets the threads of the calling thread for a batch; returns their number."""
        self._single, chosen = single and self.alone != self.usual, self.usual
        if self._single:
            numbers = sorted((self.alone, self.usual), key=lambda n: self._pace.seconds(n, batch.rows, batch.steps))
            chosen = numbers[next(self._turns) % TRIES == 0]
        if chosen and chosen != torch.get_num_threads():
            torch.set_num_threads(chosen)  # the setting is per thread
        return chosen

    def learn(self, batch: Batch, seconds: float) -> None:
        """Remembers how long the batch took."""
        if self._single:
            self._pace.learn(torch.get_num_threads(), batch.rows, batch.steps, seconds)
