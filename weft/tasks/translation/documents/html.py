"""Documents whose segments are translated while everything around them stays as it is: plain text, HTML, subtitles.

HTML and XML are read as markup and text. Nothing is lost: the tokens of a text, joined, are the text. Broken markup is not an
error. A tag without its counterpart is treated like an image. A tag that never ends stays as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape, unescape
from itertools import accumulate
from typing import Literal

from weft.data.file_formats.subtitles import cue_lines
from weft.errors import DataError
from weft.tasks.translation.markup_and_tag_transfer import OBJECT, MarkupSpan, has_words
from weft.tasks.translation.segmenter import Translation
from weft.tasks.translation.translation_memory import MemoryMatch

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
"""Elements that end a sentence. All others stay inside of it."""

DEEPEST = 100
"""Inline elements that may be inside one another."""

Kind = Literal["text", "open", "close", "void", "other"]

TOKEN = re.compile(
    r"""(?P<other><!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[!?][^>]*(?:>|\Z))"""
    r"""|<(?P<slash>/?)(?P<name>[A-Za-z][^\s/>"'<]*+)""",
    re.DOTALL,
)
QUOTE_OR_END = re.compile("[\"'>]")
ATTRIBUTE = re.compile(r"""(?<![^\s"'>/=])([^\s"'>/=]++)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
CUE_CODE = re.compile(r"(\{\\[^{}]*\}|<\d[\d:.]*>)")
"""Codes in subtitles: positions and styles such as {\\an8}, and times inside a cue."""

ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{0,31});|\ufffc")
READABLE = set("&<>\"'’‘“”«»…–—-.,;:!?()/")
"""Punctuation that the model reads as text if it comes as entities. Entities of other symbols and spaces are opaque spans."""


class Document:
    """A text in which `segments` are to be translated. Everything else stays as it is.

    write: how text is written, for example with escapes.
    """

    def __init__(self, write: Callable[[str], str] = str) -> None:
        self.segments: list[Segment] = []
        self._parts: list[str | Callable[[Translation], str] | None] = []
        self._write = write

    def keep(self, text: str) -> None:
        """Adds text that stays."""
        self._parts.append(text)

    def keep_described(self, text: str, describe: Callable[[Translation], str], content: Sequence[Token]) -> None:
        """Adds tokens, as `add` does, and text before them: `describe` of their translation, `text` if there is none."""
        place, before = len(self._parts), len(self.segments)
        self.keep(text)
        self.add(content)
        if len(self.segments) > before:
            self._parts[place] = describe

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
        written, number = [], 0
        for part in self._parts:
            if part is None:
                written.append(self._filled(answers[number]))
                number += 1
            else:
                written.append(part if isinstance(part, str) else part(answers[number]))
        return "".join(written)

    def _filled(self, answer: Translation) -> str:
        runs = answer.runs or [(answer.text, False)]
        return "".join(text if markup else self._write(text) for text, markup in runs)

    def add(self, content: Sequence[Token]) -> None:
        """Adds tokens that are translated as a whole, or kept if there are no words among them."""
        partners = find_partners(content)
        first, last = trimmed(content, partners)
        inner = make_segment(content, partners, first, last)
        if not has_words(inner.text):
            first = last = len(content)
        before, source, after = map(raw_text, (content[:first], content[first:last], content[last:]))
        if first == last:
            self.keep(before + after)
            return
        text = inner.text
        left, right = len(text) - len(text.lstrip()), len(text.rstrip())
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


def entries_document(text: str) -> Document:
    """Lines of entries of a catalog or a table. Tags in them stay; so do lines without letters.

    Nothing is escaped, since only the program that shows an entry knows whether it is markup: entities stay as they are, and a
    tag without a counterpart, such as `<file>`, is text.
    """
    document = Document()
    for part in LINE_END.split(text):
        bare = part.strip()
        content = _complete_tags(bare)
        segment = Segment(part)
        if any(token.kind != "text" for token in content):
            segment = replace(make_segment(content, find_partners(content), 0, len(content)), raw=bare)
        if not any(map(str.isalpha, segment.text)):
            document.keep(part)
        elif not segment.raw:
            document.translate(segment)
        else:
            before, _, after = part.partition(bare)
            document.keep(before)
            document.translate(segment)
            document.keep(after)
    return document


def _complete_tags(text: str) -> list[Token]:
    """The tokens of a text. Tags without a counterpart and comments are text, and entities are not."""
    found = list(tokens(text))
    content = list[Token]()
    for token, partner in zip(found, find_partners(found), strict=True):
        if token.kind == "void" or partner is not None:
            content.append(token)
        elif token.kind == "open" and token.name in VOID:
            content.append(replace(token, kind="void"))
        else:
            pieces = re.split(f"({ENTITY.pattern})", token.raw)
            content += [Token("other" if place % 2 else "text", piece) for place, piece in enumerate(pieces) if piece]
    return join_elements(content, _stays)


def html_document(text: str) -> Document:
    """HTML. The text of a block element is one segment; inline elements stay inside it.

    Comments, code, scripts and elements with translate="no" or the class notranslate stay as they are.
    """
    document = Document(lambda written: escape(written, quote=False))
    waiting: list[Token] = []
    for token in join_elements(list(tokens(text, RAW, VOID)), _stays):
        if token.name in BLOCK:
            document.add(waiting)
            document.keep(token.raw)
            waiting = []
        else:
            waiting.append(token)
    document.add(waiting)
    return document


def _stays(token: Token) -> bool:
    """Whether the element of a tag is not to be translated."""
    marked = token.attributes.get("translate", "").lower() == "no" or "notranslate" in token.attributes.get("class", "").split()
    return marked or token.name in KEPT


def srt_document(text: str) -> Document:
    """Subtitles in SubRip format. The text of a cue is one segment, with its line breaks and tags.

    After a blank line, text belongs to the cue before it, as players read it.
    """
    return _subtitles(text, Document(), webvtt=False)


def vtt_document(text: str) -> Document:
    """Subtitles in WebVTT format. Notes, styles and regions, which are text after a blank line, stay as they are."""
    return _subtitles(text, Document(lambda written: escape(written, quote=False)), webvtt=True)


def _subtitles(text: str, document: Document, *, webvtt: bool) -> Document:
    """The cues of subtitles, read by hand because everything else must stay as it is.

    pysubs2 reads the same cues, but not where they are: it does not keep positions, comments, identifiers, codes and line ends.
    """
    cue = list[Token]()
    for line, role in cue_lines(text.splitlines(keepends=True), webvtt=webvtt):
        if role == "text":
            content = line.splitlines()[0]
            for place, part in enumerate(CUE_CODE.split(content)):
                cue += [Token("other", part)] if place % 2 else tokens(part)
            cue.append(Token("other", line[len(content) :]))
            continue
        document.add(cue)
        document.keep(line)
        cue = []
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
    at, ends = 0, _TagEnds(text)
    while match := TOKEN.search(text, at):
        if match.start() > at:
            yield Token("text", text[at : match.start()])
        name = (match["name"] or "").lower()
        end = ends.find(match.end()) if name else None
        if end is None:  # markup that is no tag, or a tag that never ends
            at = match.end() if match["other"] else text.find(">", match.end()) + 1 or len(text)
            yield Token("other", text[match.start() : at])
            continue
        at, attributes = end, text[match.end() : end - 1]
        if match["slash"]:
            yield Token("close", text[match.start() : at], name)
            continue
        closed = name in void or attributes.endswith("/")
        yield Token("void" if closed else "open", text[match.start() : at], name, _attributes(attributes))
        if name in raw and not closed:
            closing = re.compile(rf"</{re.escape(name)}(?=[\s/>])", re.IGNORECASE).search(text, at)
            stop = len(text) if closing is None else closing.start()
            if stop > at:
                yield Token("other", text[at:stop])
            at = stop
    if at < len(text):
        yield Token("text", text[at:])


class _TagEnds:
    """Finds the ends of tags, `>` outside of quotation marks. No part of the text is read twice, even if tags never end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.known: dict[int, int | None] = {}

    def find(self, at: int) -> int | None:
        """The place after the tag whose attributes begin at `at`; None if it never ends."""
        passed: list[int] = []
        end: int | None = None
        while match := QUOTE_OR_END.search(self.text, at):
            if match.start() in self.known:
                end = self.known[match.start()]
                break
            passed.append(match.start())
            if match[0] == ">":
                end = match.end()
                break
            at = self.text.find(match[0], match.end()) + 1
            if not at:
                break
        self.known |= dict.fromkeys(passed, end)
        return end


def _attributes(text: str) -> dict[str, str]:
    return {match[1].lower(): unescape(match[2] or match[3] or match[4] or "") for match in ATTRIBUTE.finditer(text)}


@dataclass(frozen=True)
class Segment:
    """A text to translate as a whole, with the markup in it. See `MarkupSpan`.

    raw: the text with its markup, if that can be written as it is and is what a translation memory has
    """

    text: str
    marks: tuple[MarkupSpan, ...] = ()
    raw: str = ""

    def recalled(self, find: Callable[[str], MemoryMatch | None]) -> Segment:
        """A plain text instead if a memory has it with its markup; else the segment itself."""
        match = find(self.raw) if self.raw else None
        return Segment(self.raw) if match is not None and match.exact else self


def raw_text(content: Iterable[Token]) -> str:
    """The text that tokens were read from."""
    return "".join(token.raw for token in content)


def find_partners(content: Sequence[Token]) -> list[int | None]:
    """The place of the counterpart of each tag, among tags that are properly nested; None for all other tokens."""
    partners: list[int | None] = [None] * len(content)
    stack: list[int] = []
    opened = Counter[str]()
    for place, token in enumerate(content):
        if token.kind == "open":
            stack.append(place)
            opened[token.name] += 1
        elif token.kind == "close" and opened[token.name]:
            name = ""
            while name != token.name:
                match = stack.pop()
                name = content[match].name
                opened[name] -= 1
            partners[match], partners[place] = place, match
    return partners


def join_elements(content: Sequence[Token], joins: Callable[[Token], bool]) -> list[Token]:
    """The tokens, with each element whose opening tag `joins` as a single token."""
    partners = find_partners(content)
    joined: list[Token] = []
    at = 0
    while at < len(content):
        token, partner = content[at], partners[at]
        if token.kind == "open" and partner is not None and joins(token):
            joined.append(replace(token, kind="other", raw=raw_text(content[at : partner + 1])))
            at = partner
        else:
            joined.append(token)
        at += 1
    return joined


def trimmed(content: Sequence[Token], partners: Sequence[int | None]) -> tuple[int, int]:
    """The range of tokens that has to be translated: without tags, white space and elements around all of the text."""
    # The number of texts before each place: equal numbers mean that there is none in between.
    texts = list(accumulate((token.kind == "text" and not token.raw.isspace() for token in content), initial=0))
    first, last = 0, len(content)
    while first < last:
        begin, end = partners[first], partners[last - 1]
        if begin is None and texts[first] == texts[first + 1]:
            first += 1
        elif end is None and texts[last - 1] == texts[last]:
            last -= 1
        elif begin == last - 1:
            first, last = first + 1, last - 1
        elif begin is not None and texts[first] == texts[begin]:
            first = begin + 1  # an element without text before the first word
        elif end is not None and texts[end] == texts[last]:
            last = end
        else:
            break
    return first, last


def make_segment(content: Sequence[Token], partners: Sequence[int | None], first: int, last: int) -> Segment:
    """The segment of the tokens [first, last)."""
    text, opened = _SegmentText(), dict[int, int]()
    for place in range(first, last):
        token, partner, depth = content[place], partners[place], len(opened)
        if token.kind == "text":
            text.read(token.raw, depth)
        elif partner is None and token.kind in ("open", "close"):
            sides = ("", token.raw) if token.kind == "close" else (token.raw, "")
            text.marks.append(MarkupSpan(text.length, text.length, *sides, kind="unpaired", depth=depth))
        elif partner is None:
            text.add_opaque(token.raw, token.raw, depth)
        elif partner > place:
            if depth == DEEPEST:
                raise DataError(f"more than {DEEPEST} inline elements are inside one another; remove some of these tags")
            opened[place] = len(text.marks)
            text.marks.append(MarkupSpan(text.length, text.length, token.raw, depth=depth))
        else:
            number = opened.pop(partner)
            text.marks[number] = replace(text.marks[number], end=text.length, close=token.raw)
    return Segment("".join(text.parts), tuple(text.marks))


class _SegmentText:
    """The text of a segment as it grows, with its markup."""

    def __init__(self) -> None:
        self.parts, self.marks, self.length = [""], list[MarkupSpan](), 0

    def read(self, raw: str, depth: int) -> None:
        """Adds text: white space is collapsed, and entities are decoded or, if they are symbols, kept as opaque spans."""
        at = 0
        for match in ENTITY.finditer(raw):
            self._add_spaced(raw[at : match.start()])
            at, letter = match.end(), unescape(match[0])
            if letter.isalnum() or set(letter) <= READABLE:
                self._add(letter)
            else:
                self.add_opaque(match[0], letter, depth)
        self._add_spaced(raw[at:])

    def add_opaque(self, raw: str, written: str, depth: int) -> None:
        """Adds something that is not text, for which `written` stands on the page."""
        read_as = " " if written.isspace() else ""
        self.marks.append(MarkupSpan(self.length, self.length + 1, raw, kind="opaque", read_as=read_as, depth=depth))
        self._add(OBJECT)

    def _add_spaced(self, raw: str) -> None:
        """Adds text with runs of white space as one space."""
        spaced = re.sub(r"\s+", " ", raw)
        self._add(spaced.lstrip() if self.parts[-1].endswith(" ") else spaced)

    def _add(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.length += len(text)
