"""Reads HTML and XML as markup and text. Nothing is lost: the tokens of a text, joined, are the text.

Broken markup is not an error. A tag without its counterpart is carried like an image. A tag that never ends stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from typing import Literal

from weft.tasks.translation.markup_projection import HOLE, MarkupSpan

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


@dataclass(frozen=True)
class Token:
    """A piece of markup or text. name: of a tag, in small letters · attributes: of an opening tag, by their names."""

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


def paired(found: Sequence[Token], key: Callable[[Token], str] = lambda token: token.name) -> list[Item]:
    """Finds the counterpart of each tag, among tags that are properly nested. `key` is equal for both tags of an element."""
    items = [Item(token) for token in found]
    stack: list[int] = []
    for place, token in enumerate(found):
        if token.kind == "open":
            stack.append(place)
        elif token.kind == "close":
            match = next((each for each in reversed(stack) if key(found[each]) == key(token)), None)
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
            text, found = _readable(token.raw, text, depth)
            marks += found
        elif item.partner is None and token.kind in ("open", "close"):
            sides = ("", token.raw) if token.kind == "close" else (token.raw, "")
            marks.append(MarkupSpan(len(text), len(text), *sides, kind="loose", depth=depth))
        elif item.partner is None:
            seen = " " if token.raw.isspace() else ""
            marks.append(MarkupSpan(len(text), len(text) + 1, token.raw, kind="held", seen=seen, depth=depth))
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
            seen = " " if letter.isspace() else ""
            marks.append(MarkupSpan(len(text), len(text) + 1, match[0], kind="held", seen=seen, depth=depth))
            text += HOLE
    return text, marks


def _spaced(text: str, raw: str) -> str:
    """`text` with `raw` added, runs of white space as one space."""
    added = re.sub(r"\s+", " ", raw)
    return text + (added.lstrip() if text.endswith(" ") else added)


def has_words(text: str) -> bool:
    """Whether there is anything to translate."""
    return any(map(str.isalnum, text))
