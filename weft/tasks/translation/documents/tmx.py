"""TMX: writes the target of each unit that has none. Everything else stays as it is, byte for byte."""

from collections.abc import Sequence
from html import escape

from weft.errors import DataError
from weft.tasks.translation.documents.html import Document, Token, find_partners, raw_text, tokens
from weft.tasks.translation.documents.xliff import DECLARED, check_xml, inline_content, with_attributes
from weft.tasks.translation.markup_and_tag_transfer import has_words

Variant = tuple[str, tuple[int, int], tuple[int, int]]
"""The language of a variant, and the places of its tags and of those of its segment, which are one if it is empty: `<seg/>`."""


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
        ours = [each for each in variants if _base(each[0]) == _base(language)]
        texts = [each for each in variants if raw_text(parsed[each[2][0] + 1 : each[2][1]]).strip()]
        if not texts or any(each in texts for each in ours):
            continue
        _, (begin, end), (first, last) = next((each for each in texts if _base(each[0]) == _base(source)), texts[0])
        content = inline_content(parsed[first + 1 : last])
        if not has_words("".join(token.raw for token in content if token.kind == "text")):
            continue
        if ours:  # with an empty segment
            _, (begin, _), (first, end) = ours[0]
            tag = with_attributes(parsed[begin].raw, {"creationid": "weft"})
            start = raw_text(parsed[at:begin]) + tag + raw_text(parsed[begin + 1 : first])
            document.keep(start + parsed[first].raw.rstrip("/>").rstrip() + ">")
        else:
            indent = parsed[begin - 1].raw if parsed[begin - 1].kind == "text" else ""
            opening = f'{indent[len(indent.rstrip()) :]}<tuv xml:lang="{escape(language)}" creationid="weft"><seg>'
            document.keep(raw_text(parsed[at : end + 1]) + opening)
        at = end + 1
        document.add(content)
        document.keep("</seg>" if ours else "</seg></tuv>")
    document.keep(raw_text(parsed[at:]))
    return document


def _units(parsed: Sequence[Token], partners: Sequence[int | None]) -> list[list[Variant]]:
    """The variants of each unit, in order."""
    units: list[list[Variant]] = []
    language, begin = "", 0
    for place, token in enumerate(parsed):
        partner = place if token.kind == "void" else partners[place]
        if token.kind not in ("open", "void") or partner is None:
            continue
        if token.name == "tu":
            units.append([])
        elif token.name == "tuv":
            language, begin = token.attributes.get("xml:lang") or token.attributes.get("lang", ""), place
        elif token.name == "seg" and units and (partners[begin] or 0) > partner:
            units[-1].append((language, (begin, partners[begin] or 0), (place, partner)))
    return units


def _base(code: str) -> str:
    return code.replace("_", "-").split("-")[0].lower()
