"""Documents whose segments are translated while everything around them stays as it is: plain text, HTML, subtitles (.srt).

HTML and XML are read as markup and text. Nothing is lost: the tokens of a text, joined, are the text. Broken markup is not an
error. A tag without its counterpart is carried like an image. A tag that never ends stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape, unescape
from typing import Literal

from weft.tasks.translation.markup import HOLE, MarkupSpan, has_words
from weft.tasks.translation.segmenter import Translation

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

Kind = Literal["text", "open", "close", "void", "other"]

TOKEN = re.compile(
    r"""(?P<other><!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[!?][^>]*(?:>|\Z))"""
    r"""|<(?P<slash>/?)(?P<name>[A-Za-z][^\s/>"'<]*+)(?P<attributes>(?:[^"'>]|"[^"]*"|'[^']*')*+)>"""
    r"""|(?P<broken></?[A-Za-z][^>]*(?:>|\Z))""",
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"""([^\s"'>/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{0,31});|\ufffc")
READABLE = set("&<>\"'’‘“”«»…–—-.,;:!?()/")
"""Marks that a model may read as text if they come as entities. Entities of other marks and of spaces are carried along."""


class Document:
    """A text in which `segments` are to be translated. Everything else stays as it is.

    write: how text is written, for example with escapes.
    """

    def __init__(self, write: Callable[[str], str] = str) -> None:
        self.segments: list[Segment] = []
        self._parts: list[str | None] = []
        self._write = write

    def keep(self, text: str) -> None:
        """Adds text that stays."""
        self._parts.append(text)

    def translate(self, segment: Segment) -> None:
        """Adds a segment to translate."""
        self._parts.append(None)
        self.segments.append(segment)

    def filled(self, answers: Sequence[Translation]) -> Translation:
        """The translated document, with those of its segments as `parts`. Its score is the mean of theirs.

        Alternatives have the second-best translations of all segments, then the third-best, and so on.
        """
        whole = self._translation(answers)
        whole.tokens = [token for answer in answers for token in answer.tokens]
        for rank in range(max((len(answer.alternatives) for answer in answers), default=0)):
            ranked = [answer.alternatives[rank] if rank < len(answer.alternatives) else answer for answer in answers]
            whole.alternatives.append(self._translation(ranked))
        return whole

    def _translation(self, answers: Sequence[Translation]) -> Translation:
        score = sum(answer.score for answer in answers) / max(1, len(answers))
        return Translation(self.fill(answers), score, parts=list(answers))

    def fill(self, answers: Sequence[Translation]) -> str:
        """The text of the document with translated segments. Theirs is escaped, so a model cannot produce markup."""
        remaining = iter(answers)
        return "".join(self._filled(next(remaining)) if part is None else part for part in self._parts)

    def _filled(self, answer: Translation) -> str:
        runs = answer.runs or [(answer.text, False)]
        return "".join(text if markup else self._write(text) for text, markup in runs)

    def add(self, content: Sequence[Token]) -> None:
        """Adds tokens that are translated as a whole, or kept if there are no words among them."""
        items = paired(content)
        first, last = trimmed(items)
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


def text_document(text: str) -> Document:
    """A text whose lines are translated; line breaks and blank lines stay."""
    document = Document()
    for part in LINE_END.split(text):
        if part.strip():
            document.translate(Segment(part))
        else:
            document.keep(part)
    return document


def html_document(text: str) -> Document:
    """HTML. The text of a block element is one segment; inline elements are carried along.

    Comments, code, scripts and elements with translate="no" or the class notranslate stay as they are.
    """
    document = Document(lambda written: escape(written, quote=False))
    waiting: list[Token] = []
    for token in _with_kept(list(tokens(text, RAW, VOID))):
        if token.name in BLOCK:
            document.add(waiting)
            document.keep(token.raw)
            waiting = []
        else:
            waiting.append(token)
    document.add(waiting)
    return document


def _with_kept(content: list[Token]) -> list[Token]:
    """Joins each element that stays as it is into one token."""
    partners = [item.partner for item in paired(content)]
    joined: list[Token] = []
    at = 0
    while at < len(content):
        token, partner = content[at], partners[at]
        stays = token.kind == "open" and (token.name in KEPT or _marked(token))
        if stays and partner is not None:
            raw = "".join(each.raw for each in content[at : partner + 1])
            joined.append(Token("other", raw, token.name if token.name in BLOCK else ""))
            at = partner + 1
        else:
            joined.append(token)
            at += 1
    return joined


def _marked(token: Token) -> bool:
    classes = token.attributes.get("class", "").split()
    return token.attributes.get("translate", "").lower() == "no" or "notranslate" in classes


def srt_document(text: str) -> Document:
    """Subtitles in SubRip format. The text of a cue is one segment; its line breaks and tags are carried along."""
    document, cue, inside = Document(), list[Token](), False
    for line in text.splitlines(keepends=True):
        content = line.splitlines()[0]
        if inside and content.strip() and "-->" not in content:
            cue += [*tokens(content), Token("other", line[len(content) :])]
            continue
        document.add(cue)
        document.keep(line)
        cue, inside = [], "-->" in content
    document.add(cue)
    return document


@dataclass(frozen=True)
class Token:
    """A tag, other markup or text. name: of a tag, in small letters · attributes: of an opening tag, by their names."""

    kind: Kind
    raw: str
    name: str = ""
    attributes: dict[str, str] = field(default_factory=dict, hash=False)


def tokens(text: str, raw: frozenset[str] = frozenset(), void: frozenset[str] = frozenset()) -> Iterator[Token]:
    """The tokens of a text. raw: elements whose content is not markup · void: elements without content."""
    at = 0
    while match := TOKEN.search(text, at):
        if match.start() > at:
            yield Token("text", text[at : match.start()])
        at = match.end()
        name = (match["name"] or "").lower()
        if not name:
            yield Token("other", match[0])
        elif match["slash"]:
            yield Token("close", match[0], name)
        else:
            closed = name in void or match["attributes"].endswith("/")
            yield Token("void" if closed else "open", match[0], name, _attributes(match["attributes"]))
            if name in raw and not closed:
                end = re.compile(rf"</{re.escape(name)}(?=[\s/>])", re.IGNORECASE).search(text, at)
                stop = len(text) if end is None else end.start()
                if stop > at:
                    yield Token("other", text[at:stop])
                at = stop
    if at < len(text):
        yield Token("text", text[at:])


def _attributes(text: str) -> dict[str, str]:
    return {match[1].lower(): unescape(match[2] or match[3] or match[4] or "") for match in ATTRIBUTE.finditer(text)}


@dataclass(frozen=True)
class Segment:
    """A text to translate as a whole, with the marks in it. See `MarkupSpan`."""

    text: str
    marks: tuple[MarkupSpan, ...] = ()


@dataclass(frozen=True)
class Item:
    """A token of a segment. partner: the place of the other tag of its element, if it is among the items."""

    token: Token
    partner: int | None = None


def paired(content: Sequence[Token]) -> list[Item]:
    """Finds the counterpart of each tag, among tags that are properly nested."""
    items = [Item(token) for token in content]
    stack: list[int] = []
    for place, token in enumerate(content):
        if token.kind == "open":
            stack.append(place)
        elif token.kind == "close":
            match = next((each for each in reversed(stack) if content[each].name == token.name), None)
            if match is not None:
                del stack[stack.index(match) :]
                items[match], items[place] = replace(items[match], partner=place), replace(items[place], partner=match)
    return items


def trimmed(items: Sequence[Item]) -> tuple[int, int]:
    """The range of items that has to be translated: without tags, white space and elements around all of the text."""
    first, last = 0, len(items)
    while first < last:
        begin, end = items[first], items[last - 1]
        if _outside(begin):
            first += 1
        elif _outside(end):
            last -= 1
        elif begin.partner == last - 1:
            first, last = first + 1, last - 1
        elif begin.partner is not None and not any(_has_text(item) for item in items[first : begin.partner]):
            first = begin.partner + 1  # an element without text before the first word
        elif end.partner is not None and not any(_has_text(item) for item in items[end.partner : last]):
            last = end.partner
        else:
            break
    return first, last


def _outside(item: Item) -> bool:
    return item.partner is None and not _has_text(item)


def _has_text(item: Item) -> bool:
    return item.token.kind == "text" and bool(item.token.raw.strip())


def segment(items: Sequence[Item], offset: int) -> Segment:
    """The segment of some items; `offset` is the place of the first one, which their partners are counted from."""
    text, marks, opened = "", list[MarkupSpan](), dict[int, int]()
    for place, item in enumerate(items, start=offset):
        token, depth = item.token, len(opened)
        if token.kind == "text":
            text, entities = _readable(token.raw, text, depth)
            marks += entities
        elif item.partner is None and token.kind in ("open", "close"):
            sides = ("", token.raw) if token.kind == "close" else (token.raw, "")
            marks.append(MarkupSpan(len(text), len(text), *sides, kind="unpaired", depth=depth))
        elif item.partner is None:
            read_as = " " if token.raw.isspace() else ""
            marks.append(MarkupSpan(len(text), len(text) + 1, token.raw, kind="opaque", read_as=read_as, depth=depth))
            text += HOLE
        elif item.partner > place:
            opened[place] = len(marks)
            marks.append(MarkupSpan(len(text), len(text), token.raw, depth=depth))
        else:
            number = opened.pop(item.partner)
            marks[number] = replace(marks[number], end=len(text), close=token.raw)
    return Segment(text, tuple(marks))


def _readable(raw: str, before: str, depth: int) -> tuple[str, list[MarkupSpan]]:
    """`before` with the text of a token added: white space collapsed, entities decoded or, if they are symbols, held."""
    text, marks, at = before, list[MarkupSpan](), 0
    for match in [*ENTITY.finditer(raw), None]:
        text = _spaced(text, raw[at : match.start() if match else len(raw)])
        if match is None:
            break
        at, letter = match.end(), unescape(match[0])
        if letter.isalnum() or set(letter) <= READABLE:
            text += letter
        else:
            read_as = " " if letter.isspace() else ""
            marks.append(MarkupSpan(len(text), len(text) + 1, match[0], kind="opaque", read_as=read_as, depth=depth))
            text += HOLE
    return text, marks


def _spaced(text: str, raw: str) -> str:
    """`text` with `raw` added, runs of white space as one space."""
    added = re.sub(r"\s+", " ", raw)
    return text + (added.lstrip() if text.endswith(" ") else added)
