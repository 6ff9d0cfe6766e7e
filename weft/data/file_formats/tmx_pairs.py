"""TMX, the exchange format of translation memories: pairs of two of its languages, as a stream.

Other variants of a translation, and units without a text in both languages, are left out and counted.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from weft.data.file_formats.xml_events import InlineText, XmlReader
from weft.data.formats import Pairs, combine
from weft.data.text_lines import check_file, file_digest
from weft.errors import DataError

SAMPLE = 1000
"""Units that decide which languages a memory has."""

Unit = list[tuple[str, str]]
"""The variants of a translation unit: (language, text)."""


class _TmxReader(XmlReader):
    """Yields the units of a memory."""

    root = "tmx"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.source_language = ""
        self._unit: Unit = []
        self._language = ""
        self._segment: InlineText | None = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if self._segment is not None:
            self._segment.start(name, attributes)
        elif name == "header":
            self.source_language = attributes.get("srclang", "")
        elif name == "tu":
            self._unit = []
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._segment = InlineText()

    def end(self, name: str) -> None:
        if name == "seg" and self._segment is not None and not self._segment.inside:
            self._unit.append((self._language, self._segment.value))
            self._segment = None
        elif self._segment is not None:
            self._segment.end()
        elif name == "tu":
            self.found.append(self._unit)

    def text(self, text: str) -> None:
        if self._segment is not None:
            self._segment.add(text)


class TmxPairs(Pairs):
    """The pairs of two languages of a memory: those after `#`, or the only two, from the source language of its header on.

    `en` also means `en-US`, unless the memory has both.
    """

    def __init__(self, name: str, path: str, languages: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.chosen = languages

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.left_out.clear()
        source, target = self.languages()
        empty = True
        for unit in _TmxReader(self.path):
            ours, theirs = (_texts(unit, language) for language in (source, target))
            if not ours or not theirs:
                self.left_out[f"without a text in {source if not ours else target}"] += 1
                continue
            if len(theirs) > 1:
                self.left_out["other variants of a translation"] += len(theirs) - 1
            if not (ours[0].strip() and theirs[0].strip()):
                self.left_out["with an empty text"] += 1
                continue
            empty = False
            yield ours[0], theirs[0]
        if empty:
            raise DataError(f"{self.path}: no unit has texts in both {source} and {target}.")

    def languages(self) -> tuple[str, str]:
        """The languages of sources and targets. Raises DataError if they have to be chosen."""
        reader = _TmxReader(self.path)
        found = Counter(language for unit in islice(reader, SAMPLE) for language, _ in unit)
        codes = list(found)
        if not codes:
            raise DataError(f"{self.path}: the memory has no translation units.")
        if self.chosen and set(map(str.lower, self.chosen)) != {"source", "target"}:
            return self.chosen
        if len(codes) != 2:
            listed = ", ".join(f"{code or 'none'} ({count:,})" for code, count in found.most_common(12))
            raise DataError(
                f"{self.path}: the memory has {len(codes)} languages: {listed}. Choose two, as in {self.path}#en,de."
            )
        first = next((code for code in codes if _matches(code, reader.source_language)), codes[0])
        pair = (first, next(code for code in codes if code != first))
        return (pair[1], pair[0]) if self.chosen and self.chosen[0].lower() == "target" else pair

    def digest(self) -> str:
        return combine("tmx", *(self.chosen or ()), file_digest(self.path))


def _texts(unit: Unit, language: str) -> list[str]:
    """The texts of a unit in a language; those of its regions if there are none."""
    exact = [text for code, text in unit if code.lower() == language.lower()]
    return exact or [text for code, text in unit if _matches(code, language)]


def _matches(code: str, language: str) -> bool:
    """Whether a code is a language or a region of it."""
    code, language = code.lower().replace("_", "-"), language.lower().replace("_", "-")
    return bool(language) and (code == language or code.startswith(f"{language}-"))
