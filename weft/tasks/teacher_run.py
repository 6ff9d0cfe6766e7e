"""The interface to a teacher, the run whose translations and attention a task learns from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.config.sections import Config
from weft.data.formats import Pairs

if TYPE_CHECKING:
    from weft.tasks.translation.attention_alignment import Align


class TeacherRun(ABC):
    """The run that data.teacher names, whose translations and attention a task learns from."""

    @abstractmethod
    def translate(self, config: Config, pairs: Sequence[Pairs], out: Path, report: Callable[[str], None]) -> None:
        """Writes the pairs with its translations as targets into `out`. They are made once and kept in the cache."""

    @abstractmethod
    def aligner(self, config: Config) -> Align: ...
