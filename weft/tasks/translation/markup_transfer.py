"""Carries the marks of a text into its translation, and what it has to repeat, such as placeholders, URLs and numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from weft.data.tokenizers import Tokenizer
from weft.inference.teacher_forcing import teacher_force
from weft.models.base import Model
from weft.tasks.translation import attention_alignment as alignment
from weft.tasks.translation.documents.html import has_words
from weft.tasks.translation.markup_projection import MarkupProjection, MarkupSpan, Span, unchanged, visible
from weft.tasks.translation.segmenter import TextSegment, Translation, TranslationInput

Kind = Literal["placeholders", "urls", "emails", "numbers"]

PATTERNS: dict[Kind, re.Pattern[str]] = {
    "urls": re.compile(
        r"(?<![\w.@])(?:[a-z][a-z0-9+.-]{1,15}://|www\.)[\w\-.~:/?#\[\]@!$&'()*+,;=%]+", re.ASCII | re.IGNORECASE
    ),
    "emails": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII),
    "placeholders": re.compile(
        r"\{\{[^{}\n]*\}\}|[$%#]\{[^{}\n]+\}|\{[\w.:!\[\]-]*\}"
        r"|(?<![\d%])%(?:\(\w+\)|\d+\$)?[-+0#]*\d*(?:\.\d+)?(?:[hl]{0,2}[diufeEgGxXocsr]|@)(?![a-z])"
    ),
    "numbers": re.compile(r"(?<!\w)\d+(?:[.,:/]\d+)*(?!\w)"),
}
"""The first that matches at a place counts."""

HINTS: dict[Kind, re.Pattern[str]] = {
    "urls": re.compile(r"://|ww\.", re.IGNORECASE),
    "emails": re.compile("@"),
    "placeholders": re.compile("[{%]"),
    "numbers": re.compile(r"\d"),
}
"""What a text must have to be searched for each kind. Most texts have none of it."""

AUTO: tuple[Kind, ...] = ("urls", "emails", "placeholders")
TRAILING = ".,;:!?'\""
"""Marks at the end of a URL that belong to the sentence."""


def kinds(setting: str | Sequence[str]) -> tuple[Kind, ...]:
    """The kinds that decode.protect names."""
    if isinstance(setting, str):
        return AUTO if setting == "auto" else ()
    return tuple(kind for kind in PATTERNS if kind in setting)


def hint(wanted: Sequence[Kind]) -> re.Pattern[str] | None:
    """Matches any text that may have something of these kinds."""
    return re.compile("|".join(HINTS[kind].pattern for kind in wanted), re.IGNORECASE) if wanted else None


def find(text: str, wanted: Sequence[Kind], taken: Collection[tuple[int, int]] = ()) -> list[MarkupSpan]:
    """What is to be repeated in a text, in order, without overlaps and outside of the ranges `taken`."""
    found: list[MarkupSpan] = []
    used = list(taken)
    for kind in wanted:
        if not HINTS[kind].search(text):
            continue
        for start, end in _matches(text, kind):
            if not any(start < b and a < end for a, b in used):
                used.append((start, end))
                found.append(MarkupSpan(start, end, text[start:end], kind="held", literal=True))
    return sorted(found, key=lambda mark: mark.start)


def repeated(marks: Sequence[MarkupSpan], wanted: Sequence[Kind], translation: str) -> bool:
    """Whether a translation has all of these, each as often as its source, and none of its own."""
    return Counter(mark.open for mark in marks) == Counter(mark.open for mark in find(translation, wanted))


def _matches(text: str, kind: Kind) -> Iterator[tuple[int, int]]:
    for match in PATTERNS[kind].finditer(text):
        start, end = match.span()
        if kind == "urls":
            while end > start and (text[end - 1] in TRAILING or _unopened(text[start:end])):
                end -= 1
        if end > start:
            yield start, end


def _unopened(url: str) -> bool:
    """Whether the URL ends in a bracket that it does not open, as in (see https://example.org/)."""
    opening = {")": "(", "]": "["}.get(url[-1])
    return opening is not None and url.count(url[-1]) > url.count(opening)


@dataclass(frozen=True)
class MarkedUpText:
    """A text with its marks and what was found in it that has to be repeated (`literals`)."""

    text: str
    marks: tuple[MarkupSpan, ...] = ()
    literals: tuple[MarkupSpan, ...] = ()

    @property
    def seen(self) -> str:
        """What the model reads: the text without what is not text."""
        return visible(self.text, self.marks)

    @property
    def masked(self) -> str:
        """What the model reads if it must not see what is to be repeated."""
        return visible(self.text, (*self.marks, *self.literals))


def marked(text: str, marks: tuple[MarkupSpan, ...], wanted: Sequence[Kind]) -> MarkedUpText:
    """Finds what is protected in a text. A literal that a tag divides becomes several."""
    if not wanted:
        return MarkedUpText(text, marks)
    taken = [(mark.start, mark.end) for mark in marks if mark.kind == "held"]
    edges = {edge for mark in marks for edge in (mark.start, mark.end)}
    literals: list[MarkupSpan] = []
    for found in find(text, wanted, taken):
        cuts = [found.start, *sorted(edge for edge in edges if found.start < edge < found.end), found.end]
        literals += [replace(found, start=a, end=b, open=text[a:b]) for a, b in pairwise(cuts)]
    return MarkedUpText(text, marks, tuple(literals))


def untranslated(text: str, marks: Sequence[MarkupSpan]) -> Translation:
    """The answer to a text in which there is nothing to translate: the text itself."""
    runs = unchanged(text, marks)
    return Translation("".join(text for text, _ in runs), 0.0, runs=runs if marks else [])


class MarkupTransfer:
    """Puts marks, and what decode.protect names, into translations, by the cross-attention of the model."""

    def __init__(self, model: Model, source: Tokenizer, target: Tokenizer, protect: str | Sequence[str]) -> None:
        self.model, self.source, self.target = model, source, target
        self.kinds = kinds(protect)
        self._hint = hint(self.kinds)

    def marked(self, given: TranslationInput) -> MarkedUpText:
        return marked(given.text, given.marks, self.kinds)

    def readings(self, given: TranslationInput) -> list[tuple[str, bool]]:
        """The texts that the model reads for an input: as it is and, if something in it is protected, masked (True)."""
        if not given.marks and not (self._hint and self._hint.search(given.text)):
            return [(given.text, False)]
        text = self.marked(given)
        if not text.literals:
            return [(text.seen, False)]
        masked = text.masked
        return [(text.seen, False), (masked, True)] if has_words(masked) else []

    def keeps(self, text: MarkedUpText, translation: Translation) -> bool:
        """Whether a translation of a text that was not masked repeats what is protected in it."""
        return not text.literals or repeated(text.literals, self.kinds, translation.text)

    def carry(
        self, given: MarkedUpText, segments: Sequence[TextSegment], whole: Translation, masked: bool, prefix: str
    ) -> Translation:
        """The translation with all marks of its source. If it was masked, the model must not invent what is protected."""
        kinds = self.kinds if masked else ()
        literals = list(given.literals) if kinds else []
        own: list[Span] = []
        if kinds:
            # What the prefix says is said already; anything else of these kinds is the model's invention.
            said = Counter(mark.open for mark in find(prefix, kinds))
            literals = [mark for mark in literals if not _take(said, mark.open)]
            own = [(mark.start, mark.end) for mark in find(whole.text, kinds) if mark.start >= len(prefix)]
        held = [(mark.start, mark.end) for mark in (*given.marks, *given.literals * bool(kinds)) if mark.kind == "held"]
        spans = alignment.units(given.text, held)
        targets = [unit for unit in alignment.units(whole.text, own) if unit not in own]
        weights = self._weights(given.text, spans, held, segments, whole, targets)
        runs = MarkupProjection(given.text, spans, whole.text, targets, weights).runs(given.marks, literals)
        return replace(whole, text="".join(text for text, _ in runs), runs=runs)

    def _weights(
        self,
        text: str,
        spans: Sequence[Span],
        held: Sequence[Span],
        segments: Sequence[TextSegment],
        whole: Translation,
        targets: Sequence[Span],
    ) -> alignment.Weights:
        """[target units, source units]: the alignment of a translation. Only units of the same segment are aligned."""
        parts = whole.parts or [whole]
        columns = np.array(alignment.unit_character_ranges(text, spans, held)).reshape(-1, 2)
        before = np.cumsum([0, *(not letter.isspace() for letter in whole.text)])
        rows = np.array([before[list(span)] for span in targets], np.float64).reshape(-1, 2)
        columns *= sum(alignment.count_characters(segment.text) for segment in segments) / max(1.0, columns.max(initial=0))
        weights = np.zeros((len(targets), len(spans)), np.float32)
        below = right = 0.0
        for segment, part in zip(segments, parts, strict=True):
            block = self._block(segment, part)
            end = below + alignment.count_characters(part.text), right + alignment.count_characters(segment.text)
            mine = (rows[:, 0] >= below) & (rows[:, 0] < end[0])
            read = (columns[:, 0] < end[1]) & (columns[:, 1] > right + 1e-6) & (columns[:, 1] > columns[:, 0])
            names = [
                [side[a:b] for (a, b), chosen in zip(each, which) if chosen]
                for side, each, which in ((whole.text, targets, mine), (text, spans, read))
            ]
            joined = alignment.spelling_and_position_similarity(*names)
            if block is not None and joined.size:
                tokens = (
                    alignment.target_character_ranges(self.target.named(segment.words), part.ids),
                    alignment.source_character_ranges(self.source.named(segment.words), segment.ids, segment.text),
                )
                joined += alignment.between_units(
                    block, tokens, ((rows[mine] - below).tolist(), (columns[read] - right).tolist())
                )
            weights[np.ix_(mine, read)] = joined
            below, right = end
        return weights

    def _block(self, segment: TextSegment, part: Translation) -> alignment.Weights | None:
        forced = teacher_force(self.model, segment.ids, part.ids)
        return alignment.cross_weights(forced, len(part.ids), len(segment.ids))


def _take(said: Counter[str], text: str) -> bool:
    """Whether `text` is among those said, which it then leaves."""
    if said[text] < 1:
        return False
    said[text] -= 1
    return True
