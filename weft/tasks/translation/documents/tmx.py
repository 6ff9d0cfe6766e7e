"""TMX: writes the target of each unit that has none. Everything else stays as it is, byte for byte."""

from collections.abc import Sequence
from html import escape

from weft.errors import DataError
from weft.tasks.translation.documents.html import Document, Token, find_partners, raw_text, tokens
from weft.tasks.translation.documents.xliff import DECLARED, check_xml, inline_content
from weft.tasks.translation.markup_and_tag_transfer import has_words

Variant = tuple[str, tuple[int, int], tuple[int, int]]
"""The language of a variant, and the places of its tags and of those of its segment."""


def tmx_document(text: str, language: str | None = None) -> Document:
    """The document of a translation memory. Units without a text in `language` get one, from the language of the header."""
    check_xml(text, "tmx", "TMX")
    if not language:
        raise DataError("a translation memory is translated into a language: set data.target_language of the run")
    text = DECLARED.sub(r'\1 encoding="UTF-8"', text)  # which is what weft writes
    parsed = list(tokens(text))
    partners = find_partners(parsed)
    source = next((token.attributes.get("srclang", "") for token in parsed if token.name == "header"), "")
    document = Document(lambda written: escape(written, quote=False))
    at = 0
    for variants in _units(parsed, partners):
        if any(_base(code) == _base(language) for code, _, _ in variants):
            continue
        chosen = next((each for each in variants if _base(each[0]) == _base(source)), variants[0] if variants else None)
        if chosen is None:
            continue
        _, (begin, end), (first, last) = chosen
        content = inline_content(parsed[first + 1 : last])
        if not has_words("".join(token.raw for token in content if token.kind == "text")):
            continue
        before = raw_text(parsed[at : end + 1])
        at = end + 1
        indent = parsed[begin - 1].raw if parsed[begin - 1].kind == "text" else ""
        opening = f'{indent[len(indent.rstrip()) :]}<tuv xml:lang="{escape(language)}" creationid="weft"><seg>'
        document.keep(before + opening)
        document.add(content)
        document.keep("</seg></tuv>")
    document.keep(raw_text(parsed[at:]))
    return document


def _units(parsed: Sequence[Token], partners: Sequence[int | None]) -> list[list[Variant]]:
    """The variants of each unit, in order."""
    units: list[list[Variant]] = []
    language, begin = "", 0
    for place, token in enumerate(parsed):
        partner = partners[place]
        if token.kind != "open" or partner is None:
            continue
        if token.name == "tu":
            units.append([])
        elif token.name == "tuv":
            language, begin = token.attributes.get("xml:lang") or token.attributes.get("lang", ""), place
        elif token.name == "seg" and units and (partners[begin] or 0) > partner and partner > place + 1:
            units[-1].append((language, (begin, partners[begin] or 0), (place, partner)))
    return units


def _base(code: str) -> str:
    return code.replace("_", "-").split("-")[0].lower()
