"""Documents: texts whose segments are translated while everything around them stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from weft.tasks.translation.documents.markup import Item, Segment, Token, has_words, paired, segment, tokens, trimmed
from weft.tasks.translation.join_segments import Translation
from weft.tasks.translation.markup_projection import MarkupSpan

LINE_END = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")

RAW = frozenset({"script", "style", "textarea", "iframe", "noembed", "noframes", "xmp"})
KEPT = RAW | {"code", "pre", "kbd", "samp", "var", "svg", "math", "template", "object", "canvas", "audio", "video"}
"""Elements whose content is not prose and stays as it is."""

VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
)
BLOCK_NAMES = """
address article aside base blockquote body br button caption center col colgroup dd details dialog dir div dl dt fieldset
figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link main menu meta
nav noscript ol optgroup option p pre search section select summary table tbody td textarea tfoot th thead title tr ul
"""
BLOCK = frozenset(BLOCK_NAMES.split())
"""Elements that end a sentence. All others are carried along inside of it."""


class Document:
    """A text in which `segments` are to be translated. Everything else stays as it is.

    write: how text is written, for example with escapes.
    """

    def __init__(self, write: Callable[[str], str] = str) -> None:
        self.segments: list[Segment] = []
        self._pieces: list[str | None] = []
        self._write = write

    def keep(self, text: str) -> None:
        """Adds text that stays."""
        self._pieces.append(text)

    def translate(self, found: Segment) -> None:
        """Adds a segment to translate."""
        self._pieces.append(None)
        self.segments.append(found)

    def filled(self, answers: Sequence[Translation]) -> Translation:
        """The translated document, with those of its segments as `parts`. Its score is the mean of theirs.

        Alternatives have the second-best translations of all segments, then the third-best, and so on.
        """
        score = sum(answer.score for answer in answers) / max(1, len(answers))
        tokens = [token for answer in answers for token in answer.tokens]
        whole = Translation(self.fill(answers), score, tokens=tokens, parts=list(answers))
        for rank in range(max((len(answer.alternatives) for answer in answers), default=0)):
            ranked = [answer.alternatives[rank] if rank < len(answer.alternatives) else answer for answer in answers]
            mean = sum(answer.score for answer in ranked) / len(ranked)
            whole.alternatives.append(Translation(self.fill(ranked), mean, parts=ranked))
        return whole

    def fill(self, answers: Sequence[Translation]) -> str:
        """The text of the document with translated segments. Theirs is escaped, so a model cannot produce markup."""
        remaining = iter(answers)
        return "".join(self._filled(next(remaining)) if piece is None else piece for piece in self._pieces)

    def _filled(self, answer: Translation) -> str:
        runs = answer.runs or [(answer.text, False)]
        return "".join(text if markup else self._write(text) for text, markup in runs)

    def add(self, found: Sequence[Token]) -> None:
        """Adds tokens that are translated as a whole, or kept if there are no words among them."""
        items = paired(found)
        self.add_items(items, *trimmed(items))

    def add_items(self, items: Sequence[Item], first: int, last: int) -> None:
        """Adds items; those from `first` to `last` are translated."""
        inner = segment(items[first:last], first)
        if not has_words(inner.text):
            first = last = len(items)
        before, after = ("".join(item.token.raw for item in side) for side in (items[:first], items[last:]))
        if first == last:
            self.keep(before + after)
            return
        text = inner.text
        left, right = len(text) - len(text.lstrip()), len(text.rstrip())
        source = "".join(item.token.raw for item in items[first:last])
        self.keep(before + source[: len(source) - len(source.lstrip())])
        self.translate(Segment(text[left:right], tuple(_shifted(mark, left, right - left) for mark in inner.marks)))
        self.keep(source[len(source.rstrip()) :] + after)


def _shifted(mark: MarkupSpan, by: int, length: int) -> MarkupSpan:
    start, end = (min(max(0, edge - by), length) for edge in (mark.start, mark.end))
    return replace(mark, start=start, end=end)


def plain_text(text: str) -> Document:
    """A text whose lines are translated; line breaks and blank lines stay."""
    document = Document()
    for piece in LINE_END.split(text):
        if piece.strip():
            document.translate(Segment(piece))
        else:
            document.keep(piece)
    return document


def html(text: str) -> Document:
    """HTML. The text of a block element is one segment; inline elements are carried along.

    Comments, code, scripts and elements with translate="no" or the class notranslate stay as they are.
    """
    document = Document(lambda written: escape(written, quote=False))
    waiting: list[Token] = []
    found = _with_kept(list(tokens(text, RAW, VOID)))
    for token in found:
        if token.name in BLOCK:
            document.add(waiting)
            document.keep(token.raw)
            waiting = []
        else:
            waiting.append(token)
    document.add(waiting)
    return document


def _with_kept(found: list[Token]) -> list[Token]:
    """Joins each element that stays as it is into one token."""
    partners = [item.partner for item in paired(found)]
    joined: list[Token] = []
    at = 0
    while at < len(found):
        token, partner = found[at], partners[at]
        stays = token.kind == "open" and (token.name in KEPT or _marked(token))
        if stays and partner is not None:
            raw = "".join(each.raw for each in found[at : partner + 1])
            joined.append(Token("other", raw, token.name if token.name in BLOCK else ""))
            at = partner + 1
        else:
            joined.append(token)
            at += 1
    return joined


def _marked(token: Token) -> bool:
    classes = token.attributes.get("class", "").split()
    return token.attributes.get("translate", "").lower() == "no" or "notranslate" in classes
