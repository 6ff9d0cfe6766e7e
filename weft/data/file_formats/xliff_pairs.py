"""XLIFF 1.2 and 2: the sources of its units with their translations, as a stream. Others are left out."""

from collections.abc import Iterator
from typing import NamedTuple

from weft.data.file_formats.xml_events import InlineText, XmlReader
from weft.data.formats import Pairs, combine
from weft.data.text_lines import check_file, file_digest
from weft.errors import DataError

UNTRANSLATED = {"new", "initial", "needs-translation", "needs-adaptation", "needs-l10n"}
"""States of targets that are no translations yet."""

EXACT = "weft:exact-match"
"""The subordinate state of what weft takes from a translation memory."""

CONTAINERS = {"file", "group", "unit", "trans-unit"}
"""Elements whose `translate="no"` holds for everything in them."""


class Unit(NamedTuple):
    """A source, its target if it has one, and the state of this. note: its qualifier or subordinate state · fixed: see below.

    A fixed unit is not to be translated.
    """

    source: str
    target: str | None
    state: str
    note: str
    fixed: bool


def is_suggestion(note: str) -> bool:
    """Whether the qualifier of a target (version 1.2), or the subordinate state of a segment (2), is a machine's."""
    return note == "mt-suggestion" or (note.startswith("weft:") and note != EXACT)


class _XliffReader(XmlReader):
    """Yields the units of a file, `trans-unit` in version 1.2 and `segment` in version 2."""

    root = "xliff"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._texts: dict[str, str] = {}
        self._state, self._note = "", ""
        self._fixed = [False]
        self._data: dict[str, str] = {}
        self._ignored = 0
        self._name, self._segment = "", InlineText()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if self._name:
            self._segment.start(name, attributes)
            return
        if name in CONTAINERS:
            self._fixed.append(attributes.get("translate", "no" if self._fixed[-1] else "yes") == "no")
        if name in ("alt-trans", "matches", "seg-source", "ignorable"):
            self._ignored += 1
        elif self._ignored:
            return
        elif name == "unit":
            self._data = {}
        elif name in ("trans-unit", "segment"):
            self._texts, self._state, self._note = {}, attributes.get("state", ""), attributes.get("subState", "")
        elif name in ("source", "target"):
            self._begin(name)
            if name == "target":
                self._state, self._note = attributes.get("state", self._state), attributes.get("state-qualifier", self._note)
        elif name == "data":
            self._begin(f"data {attributes.get('id', '')}")

    def _begin(self, name: str) -> None:
        self._name, self._segment = name, InlineText(self._data)

    def end(self, name: str) -> None:
        if self._name and not self._segment.inside:
            kind, _, key = self._name.partition(" ")
            if kind == "data":
                self._data[key] = self._segment.value
            else:
                self._texts[kind] = self._segment.value
            self._name = ""
        elif self._name:
            self._segment.end()
        elif name in ("alt-trans", "matches", "seg-source", "ignorable"):
            self._ignored -= 1
        elif name in ("trans-unit", "segment") and "source" in self._texts:
            source, target = self._texts["source"], self._texts.get("target")
            self.found.append(Unit(source, target, self._state, self._note, self._fixed[-1]))
        if not self._name and name in CONTAINERS:
            self._fixed.pop()

    def text(self, text: str) -> None:
        if self._name:
            self._segment.add(text)


class XliffPairs(Pairs):
    """Units with a translation. `#target,source` exchanges the sides."""

    def __init__(self, name: str, path: str, sides: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.exchanged = exchanged(name, sides)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.left_out.clear()
        empty = True
        for unit in _XliffReader(self.path):
            if reason := _why_left_out(unit):
                self.left_out[reason] += 1
                continue
            empty = False
            pair = unit.source, unit.target or ""
            yield pair[::-1] if self.exchanged else pair
        if empty:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items()) or "it has none"
            raise DataError(f"{self.path}: no unit is translated: {reasons}.")

    def sources(self) -> Iterator[str]:
        return (unit.source for unit in _XliffReader(self.path))

    def digest(self) -> str:
        return combine("xliff", str(self.exchanged), file_digest(self.path))


def exchanged(name: str, sides: tuple[str, str] | None) -> bool:
    """Whether `#target,source` is chosen. Raises DataError for other names."""
    if sides not in (None, ("source", "target"), ("target", "source")):
        raise DataError(f"{name}: the file has one source and one target; remove what is after '#', or write #target,source.")
    return sides == ("target", "source")


def _why_left_out(unit: Unit) -> str | None:
    if unit.fixed:
        return "not to be translated"
    if not (unit.target or "").strip():
        return "without a translation"
    if unit.state.lower() in UNTRANSLATED:
        return f"in the state {unit.state}"
    if is_suggestion(unit.note):
        return "suggested by a machine"
    return None if unit.source.strip() else "with an empty source"
