"""Stopping single rows of a search that is already running."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Control:
    """Stops the rows of a batch that nobody waits for any more.

    `wanted(row)` says whether somebody still waits for a row. The search loop asks every few steps, never inside a step, so a
    recorded step stays the same. The text of a stopped row is cut off: do not show it, and do not cache it.

    stopped: the rows stopped so far.
    """

    def __init__(self, rows: int, wanted: Callable[[int], bool]) -> None:
        self.rows, self.wanted = rows, wanted
        self.stopped: set[int] = set()

    def stop_unwanted(self, owner: Tensor, longest: Tensor) -> None:
        """Sets the longest length of unwanted rows to 0, in place, so that every chooser ends them at the next step.

        owner [G]: the number of each running source in the batch · longest [G]: the longest length of each.
        """
        gone = [row for row in range(self.rows) if row not in self.stopped and not self.wanted(row)]
        if gone:
            self.stopped.update(gone)
            longest.masked_fill_(torch.isin(owner, torch.tensor(gone, device=owner.device)), 0)
