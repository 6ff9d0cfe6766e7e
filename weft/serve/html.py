"""A page or a piece of HTML whose text is translated and whose markup stays as it was."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser

KEPT = {"script", "style", "code", "pre", "kbd", "samp", "var", "textarea", "svg", "math", "template"}
"""Elements whose text is no prose."""

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
RAW = {"script", "style"}
"""Elements in which characters stand for themselves, so that nothing is escaped there."""


class Page(HTMLParser):
    """Cuts HTML into markup and texts. `parts` are the texts to translate, `filled` is the page with others in their places.

    The text of each element is translated by itself. Elements marked translate="no", or of the class notranslate, stay.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._pieces: list[str | None] = []
        self._kept: list[str] = []
        self.feed(text)
        self.close()

    def filled(self, texts: Sequence[str]) -> str:
        """Whatever a model says is written as text: it can open no tag."""
        following = iter(texts)
        return "".join(escape(next(following), quote=False) if piece is None else piece for piece in self._pieces)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._pieces.append(self.get_starttag_text() or "")
        given = dict(attrs)
        marked = given.get("translate") == "no" or "notranslate" in (given.get("class") or "").split()
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
        self.parts.append(core)

    def handle_comment(self, data: str) -> None:
        self._pieces.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._pieces.append(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._pieces.append(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._pieces.append(f"<![{data}]>")
