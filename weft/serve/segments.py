"""Splits texts and HTML into segments to translate. Everything around the segments stays as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser

LINE_END = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
KEPT = {"script", "style", "code", "pre", "kbd", "samp", "var", "textarea", "svg", "math", "template"}
"""Elements whose text is not prose and stays as it is."""

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
RAW = {"script", "style"}
"""Elements whose content is raw text, without escapes."""


class PlainText:
    """Splits a text into lines. Each is one of the `segments` to translate; line breaks and blank lines stay."""

    def __init__(self, text: str) -> None:
        pieces = LINE_END.split(text)
        self.segments = [piece for piece in pieces if piece.strip()]
        self._pieces = [None if piece.strip() else piece for piece in pieces]

    def fill(self, translations: Sequence[str]) -> str:
        """Returns the text with translated segments."""
        remaining = iter(translations)
        return "".join(next(remaining) if piece is None else piece for piece in self._pieces)


class HtmlText(HTMLParser, PlainText):
    """Splits HTML into markup, which stays, and text. The text of each element is one segment.

    Elements with translate="no" or the class notranslate stay as they are.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.segments, self._pieces = [], []
        self._kept: list[str] = []
        self.feed(text)
        self.close()

    def fill(self, translations: Sequence[str]) -> str:
        """Returns the HTML with translated segments. These are escaped, so a model cannot produce markup."""
        return super().fill([escape(translation, quote=False) for translation in translations])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._pieces.append(self.get_starttag_text() or "")
        attributes = dict(attrs)
        marked = attributes.get("translate") == "no" or "notranslate" in (attributes.get("class") or "").split()
        if tag not in VOID and (self._kept or tag in KEPT or marked):
            self._kept.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._pieces.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._pieces.append(f"</{tag}>")
        if tag in self._kept:
            del self._kept[len(self._kept) - 1 - self._kept[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        core = " ".join(data.split())
        if self._kept or not any(character.isalnum() for character in core):
            raw = bool(self._kept) and self._kept[-1] in RAW
            self._pieces.append(data if raw else escape(data, quote=False))
            return
        left, right = len(data) - len(data.lstrip()), len(data.rstrip())
        self._pieces += [data[:left], None, data[right:]]
        self.segments.append(core)

    def handle_comment(self, data: str) -> None:
        self._pieces.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._pieces.append(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._pieces.append(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._pieces.append(f"<![{data}]>")
