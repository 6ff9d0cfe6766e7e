"""Carries tags and other marks of a source into its translation, by the alignment between their words.

Every mark appears once. Elements that are nested in the source are nested in the translation, and no element is cut in two.
Words are counted as units (`weft.tasks.translation.attention_alignment.units`). Shapes: T target units · S source units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.token_spelling import is_unspaced

Span = tuple[int, int]
Run = tuple[str, bool]
"""A part of a translation, and whether it is markup."""

HOLE = "\ufffc"
"""Stands in a text for content that is not text, such as an image."""

BRIDGE = 2
"""An element may take in up to this many words between two of its own."""

CLOSING = set(".,;:!?…%)]}»”’。，、；：？！）」』")
OPENING = set("([{«“‘„¿¡（「『")


@dataclass(frozen=True)
class MarkupSpan:
    """Something in a source text that its translation must have as well, at characters [start, end) of the text.

    pair: an element around these characters, from `open` to `close` · held: these characters stand for `open`, which the model
    does not read; it reads `seen` instead · loose: a tag without its counterpart, in `open` or `close`; they keep their order.
    literal: `open` is text, not markup · depth: the number of elements around it; marks come in the order of their beginnings.
    """

    start: int
    end: int
    open: str
    close: str = ""
    kind: Literal["pair", "held", "loose"] = "pair"
    seen: str = ""
    literal: bool = False
    depth: int = 0


class MarkupTag(NamedTuple):
    """A tag to write. closes: whether white space comes after it rather than before it."""

    text: str
    closes: bool = False


@dataclass(eq=False)
class _Node:
    """A mark with the marks inside it. own: its source units that the model has read."""

    mark: MarkupSpan
    own: list[int] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)
    place: Span = (0, 0)


@dataclass(frozen=True)
class MarkupProjection:
    """A source with its units, a target with its units, and the weights [T, S] between them; held units have weight 0."""

    source: str
    source_units: Sequence[Span]
    target: str
    target_units: Sequence[Span]
    weights: NDArray[np.float32]

    def runs(self, marks: Sequence[MarkupSpan], literals: Sequence[MarkupSpan] = ()) -> list[Run]:
        """The translation with all marks; `literals` are held marks that were found in the text."""
        held = {mark.start for mark in (*marks, *literals) if mark.kind == "held"}
        read = [k for k, (start, _) in enumerate(self.source_units) if start not in held]
        nodes = _tree(marks, [(k, *self.source_units[k]) for k in read])
        for literal in literals:
            _insert(nodes, literal)
        best = self.weights.argmax(1) if self.weights.size else np.zeros(len(self.target_units), np.int64)
        return _Writer(self).write(list(self._stream(nodes, 0, len(self.target_units), best, read)))

    def _stream(
        self, nodes: Sequence[_Node], low: int, high: int, best: NDArray[np.int64], around: Sequence[int]
    ) -> Iterator[int | MarkupTag | MarkupSpan]:
        """Target units [low, high) with the marks among them. around: the source units of the element that they are in."""
        self._place(nodes, low, high, best, around)
        at = low
        # At one place, marks without words come before an element with words.
        for node in sorted(nodes, key=lambda node: (node.place[0], node.place[1] > node.place[0])):
            begin, end = node.place
            yield from range(at, begin)
            if node.mark.kind == "pair":
                yield MarkupTag(node.mark.open)
                yield from self._stream(node.children, begin, end, best, node.own)
                yield MarkupTag(node.mark.close, closes=True)
            elif node.mark.kind == "loose":
                yield MarkupTag(node.mark.open or node.mark.close, closes=bool(node.mark.close))
            else:
                yield node.mark
            at = max(at, end)
        yield from range(at, high)

    def _place(self, nodes: Sequence[_Node], low: int, high: int, best: NDArray[np.int64], around: Sequence[int]) -> None:
        """Finds target units [low, high) for every node. The places of two nodes do not overlap."""
        owner = {unit: node for node in nodes for unit in node.own}
        placed: list[_Node] = []
        words = [node for node in nodes if node.own]
        for node in words:
            runs = _bridged([owner.get(int(best[j])) for j in range(low, high)], node)
            if runs:
                begin, end = max(runs, key=lambda run: (run[1] - run[0], -run[0]))
                node.place = (low + begin, low + end)
                placed.append(node)
        for node in (node for node in words if node not in placed):
            free = [j for j in range(low, high) if not any(a <= j < b for a, b in (other.place for other in placed))]
            if free:
                j = max(free, key=lambda j: (float(self.weights[j, node.own].max()), -j))
                node.place = (j, j + 1)
                placed.append(node)
        points = [node for node in nodes if node not in placed]
        for node in points:
            j = self._point(node.mark, low, high, around)
            inside = next((other.place for other in placed if other.place[0] < j < other.place[1]), None)
            j = j if inside is None else min(inside, key=lambda edge: abs(edge - j))
            node.place = (j, j)
        loose = [node for node in points if node.mark.kind == "loose"]
        for node, place in zip(loose, sorted(node.place for node in loose), strict=True):
            node.place = place

    def _point(self, mark: MarkupSpan, low: int, high: int, around: Sequence[int]) -> int:
        """The place of a mark without words: next to the word that it is next to in the source."""
        before = [k for k in around if self.source_units[k][1] <= mark.start]
        after = [k for k in around if self.source_units[k][0] >= mark.end]
        if not before or not after or low == high:
            return low if not before else high
        glued = self.source_units[before[-1]][1] == mark.start and self.source_units[after[0]][0] != mark.end
        left, right = (low + int(self.weights[low:high, k].argmax()) for k in (before[-1], after[0]))
        if abs(left - right) == 1:
            return max(left, right)
        return left + 1 if glued else right


class _Writer:
    """Writes units and marks as text: white space as in the translation, and around held marks as in the source."""

    def __init__(self, projection: MarkupProjection) -> None:
        self.source, self.target, self.units = projection.source, projection.target, projection.target_units

    def write(self, stream: Sequence[int | MarkupTag | MarkupSpan]) -> list[Run]:
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
        start, end = self.units[unit]
        return self.target[start:end]

    def _space(self, left: int | MarkupSpan | None, right: int | MarkupSpan) -> str:
        """The white space between two units or held marks."""
        if left is None:
            return ""
        if isinstance(left, int):
            if isinstance(right, int):
                return self.target[self.units[left][1] : self.units[right][0]]
            return _beside(self.source[: right.start][-1:], self._text(left)[-1], self._gap(left, left + 1), OPENING)
        following = self.source[left.end : left.end + 1]
        if isinstance(right, int):
            return _beside(following, self._text(right)[0], self._gap(right - 1, right), CLOSING)
        return " " if following.isspace() or self.source[: right.start][-1:].isspace() else ""

    def _gap(self, left: int, right: int) -> str:
        """The white space between two neighbouring units of the translation."""
        if left < 0 or right >= len(self.units):
            return ""
        return self.target[self.units[left][1] : self.units[right][0]]


def _beside(neighbour: str, unit: str, gap: str, closed: set[str]) -> str:
    """The white space between a held mark and a unit of the translation.

    neighbour: the character next to the mark in the source · unit: the character of the unit next to it · gap: the white space
    in the translation where the mark is put in · closed: marks that need no space.
    """
    if unit in closed and not gap:
        return ""
    if neighbour.isspace():
        return " "
    # A mark next to a comma, or at an end of the text, must not grow together with a word.
    grows = unit.isalnum() and not neighbour.isalnum() and not is_unspaced(unit)
    return (gap or " ") if grows and neighbour != HOLE else "" if neighbour else gap


def _tree(marks: Sequence[MarkupSpan], read: Sequence[tuple[int, int, int]]) -> list[_Node]:
    """The marks as a forest. read: number, start and end of the source units that the model has read."""
    roots: list[_Node] = []
    path: list[_Node] = []
    for mark in marks:
        del path[mark.depth :]
        node = _Node(mark, _own(mark, read))
        (path[-1].children if path else roots).append(node)
        path.append(node)
    return roots


def _own(mark: MarkupSpan, read: Sequence[tuple[int, int, int]]) -> list[int]:
    return [k for k, start, end in read if mark.kind == "pair" and start < mark.end and end > mark.start]


def _insert(nodes: list[_Node], literal: MarkupSpan) -> None:
    """Puts a literal into the innermost element around it."""
    for node in nodes:
        if node.mark.kind == "pair" and node.mark.start <= literal.start and literal.end <= node.mark.end:
            _insert(node.children, literal)
            return
    before = sum(node.mark.start <= literal.start for node in nodes)
    nodes.insert(before, _Node(literal))


def _bridged(owners: Sequence[_Node | None], node: _Node) -> list[Span]:
    """The runs of units that belong to a node, with short gaps that belong to no other node."""
    runs: list[Span] = []
    for j, each in enumerate(owners):
        if each is node:
            gap = owners[runs[-1][1] : j] if runs else []
            if runs and len(gap) <= BRIDGE and not any(gap):
                runs[-1] = (runs[-1][0], j + 1)
            else:
                runs.append((j, j + 1))
    return runs


def _merged(runs: Sequence[Run]) -> list[Run]:
    """The runs without empty ones, neighbours of one kind joined."""
    merged: list[Run] = []
    for text, markup in runs:
        if text and merged and merged[-1][1] == markup:
            merged[-1] = (merged[-1][0] + text, markup)
        elif text:
            merged.append((text, markup))
    return merged


def unchanged(text: str, marks: Sequence[MarkupSpan]) -> list[Run]:
    """A text with all its marks, not translated."""

    def runs(nodes: Sequence[_Node], start: int, end: int) -> Iterator[Run]:
        for node in nodes:
            yield text[start : node.mark.start], False
            yield node.mark.open, not node.mark.literal
            yield from runs(node.children, node.mark.start, node.mark.end) if node.mark.kind == "pair" else ()
            yield node.mark.close, True
            start = node.mark.end
        yield text[start:end], False

    return _merged(list(runs(_tree(marks, []), 0, len(text))))


def visible(text: str, marks: Sequence[MarkupSpan]) -> str:
    """The text that the model reads: without held marks, and without the white space that they leave behind."""
    held = sorted((mark for mark in marks if mark.kind == "held"), key=lambda mark: mark.start)
    kept, at = "", 0
    for mark in held:
        kept += text[at : mark.start]
        at = mark.end
        if mark.seen:
            kept += mark.seen
        elif kept[-1:].isspace() and (not text[at:] or text[at].isspace() or text[at] in CLOSING):
            kept = kept.rstrip()
    return (kept + text[at:]).strip() if held else text
