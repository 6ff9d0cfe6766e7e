"""Word documents (.docx): their paragraphs as HTML, and the translated HTML written back into them."""

import re
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from html import escape, unescape
from io import BytesIO
from itertools import islice
from typing import Any
from zipfile import ZipFile

from weft.errors import ConfigError, DataError
from weft.version import install

UNPACKED = 32 << 20
"""Bytes that a document may have when it is unpacked."""

PARAGRAPHS = 100_000
"""Paragraphs that a document may have. A book of a thousand pages has a fifth of them."""

PARAGRAPH = "<p>"
BREAKS = {"\n": "<br>", "\t": "<hr>"}
"""White space that separates texts, as block elements of HTML."""

TAG = re.compile(r"<(/?)r(\d{1,9})>|<[bh]r>")
PLAIN = frozenset({"rPr", "t", "br", "tab", "cr", "noBreakHyphen", "lastRenderedPageBreak"})
"""Elements of a run that is text. Runs with others, such as images, stay as they are."""


@dataclass
class Unit:
    """A run or a hyperlink of a paragraph: its XML element, its text, and its formatting."""

    element: Any
    text: str
    format: bytes


class WordDocument:
    """The paragraphs of a document with text, in its body, tables, headers and footers. Paragraphs with fields stay."""

    def __init__(self, content: bytes) -> None:
        try:
            import docx
        except ImportError:
            raise ConfigError(f"Word documents need the package python-docx: {install('docx')}") from None
        try:
            size = sum(each.file_size for each in ZipFile(BytesIO(content)).infolist())
            if size > UNPACKED:
                raise DataError(f"the Word document has {size:,} bytes when unpacked; at most {UNPACKED:,} are allowed")
            self._document = docx.Document(BytesIO(content))
            parts = [self._document.element.body, *self._margins()]
        except DataError:
            raise
        except Exception:  # a damaged file may raise anything
            raise DataError("the file is not a Word document, or it is damaged") from None
        elements = list(islice((element for part in parts for element in part.iter(f"{_prefix(part)}p")), PARAGRAPHS + 1))
        if len(elements) > PARAGRAPHS:
            raise DataError(f"the Word document has more than {PARAGRAPHS:,} paragraphs; divide it into several")
        self.paragraphs = [units for units in map(_units, elements) if units]

    def _margins(self) -> Iterator[Any]:
        for section in self._document.sections:
            for side in (section.header, section.footer):
                if not side.is_linked_to_previous:
                    yield side._element

    @property
    def html(self) -> str:
        """All paragraphs. Words that look different from the rest of their paragraph are in elements with a number."""
        return PARAGRAPH.join(map(_markup, self.paragraphs))

    def filled(self, html: str) -> bytes:
        """The document with translated paragraphs."""
        for units, text in zip(self.paragraphs, html.split(PARAGRAPH), strict=True):
            _write(units, text)
        out = BytesIO()
        self._document.save(out)
        return out.getvalue()


def _prefix(element: Any) -> str:
    return f"{element.tag.partition('}')[0]}}}"


def _units(paragraph: Any) -> list[Unit]:
    """The runs and hyperlinks of a paragraph that are text. Neighbours that look the same are joined."""
    prefix = _prefix(paragraph)
    if any(run.find(f"{prefix}fldChar") is not None for run in paragraph.findall(f"{prefix}r")):
        return []
    units: list[Unit] = []
    for element in paragraph:
        link = element.tag == f"{prefix}hyperlink"
        runs = element.findall(f"{prefix}r") if link else [element] if element.tag == f"{prefix}r" else []
        text = "".join(run.text for run in runs)
        if not text or not {child.tag.rpartition("}")[2] for run in runs for child in run} <= PLAIN:
            continue
        format = str(len(units)).encode() if link else _format(element)
        if units and units[-1].format == format and units[-1].element.getnext() is element:
            paragraph.remove(element)
            units[-1].text += text
        else:
            units.append(Unit(element, text, format))
    return units


def _format(run: Any) -> bytes:
    """The formatting of a run, without its language."""
    from lxml import etree

    properties = deepcopy(run.rPr)
    if properties is None:
        return b""
    for child in [child for child in properties if child.tag.rpartition("}")[2] in ("lang", "noProof")]:
        properties.remove(child)
    return etree.tostring(properties) if len(properties) else b""


def _base(units: list[Unit]) -> bytes:
    """The formatting of most of a paragraph."""
    letters = Counter[bytes]()
    for unit in units:
        letters[unit.format] += len(unit.text)
    return letters.most_common(1)[0][0]


def _markup(units: list[Unit]) -> str:
    base, markup = _base(units), ""
    for number, unit in enumerate(units):
        before, after = ("", "") if unit.format == base else (f"<r{number}>", f"</r{number}>")
        for part in re.split(r"([\n\t])", unit.text):
            markup += BREAKS.get(part) or (f"{before}{escape(part, quote=False)}{after}" if part else "")
    return markup


def _write(units: list[Unit], markup: str) -> None:
    """Replaces the units of a paragraph by those of its translation."""
    base = next(unit for unit in units if unit.format == _base(units))
    spaces = {tag: space for space, tag in BREAKS.items()}
    written: list[list[Any]] = []
    current, at = base, 0

    def add(text: str) -> None:
        if text and written and written[-1][0] is current:
            written[-1][1] += text
        elif text:
            written.append([current, text])

    for match in TAG.finditer(markup):
        add(unescape(markup[at : match.start()]))
        add(spaces.get(match[0], ""))
        if match[2]:
            current = base if match[1] else units[int(match[2])]
        at = match.end()
    add(unescape(markup[at:]))
    first = units[0].element
    for unit, text in written:
        first.addprevious(_copy(unit.element, text))
    for unit in units:
        unit.element.getparent().remove(unit.element)


def _copy(element: Any, text: str) -> Any:
    """A copy of a run or hyperlink with another text."""
    made = deepcopy(element)
    runs = [made] if made.tag.endswith("}r") else made.findall(f"{_prefix(made)}r")
    runs[0].text = text
    for other in runs[1:]:
        made.remove(other)
    return made
