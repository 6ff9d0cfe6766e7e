"""Reads XML as a stream of events, in bounded memory; text with inline elements, which TMX and XLIFF share.

Nothing is ever read from elsewhere, and declarations of entities are refused, so that a small file cannot become a large one.
"""

from collections import deque
from collections.abc import Iterator
from html import escape
from typing import Any
from xml.parsers import expat

from weft.data.compression_and_encodings import READ_ERRORS
from weft.data.text_lines import open_file
from weft.errors import DataError
from weft.file_access import split_encoding

BLOCK = 1 << 16
LARGEST = 16 << 20
"""Bytes of one tag, and characters of one segment; larger ones are no text."""

CODES = frozenset({"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "cp", "sc", "ec", "sm", "em"})
"""Inline elements whose content is native code. Elements without content stay as they are."""

NOTES = frozenset({"mrk"})
"""Inline elements that mark text and disappear."""


class XmlReader:
    """Reads a file and yields what the handlers of a subclass put into `found`. Names of elements have no prefix.

    root: the name that the first element must have.
    """

    root: str

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: deque[Any] = deque()
        self._depth = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """The beginning of an element."""

    def end(self, name: str) -> None:
        """The end of an element."""

    def text(self, text: str) -> None:
        """A part of the text of an element."""

    def __iter__(self) -> Iterator[Any]:
        parser = expat.ParserCreate("utf-8" if split_encoding(self.path)[1] else None)
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self.text
        parser.EntityDeclHandler = self._refuse_entities
        parser.SkippedEntityHandler = self._refuse_entity
        self._parser, read = parser, 0
        with open_file(self.path) as file:
            while True:
                try:
                    block = file.read(BLOCK)
                    parser.Parse(block, not block)
                except (expat.ExpatError, LookupError, ValueError) as error:  # the latter two: of an unknown encoding
                    raise DataError(f"{self.path}: not well-formed XML: {error}") from None
                except READ_ERRORS as error:
                    raise DataError(f"{self.path}: the file cannot be read past byte {read:,}: {error}") from None
                read += len(block)
                if read - parser.CurrentByteIndex > LARGEST:
                    raise DataError(f"{self.path}: a tag at byte {parser.CurrentByteIndex:,} has more than {LARGEST:,} bytes")
                while self.found:
                    yield self.found.popleft()
                if not block:
                    return

    @property
    def where(self) -> str:
        return f"{self.path}, line {self._parser.CurrentLineNumber:,}"

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        plain = name.rpartition(":")[2]
        if not self._depth and plain != self.root:
            raise DataError(f"{self.path}: its first element is <{plain[:40]}>, not <{self.root}>")
        self._depth += 1
        self.start(plain, attributes)

    def _end(self, name: str) -> None:
        self._depth -= 1
        self.end(name.rpartition(":")[2])

    def _refuse_entities(self, *declaration: object) -> None:
        raise DataError(f"{self.path}: the file declares entities, which are not read; replace them by their text")

    def _refuse_entity(self, name: str, is_parameter: bool) -> None:
        """An entity of an external DTD, which is not read, would otherwise vanish from the text."""
        if not is_parameter:
            raise DataError(f"{self.where}: the entity &{name}; is declared elsewhere; replace it by its text")


class InlineText:
    """The text of a segment as it is read. Native code in inline elements is kept as markup, `<ph>&lt;br&gt;</ph>` as `<br>`.

    An element that marks code without showing it, such as `<x id="1"/>`, is kept as it is. data: native code of XLIFF 2, by id.
    """

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.parts: list[str] = []
        self.data = data or {}
        self.inside: list[tuple[str, str, list[str]]] = []
        self.size = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        tag = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
        if name in CODES:
            self.inside.append(("code", self.data.get(attributes.get("dataRef", ""), f"<{name}{tag}/>"), self.parts))
            self.parts = []
        elif name in NOTES:
            self.inside.append(("note", "", self.parts))
        else:
            first, last = (self.data.get(attributes.get(key, "")) for key in ("dataRefStart", "dataRefEnd"))
            self.parts.append(f"<{name}{tag}>" if first is None else first)
            self.inside.append(("range", f"</{name}>" if last is None else last, self.parts))

    def end(self) -> None:
        kind, closing, outer = self.inside.pop()
        if kind == "code":
            content = "".join(self.parts)
            self.parts = outer
            self.parts.append(content if content.strip() else closing)
        elif kind == "range":
            self.parts.append(closing)

    def add(self, text: str) -> None:
        self.size += len(text)
        if self.size > LARGEST:
            raise DataError(f"a segment has more than {LARGEST:,} characters")
        self.parts.append(text)

    @property
    def value(self) -> str:
        return "".join(self.parts)
