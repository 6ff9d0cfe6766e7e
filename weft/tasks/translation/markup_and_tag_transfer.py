"""Markup transfer: puts the tags of a text, and its protected spans, into its translation, by word alignment.

Every span of markup appears once. Elements that are nested in the source are nested in the translation, and no element is cut
in two. Words are counted as units (`attention_alignment.units`).

Shapes: T target units · S source units.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.term_automata import is_unspaced
from weft.data.tokenizers import Tokenizer
from weft.decoding.score_given_targets import teacher_force
from weft.models.base import Model
from weft.tasks.translation import attention_alignment as alignment
from weft.tasks.translation.attention_alignment import Span
from weft.tasks.translation.protected_spans import Kind, find, hint, kinds
from weft.tasks.translation.segmenter import Run, TextSegment, Translation

OBJECT = "\ufffc"
"""Stands in a text for content that is not text, such as an image."""

BRIDGE = 2
"""An element may take in up to this many words between two of its own."""

CLOSING = set(".,;:!?…%)]}»”’。，、；：？！）」』")
OPENING = set("([{«“‘„¿¡（「『")


@dataclass(frozen=True)
class MarkupSpan:
    """Something in a source text that its translation must have as well, at characters [start, end) of the text.

    element: around these characters, from `open` to `close` · opaque: these characters stand for `open`, which the model does
    not read; it reads `read_as` instead · unpaired: a tag without its counterpart, in `open` or `close`; they keep their order.
    literal: `open` is text, not markup · depth: the number of elements around it; spans come in the order of their beginnings.
    """

    start: int
    end: int
    open: str
    close: str = ""
    kind: Literal["element", "opaque", "unpaired"] = "element"
    read_as: str = ""
    literal: bool = False
    depth: int = 0


@dataclass(frozen=True)
class MarkedUpText:
    """A text with its markup, and with literals that its translation has to repeat."""

    text: str
    spans: tuple[MarkupSpan, ...] = ()
    literals: tuple[MarkupSpan, ...] = ()

    @property
    def visible(self) -> str:
        """The text that the model reads, without what is not text."""
        return visible(self.text, self.spans)

    @property
    def masked(self) -> str:
        """The text that the model reads if it must not see the literals."""
        return visible(self.text, (*self.spans, *self.literals))


def find_literals(text: str, spans: tuple[MarkupSpan, ...], kinds: Sequence[Kind]) -> MarkedUpText:
    """Finds the literals of a text that are protected. One that a tag divides becomes several."""
    taken = [(span.start, span.end) for span in spans if span.kind == "opaque"]
    edges = sorted({edge for span in spans for edge in (span.start, span.end)})
    literals: list[MarkupSpan] = []
    for start, end in find(text, kinds, taken):
        cuts = [start, *edges[bisect_right(edges, start) : bisect_left(edges, end)], end]
        literals += [MarkupSpan(a, b, text[a:b], kind="opaque", literal=True) for a, b in pairwise(cuts)]
    return MarkedUpText(text, spans, tuple(literals))


def repeated(literals: Sequence[MarkupSpan], kinds: Sequence[Kind], translation: str) -> bool:
    """Whether a translation has all literals, each as often as its source, and none of its own."""
    return Counter(each.open for each in literals) == Counter(translation[a:b] for a, b in find(translation, kinds))


class MarkupTransfer:
    """Puts markup, and what decode.protect names, into translations, by the cross-attention of the model."""

    def __init__(self, model: Model, source: Tokenizer, target: Tokenizer, protect: str | Sequence[str]) -> None:
        self.model, self.source, self.target, self.kinds = model, source, target, kinds(protect)
        self._hint = hint(self.kinds)

    def find_literals(self, text: str, spans: tuple[MarkupSpan, ...]) -> MarkedUpText:
        return find_literals(text, spans, self.kinds)

    def readings(self, text: str, spans: tuple[MarkupSpan, ...]) -> list[tuple[str, bool]]:
        """The texts that the model reads: as it is and, if something in it is protected, masked (True)."""
        if not spans and not (self._hint and self._hint.search(text)):
            return [(text, False)]
        marked = self.find_literals(text, spans)
        if not marked.literals:
            return [(marked.visible, False)]
        masked = marked.masked
        return [(marked.visible, False), (masked, True)] if has_words(masked) else []

    def keeps(self, source: MarkedUpText, translation: Translation) -> bool:
        """Whether a translation of a text that was not masked repeats its literals."""
        return not source.literals or repeated(source.literals, self.kinds, translation.text)

    def transfer(
        self, source: MarkedUpText, segments: Sequence[TextSegment], whole: Translation, masked: bool, prefix: str
    ) -> Translation:
        """The translation with all markup of its source. If that was masked, the model must not invent literals."""
        kinds = self.kinds if masked else ()
        literals = list(source.literals) if kinds else []
        invented: list[Span] = []
        if kinds:
            # Literals of the prefix are there already; anything else of these kinds is the model's invention.
            given = Counter(prefix[a:b] for a, b in find(prefix, kinds))
            literals = [span for span in literals if not _take(given, span.open)]
            invented = [(start, end) for start, end in find(whole.text, kinds) if start >= len(prefix)]
        opaque = [(each.start, each.end) for each in (*source.spans, *source.literals * bool(kinds)) if each.kind == "opaque"]
        units = alignment.units(source.text, opaque)
        new = set(invented)
        targets = [unit for unit in alignment.units(whole.text, invented) if unit not in new]
        blocks = list(self._weights(source.text, units, opaque, segments, whole, targets))
        runs = MarkupProjection(source.text, units, whole.text, targets, blocks).runs(source.spans, literals)
        return replace(whole, text="".join(text for text, _ in runs), runs=runs)

    def _weights(
        self,
        text: str,
        units: Sequence[Span],
        opaque: Sequence[Span],
        segments: Sequence[TextSegment],
        whole: Translation,
        targets: Sequence[Span],
    ) -> Iterator[WeightBlock]:
        """The alignment of a translation with its source. Only units of the same segment are aligned."""
        columns = np.array(alignment.unit_character_ranges(text, units, opaque)).reshape(-1, 2)
        before = np.cumsum([0, *(not letter.isspace() for letter in whole.text)])
        rows = before[np.array(targets, np.int64).reshape(-1, 2)].astype(np.float64)
        columns *= sum(alignment.count_characters(each.text) for each in segments) / max(1.0, columns.max(initial=0))
        below = right = 0.0
        for segment, part in zip(segments, whole.parts or [whole], strict=True):
            end = below + alignment.count_characters(part.text), right + alignment.count_characters(segment.text)
            first, last = np.searchsorted(rows[:, 0], (below, end[0]))
            near = np.arange(np.searchsorted(columns[:, 1], right + 1e-6, "right"), np.searchsorted(columns[:, 0], end[1]))
            read = near[columns[near, 1] > columns[near, 0]]
            words = [whole.text[a:b] for a, b in targets[first:last]], [text[a:b] for a, b in (units[k] for k in read)]
            joined = alignment.spelling_and_position_similarity(*words)
            forced = teacher_force(self.model, segment.ids, part.ids)
            block = alignment.cross_weights(forced, len(part.ids), len(segment.ids))
            if block is not None and joined.size:
                tokens = (
                    alignment.target_character_ranges(self.target.named(segment.words), part.ids),
                    alignment.source_character_ranges(self.source.named(segment.words), segment.ids, segment.text),
                )
                ranges = (rows[first:last] - below).tolist(), (columns[read] - right).tolist()
                joined += alignment.between_units(block, tokens, ranges)
            yield WeightBlock(int(first), read, joined)
            below, right = end


def _take(given: Counter[str], text: str) -> bool:
    """Whether `text` is among those given, which it then leaves."""
    if given[text] < 1:
        return False
    given[text] -= 1
    return True


class MarkupTag(NamedTuple):
    """A tag to write. closes: whether white space comes after it rather than before it."""

    text: str
    closes: bool = False


class WeightBlock(NamedTuple):
    """Weights [t, s] between the target units from `first` on and the source units `columns`, in increasing order."""

    first: int
    columns: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(eq=False)
class _Node:
    """A span with the spans inside it. own: its source units that the model has read."""

    span: MarkupSpan
    own: list[int] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)
    place: Span = (0, 0)


class MarkupProjection:
    """A source with its units, a target with its units, and the weights between them; weights outside of all blocks are 0."""

    def __init__(
        self,
        source: str,
        source_units: Sequence[Span],
        target: str,
        target_units: Sequence[Span],
        blocks: Sequence[WeightBlock],
    ) -> None:
        self.source, self.source_units, self.target, self.target_units = source, source_units, target, target_units
        self.best = np.zeros(len(target_units), np.int64)
        self.blocks_of: list[list[WeightBlock]] = [[] for _ in source_units]
        for block in blocks:
            for column in block.columns.tolist():
                self.blocks_of[column].append(block)
            if block.weights.size:
                chosen = block.columns[block.weights.argmax(1)]
                self.best[block.first : block.first + len(chosen)] = np.where(block.weights.any(1), chosen, 0)

    def runs(self, spans: Sequence[MarkupSpan], literals: Sequence[MarkupSpan] = ()) -> list[Run]:
        """The translation with all spans; `literals` are opaque spans that were found in the text."""
        opaque = {span.start for span in (*spans, *literals) if span.kind == "opaque"}
        read = [k for k, (start, _) in enumerate(self.source_units) if start not in opaque]
        stream: list[int | MarkupTag | MarkupSpan] = []
        self._stream(_tree(spans, literals, read, self.source_units), 0, len(self.target_units), read, stream)
        return self._write(stream)

    def _stream(
        self, nodes: list[_Node], low: int, high: int, around: Sequence[int], stream: list[int | MarkupTag | MarkupSpan]
    ) -> None:
        """Adds target units [low, high) with the spans among them. around: the source units of the element that they are in."""
        self._place(nodes, low, high, around)
        at = low
        # At one place, spans without words come before an element with words.
        for node in sorted(nodes, key=lambda node: (node.place[0], node.place[1] > node.place[0])):
            begin, end = node.place
            stream += range(at, begin)
            if node.span.kind == "element":
                stream.append(MarkupTag(node.span.open))
                self._stream(node.children, begin, end, node.own, stream)
                stream.append(MarkupTag(node.span.close, closes=True))
            elif node.span.kind == "unpaired":
                stream.append(MarkupTag(node.span.open or node.span.close, closes=bool(node.span.close)))
            else:
                stream.append(node.span)
            at = max(at, end)
        stream += range(at, high)

    def _place(self, nodes: list[_Node], low: int, high: int, around: Sequence[int]) -> None:
        """Finds target units [low, high) for every node. The places of two nodes do not overlap."""
        owner = {unit: node for node in nodes for unit in node.own}
        runs = _bridged([owner.get(unit) for unit in self.best[low:high].tolist()])
        free = np.ones(high - low, bool)
        inside: dict[int, Span] = {}
        points, waiting = list[_Node](), list[_Node]()
        for node in nodes:
            if node in runs:
                begin, end = max(runs[node], key=lambda run: (run[1] - run[0], -run[0]))
                node.place = (low + begin, low + end)
                free[begin:end] = False
                inside |= dict.fromkeys(range(low + begin + 1, low + end), node.place)
            else:
                (waiting if node.own else points).append(node)
        first = low
        for node in waiting:
            while first < high and not free[first - low]:
                first += 1
            if first == high:
                points.append(node)
                continue
            strongest = self._strongest(node.own, low, high, free)
            j = first if strongest is None else strongest
            node.place, free[j - low] = (j, j + 1), False
        for node in points:
            j = self._point(node.span, low, high, around)
            j = min(inside[j], key=lambda edge: abs(edge - j)) if j in inside else j
            node.place = (j, j)
        unpaired = [node for node in nodes if node.span.kind == "unpaired"]
        for node, place in zip(unpaired, sorted(node.place for node in unpaired), strict=True):
            node.place = place

    def _strongest(self, own: Sequence[int], low: int, high: int, free: NDArray[np.bool_] | None = None) -> int | None:
        """The first target unit in [low, high), a free one, with the largest weight of any of these source units, if any."""
        strongest, place = 0.0, None
        for block in {id(block): block for unit in own for block in self.blocks_of[unit]}.values():
            first, last = max(block.first, low), min(block.first + len(block.weights), high)
            if first < last:
                columns = slice(*np.searchsorted(block.columns, (own[0], own[-1] + 1)))
                weights = block.weights[first - block.first : last - block.first, columns].max(1)
                weights = weights if free is None else weights * free[first - low : last - low]
                if weights.max() > strongest:
                    strongest, place = float(weights.max()), first + int(weights.argmax())
        return place

    def _point(self, span: MarkupSpan, low: int, high: int, around: Sequence[int]) -> int:
        """The place of a span without words: next to the word that it is next to in the source."""
        before = bisect_right(around, span.start, key=lambda k: self.source_units[k][1])
        after = bisect_left(around, span.end, key=lambda k: self.source_units[k][0])
        if not before or after == len(around) or low == high:
            return low if not before else high
        beside = around[before - 1], around[after]
        glued = self.source_units[beside[0]][1] == span.start and self.source_units[beside[1]][0] != span.end
        left, right = (self._strongest([k], low, high) or low for k in beside)
        if abs(left - right) == 1:
            return max(left, right)
        return left + 1 if glued else right

    def _write(self, stream: Sequence[int | MarkupTag | MarkupSpan]) -> list[Run]:
        """Units and spans as text: white space as in the translation, and around opaque spans as in the source."""
        runs: list[Run] = []
        waiting: list[MarkupTag] = []
        last: int | MarkupSpan | None = None
        for item in stream:
            if isinstance(item, MarkupTag):
                waiting.append(item)
                continue
            closing = next((k for k, tag in enumerate(waiting) if not tag.closes), len(waiting))
            tags = [(tag.text, True) for tag in waiting]
            runs += [*tags[:closing], (self._space(last, item), False), *tags[closing:]]
            runs.append((item.open, not item.literal) if isinstance(item, MarkupSpan) else (self._text(item), False))
            waiting, last = [], item
        return _merged([*runs, *((tag.text, True) for tag in waiting)])

    def _text(self, unit: int) -> str:
        start, end = self.target_units[unit]
        return self.target[start:end]

    def _space(self, left: int | MarkupSpan | None, right: int | MarkupSpan) -> str:
        """The white space between two units or opaque spans."""
        if left is None:
            return ""
        before = "" if isinstance(right, int) else self.source[max(0, right.start - 1) : right.start]
        if isinstance(left, int):
            if isinstance(right, int):
                return self._gap(left, right)
            return _beside(before, self._text(left)[-1], self._gap(left, left + 1), OPENING)
        following = self.source[left.end : left.end + 1]
        if isinstance(right, int):
            return _beside(following, self._text(right)[0], self._gap(right - 1, right), CLOSING)
        return " " if following.isspace() or before.isspace() else ""

    def _gap(self, left: int, right: int) -> str:
        """The white space between two neighbouring units of the translation."""
        if left < 0 or right >= len(self.target_units):
            return ""
        return self.target[self.target_units[left][1] : self.target_units[right][0]]


def _beside(neighbour: str, unit: str, gap: str, closed: set[str]) -> str:
    """The white space between an opaque span and a unit of the translation.

    neighbour: the character next to the span in the source · unit: the character of the unit next to it · gap: the white space
    in the translation where the span is put in · closed: punctuation that needs no space.
    """
    if unit in closed and not gap:
        return ""
    if neighbour.isspace():
        return " "
    # A span next to a comma, or at an end of the text, must not grow together with a word.
    grows = unit.isalnum() and not neighbour.isalnum() and not is_unspaced(unit)
    return (gap or " ") if grows and neighbour != OBJECT else "" if neighbour else gap


def _tree(
    spans: Sequence[MarkupSpan], literals: Sequence[MarkupSpan], read: Sequence[int], units: Sequence[Span]
) -> list[_Node]:
    """Spans and literals as a forest. read: the numbers of the source units that the model has read."""
    roots: list[_Node] = []
    path: list[_Node] = []
    for span in merge(spans, literals, key=lambda span: span.start):
        if span.literal:
            while path and not (path[-1].span.kind == "element" and span.end <= path[-1].span.end):
                path.pop()
        else:
            del path[span.depth :]
        first = bisect_right(read, span.start, key=lambda k: units[k][1])
        last = bisect_left(read, span.end, key=lambda k: units[k][0])
        node = _Node(span, list(read[first:last]) if span.kind == "element" else [])
        (path[-1].children if path else roots).append(node)
        if not span.literal:
            path.append(node)
    return roots


def _bridged(owners: Sequence[_Node | None]) -> dict[_Node, list[Span]]:
    """The runs of units that belong to each node, with short gaps that belong to no other node."""
    runs: dict[_Node, list[Span]] = {}
    for j, node in enumerate(owners):
        if node is not None:
            mine = runs.setdefault(node, [])
            if mine and j - mine[-1][1] <= BRIDGE and not any(owners[mine[-1][1] : j]):
                mine[-1] = (mine[-1][0], j + 1)
            else:
                mine.append((j, j + 1))
    return runs


def _merged(runs: Iterable[Run]) -> list[Run]:
    """The runs without empty ones, neighbours of one kind joined."""
    groups = groupby((run for run in runs if run[0]), key=lambda run: run[1])
    return [("".join(text for text, _ in group), markup) for markup, group in groups]


def untranslated(text: str, spans: Sequence[MarkupSpan]) -> Translation:
    """The answer to a text in which there is nothing to translate: the text itself, with its markup."""

    def runs(nodes: Sequence[_Node], start: int, end: int) -> Iterator[Run]:
        for node in nodes:
            yield text[start : node.span.start], False
            yield node.span.open, not node.span.literal
            yield from runs(node.children, node.span.start, node.span.end) if node.span.kind == "element" else ()
            yield node.span.close, True
            start = node.span.end
        yield text[start:end], False

    merged = _merged(runs(_tree(spans, (), (), ()), 0, len(text)))
    return Translation("".join(part for part, _ in merged), 0.0, runs=merged if spans else [])


def visible(text: str, spans: Sequence[MarkupSpan]) -> str:
    """The text that the model reads: without opaque spans, and without the white space that they leave behind."""
    opaque = sorted((span for span in spans if span.kind == "opaque"), key=lambda span: span.start)
    kept, at = list[str](), 0
    for span in opaque:
        kept.append(text[at : span.start])
        at = span.end
        if span.read_as:
            kept.append(span.read_as)
        elif at == len(text) or text[at].isspace() or text[at] in CLOSING:
            last = ""
            while kept and not last:
                last = kept.pop().rstrip()
            kept.append(last)
    return "".join([*kept, text[at:]]).strip() if opaque else text


def has_words(text: str) -> bool:
    """Whether there is anything to translate."""
    return any(map(str.isalnum, text))
