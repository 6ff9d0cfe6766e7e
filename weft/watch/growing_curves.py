"""The curves of a log that grows, thinned for the page: only new records and the last points are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.training.result_files import curves, thinned

POINTS = 400
"""Points of a curve that the page draws."""

Points = list[tuple[float, float]]


@dataclass
class GrowingCurve:
    """The points of one curve. means: those of whole groups of `size` neighbours, which later points leave as they are"""

    points: Points = field(default_factory=list)
    size: int = 1
    means: Points = field(default_factory=list)

    def thinned(self) -> Points:
        """The same as `thinned` of all points."""
        size = max(1, -(-len(self.points) // POINTS))
        if size != self.size:
            self.size, self.means = size, []
        groups = len(self.points) // size
        if missing := groups - len(self.means):
            self.means += thinned(self.points[len(self.means) * size : groups * size], missing)
        rest = self.points[groups * size :]
        return [*self.means, *thinned(rest, 1)] if rest else list(self.means)


class GrowingCurves:
    """The curves of one log."""

    def __init__(self) -> None:
        self._records: Sequence[dict[str, Any]] = ()
        self._read = 0
        self._panels: dict[str, dict[str, GrowingCurve]] = {}

    def after(self, records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Points]]:
        """The curves by panel and name. records: all of the log; another list than the last time is another log."""
        if records is not self._records:
            self._records, self._read, self._panels = records, 0, {}
        for panel, lines in curves(records[self._read :]).items():
            known = self._panels.setdefault(panel, {})
            for name, points in lines.items():
                known.setdefault(name, GrowingCurve()).points += points
        self._read = len(records)
        return {panel: {name: curve.thinned() for name, curve in lines.items()} for panel, lines in self._panels.items()}
