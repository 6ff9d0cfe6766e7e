"""What another run, a teacher, does for a run in training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.config.sections import Config
from weft.data.formats import Pairs
from weft.inference.alignment import TokenWeights

Align = Callable[[Sequence[tuple[str, str]]], list[TokenWeights | None]]
"""The attention of another run between the tokens of each pair of texts, if it has any. All pairs are one batch."""


class Teacher(ABC):
    """The run that data.teacher names."""

    @abstractmethod
    def translate(self, config: Config, pairs: Sequence[Pairs], out: Path, tell: Callable[[str], None]) -> None:
        """Writes the pairs with its translations as targets into `out`. They are made once and kept in the cache."""

    @abstractmethod
    def aligner(self, config: Config) -> Align: ...
