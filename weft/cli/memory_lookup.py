"""The translation memory of `weft translate --memory`: looks texts up, and says at the end how many it answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.cli.input_and_output import tell

if TYPE_CHECKING:
    from weft.runs.trained_model import Trained
    from weft.tasks.translation.translation_memory import MemoryMatch, TranslationMemory


class Lookup:
    """A memory, and counts of what it answered."""

    def __init__(self, memory: TranslationMemory) -> None:
        self.memory, self.texts, self.exact, self.similar = memory, 0, 0, list[float]()

    def find(self, text: str) -> MemoryMatch | None:
        return self.memory.find(text)

    def count(self, translations: Sequence[Any]) -> None:
        """Counts translations."""
        self.texts += len(translations)
        self.exact += sum(each.from_memory for each in translations)
        self.similar += [each.match.score for each in translations if each.match is not None and not each.from_memory]

    def summary(self) -> str:
        mean = f", on average {sum(self.similar) / len(self.similar):.0%} similar" if self.similar else ""
        return (
            f"translation memory ({len(self.memory):,} entries): {self.exact:,} of {self.texts:,} texts are answered by exact "
            f"matches; {len(self.similar):,} more have a similar entry{mean}"
        )


@contextmanager
def memory_lookup(trained: Trained, files: Sequence[str], **options: Any) -> Iterator[Lookup | None]:
    """The memory of these files, or None if there are none. Prints a summary in the end."""
    if not files:
        yield None
        return
    from weft.runs.translator import open_memory

    lookup = Lookup(open_memory(trained, files, **options))
    yield lookup
    tell(lookup.summary())
