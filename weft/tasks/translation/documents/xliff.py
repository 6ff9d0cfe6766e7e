"""XLIFF 1.2 and 2.x: writes the target of each unit from its source. The rest of the file stays as it is, byte for byte."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from xml.parsers import expat

from weft.errors import DataError
from weft.tasks.translation.documents.html import Document, Token, find_partners, join_elements, raw_text, tokens

OPENS, CLOSES = {"bx", "bpt", "sc", "sm"}, {"ex", "ept", "ec", "em"}
"""Inline elements that open and close a range. They are elements of their own, so they may be anywhere in a unit."""

CODES = {"ph", "bpt", "ept", "it", "x", "cp"}
"""Inline elements whose content is code, not text."""

PREFIX = re.compile(r"^.*:")
DECLARED = re.compile(r"""^(<\?xml[^>]*?)\s+encoding=(?:'[^']*'|"[^"]*")""")
"""The declaration of an encoding."""


@dataclass(frozen=True)
class _Unit:
    """Places of the tokens of one unit: its source, its target if it has one, and whether it is to be translated."""

    source: tuple[int, int]
    target: tuple[int, int] | None
    wanted: bool


def xliff_document(text: str, language: str | None = None) -> Document:
    """The document of an XLIFF file. Units that are approved, final or not to be translated keep their target.

    language: the target language, which is written into the file if it names none.
    """
    _check(text)
    text = DECLARED.sub(r'\1 encoding="UTF-8"', text)  # which is what weft writes
    parsed = [_with_language(replace(token, name=PREFIX.sub("", token.name)), language) for token in tokens(text)]
    partners = find_partners(parsed)
    document = Document(lambda written: escape(written, quote=False))
    at = 0
    for unit in _units(parsed, partners):
        begin, end = unit.source
        if begin < at:
            continue  # a unit inside another one
        document.keep(raw_text(parsed[at : end + 1]))
        at = end + 1
        if not unit.wanted:
            continue
        name = parsed[begin].raw[1:].split(">")[0].split()[0].replace("source", "target")
        if unit.target is None:
            document.keep(f"{_indent(parsed, begin)}<{name}>")
            _add(document, parsed[begin + 1 : end])
            document.keep(f"</{name}>")
            continue
        first, last = unit.target
        opening = parsed[first].raw
        document.keep(raw_text(parsed[at:first]) + (opening.rstrip("/>").rstrip() + ">" if first == last else opening))
        _add(document, parsed[begin + 1 : end])
        document.keep(f"</{name}>" if first == last else parsed[last].raw)
        at = last + 1
    document.keep(raw_text(parsed[at:]))
    return document


def _with_language(token: Token, language: str | None) -> Token:
    """The tag that names the target language, with the language if it is missing."""
    name = {"file": "target-language", "xliff": "trgLang"}.get(token.name)
    first = (token.name == "file" and "source-language" in token.attributes) or "srclang" in token.attributes
    if token.kind != "open" or not (language and name and first) or name.lower() in token.attributes:
        return token
    return replace(token, raw=f'{token.raw[:-1]} {name}="{escape(language)}">')


def _units(parsed: Sequence[Token], partners: Sequence[int | None]) -> list[_Unit]:
    """The units of a file, in order: `trans-unit` in version 1.2, `segment` in version 2."""
    units: list[_Unit] = []
    stays = 0  # the place up to which nothing is to be translated
    for place, token in enumerate(parsed):
        partner = partners[place]
        if token.kind != "open" or partner is None:
            continue
        if token.attributes.get("translate") == "no" or token.attributes.get("approved") == "yes":
            stays = max(stays, partner)
        if token.name not in ("trans-unit", "segment"):
            continue
        inner = _children(parsed, partners, place, partner)
        source = inner.get("source")
        if source is None or source[0] == source[1]:
            continue
        target = inner.get("target")
        final = "final" in (token.attributes.get("state"), parsed[target[0]].attributes.get("state") if target else None)
        units.append(_Unit(source, target, not final and place >= stays))
    return units


def _children(parsed: Sequence[Token], partners: Sequence[int | None], first: int, last: int) -> dict[str, tuple[int, int]]:
    """The elements directly inside another one, by name: the places of their tags."""
    inner: dict[str, tuple[int, int]] = {}
    at = first + 1
    while at < last:
        partner = partners[at]
        end = at if partner is None or partner < at else partner
        if parsed[at].kind in ("open", "void"):
            inner.setdefault(parsed[at].name, (at, end))
        at = end + 1
    return inner


def _add(document: Document, content: Sequence[Token]) -> None:
    """Adds the content of a source. Codes are joined into one token; tags that open and close a range become a pair."""
    document.add([_inline(token) for token in join_elements(content, _is_code)])


def _is_code(token: Token) -> bool:
    protected = token.attributes.get("mtype") == "protected" or token.attributes.get("translate") == "no"
    return protected or token.name in CODES | OPENS | CLOSES


def _inline(token: Token) -> Token:
    """A token of a source as one of HTML. The text of a CDATA section is ordinary text."""
    if token.kind != "close" and token.name in OPENS:
        return Token("open", token.raw, _range(token), token.attributes)
    if token.kind != "close" and token.name in CLOSES:
        return Token("close", token.raw, _range(token))
    if token.raw.startswith("<![CDATA["):
        return Token("text", escape(token.raw.removeprefix("<![CDATA[").removesuffix("]]>"), quote=False))
    return token


def _range(token: Token) -> str:
    """Names the range that a tag opens or closes."""
    ids = token.attributes
    if token.name in ("bx", "ex", "bpt", "ept"):
        return f"range {ids.get('rid') or ids.get('id', '')}"
    kind = "code" if token.name in ("sc", "ec") else "note"
    return f"{kind} {ids.get('id', '') if token.name in OPENS else ids.get('startRef') or ids.get('startref', '')}"


def _indent(parsed: Sequence[Token], place: int) -> str:
    """The white space before a tag, for the tag that is written after it."""
    before = parsed[place - 1].raw if place else ""
    return before[len(before.rstrip()) :] if parsed[place - 1].kind == "text" else ""


def _check(text: str) -> None:
    """Raises DataError unless a text is well-formed XLIFF. Entities are refused: nothing is ever read from elsewhere."""
    root: list[str] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: root.append(name) if not root else None

    def refuse(*declaration: object) -> None:
        raise DataError("the XLIFF file declares entities, which are not read; replace them by their text")

    parser.EntityDeclHandler = refuse
    try:
        # The text is decoded already, whatever its declaration says.
        parser.Parse(DECLARED.sub(r"\1", text).encode("utf-8"), True)
    except expat.ExpatError as error:
        raise DataError(f"the XLIFF file is not well-formed XML: {error}") from None
    if PREFIX.sub("", root[0]) != "xliff":
        raise DataError(f"the file is XML, but not XLIFF: its first element is {root[0]}, not xliff")
