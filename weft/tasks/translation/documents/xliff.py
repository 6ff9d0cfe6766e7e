"""XLIFF 1.2 and 2.x: writes the target of each unit from its source, with its state and its score.

The rest of the file stays as it is, byte for byte.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from xml.parsers import expat

from weft.data.file_formats.xliff_pairs import EXACT, UNTRANSLATED, is_suggestion
from weft.errors import DataError
from weft.tasks.translation.documents.html import Document, Token, find_partners, join_elements, raw_text, tokens
from weft.tasks.translation.segmenter import Translation

OPENS, CLOSES = {"bx", "bpt", "sc", "sm"}, {"ex", "ept", "ec", "em"}
"""Inline elements that open and close a range. They are elements of their own, so they may be anywhere in a unit."""

CODES = {"ph", "bpt", "ept", "it", "x", "cp"}
"""Inline elements whose content is code, not text."""

PREFIX = re.compile(r"^.*:")
DECLARED = re.compile(r"""^(<\?xml[^>]*?)\s+encoding=(?:'[^']*'|"[^"]*")""")
"""The declaration of an encoding."""


@dataclass(frozen=True)
class _Unit:
    """Places of the tokens of one unit: its tag, its source, its target if it has one, and whether it is to be translated.

    before: the place of the last token that has to stand before the target
    """

    segment: int
    source: tuple[int, int]
    target: tuple[int, int] | None
    before: int
    wanted: bool


def xliff_document(text: str, language: str | None = None) -> Document:
    """The document of an XLIFF file. Units that are approved, translated by a person or not to be translated keep their target.

    language: the target language, which is written into the file if it names none.
    """
    check_xml(text, "xliff", "XLIFF")
    text = DECLARED.sub(r'\1 encoding="UTF-8"', text)  # which is what weft writes
    parsed = [_with_language(replace(token, name=PREFIX.sub("", token.name)), language) for token in tokens(text)]
    partners = find_partners(parsed)
    document = Document(lambda written: escape(written, quote=False))
    at = 0
    for unit in _units(parsed, partners):
        begin, end = unit.source
        if begin < at:
            continue  # a unit inside another one
        if not unit.wanted:
            document.keep(raw_text(parsed[at : end + 1]))
            at = end + 1
            continue
        before, at = raw_text(parsed[at : unit.before + 1]), unit.before + 1
        opening, closing = _target_tags(parsed, unit)
        if unit.target is None:
            before += _indent(parsed, begin)
        else:
            before += raw_text(parsed[at : unit.target[0]])
            at = unit.target[1] + 1
        describe = partial(_described, before=before, opening=opening, segment=parsed[unit.segment].raw)
        document.keep_described(before + opening, describe, inline_content(parsed[begin + 1 : end]))
        document.keep(closing)
    document.keep(raw_text(parsed[at:]))
    return document


def _target_tags(parsed: Sequence[Token], unit: _Unit) -> tuple[str, str]:
    """The tags of the target of a unit: its own, or new ones."""
    if unit.target is not None and unit.target[0] < unit.target[1]:
        return parsed[unit.target[0]].raw, parsed[unit.target[1]].raw
    name = parsed[unit.source[0]].raw[1:].split(">")[0].split()[0].replace("source", "target")
    if unit.target is None:
        return f"<{name}>", f"</{name}>"
    return parsed[unit.target[0]].raw.rstrip("/>").rstrip() + ">", f"</{name}>"


def _described(answer: Translation, *, before: str, opening: str, segment: str) -> str:
    """The markup before a translation, with its state and score, or that it is an exact match of a translation memory.

    Version 1.2 has the state in the target, and attributes of others there. Version 2 has it in the segment, which begins in
    `before`, and only a subordinate state for others. A confidence, if there is one, is the mtConfidence of ITS 2.0 in version
    1.2, and takes the place of the score in version 2.
    """
    score = f"{answer.score:.4f}"
    sure = "" if answer.quality is None else f"{answer.quality.confidence:.4f}"
    if "segment" not in segment:
        own = {"state-qualifier": "mt-suggestion", "xmlns:weft": "urn:weft", "weft:score": score}
        if sure:
            own |= {"xmlns:its": "http://www.w3.org/2005/11/its", "its:annotatorsRef": "mt-confidence|urn:weft"}
            own["its:mtConfidence"] = sure
        kind = {"state-qualifier": "exact-match"} if answer.from_memory else own
        return before + with_attributes(opening, {"state": "needs-review-translation", **kind})
    start, tag, rest = before.rpartition(segment)
    estimate = f"confidence-{sure}" if sure else score
    kind = {"subState": EXACT if answer.from_memory else f"weft:{estimate}"}
    return start + with_attributes(tag, {"state": "translated", **kind}) + rest + opening


def with_attributes(tag: str, attributes: Mapping[str, str]) -> str:
    """An opening tag with these attributes in place of its own of the same names."""
    for name in attributes:
        tag = re.sub(rf"""\s+{re.escape(name)}\s*=\s*(?:"[^"]*"|'[^']*')""", "", tag)
    end = "/>" if tag.endswith("/>") else ">"
    return tag.removesuffix(end).rstrip() + "".join(f' {name}="{value}"' for name, value in attributes.items()) + end


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
        last = source[1] if target else max(source[1], inner.get("seg-source", source)[1])
        wanted = place >= stays and not _by_a_person(parsed, token, source, target)
        units.append(_Unit(place, source, target, last, wanted))
    return units


def _by_a_person(parsed: Sequence[Token], unit: Token, source: tuple[int, int], target: tuple[int, int] | None) -> bool:
    """Whether a unit is final, or has a translation that no machine has suggested.

    In version 2 a segment without a state is in the state `initial`. In version 1.2 a target without one may be a copy of the
    source, which other programs write to be overwritten.
    """
    own = unit.attributes | (parsed[target[0]].attributes if target else {})
    state, note = own.get("state", ""), own.get("state-qualifier") or own.get("substate", "")
    text = raw_text(parsed[target[0] + 1 : target[1]]).strip() if target else ""
    if not text or state in UNTRANSLATED or is_suggestion(note):
        return state == "final"
    return bool(state) or (unit.name == "trans-unit" and text != raw_text(parsed[source[0] + 1 : source[1]]).strip())


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


def inline_content(content: Sequence[Token]) -> list[Token]:
    """The content of a source. Codes are joined into one token; tags that open and close a range become a pair."""
    return [_inline(token) for token in join_elements(content, _is_code)]


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
        return f"range {ids.get('rid') or ids.get('id') or ids.get('i', '')}"
    kind = "code" if token.name in ("sc", "ec") else "note"
    return f"{kind} {ids.get('id', '') if token.name in OPENS else ids.get('startRef') or ids.get('startref', '')}"


def _indent(parsed: Sequence[Token], place: int) -> str:
    """The white space before a tag, for the tag that is written after it."""
    before = parsed[place - 1].raw if place else ""
    return before[len(before.rstrip()) :] if parsed[place - 1].kind == "text" else ""


def check_xml(text: str, root: str, format: str) -> None:
    """Raises DataError unless a text is well-formed XML with this first element. Declarations of entities are refused."""
    found: list[str] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: found.append(name) if not found else None

    def refuse(*declaration: object) -> None:
        raise DataError(f"the {format} file declares entities, which are not read; replace them by their text")

    parser.EntityDeclHandler = refuse
    try:
        # The text is decoded already, whatever its declaration says.
        parser.Parse(DECLARED.sub(r"\1", text).encode("utf-8"), True)
    except expat.ExpatError as error:
        raise DataError(f"the {format} file is not well-formed XML: {error}") from None
    if PREFIX.sub("", found[0]) != root:
        raise DataError(f"the file is XML, but not {format}: its first element is {found[0]}, not {root}")
