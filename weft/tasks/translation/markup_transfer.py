"""Carries the marks of a text, and what is protected in it, into its translation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from weft.data.tokenizers import Tokenizer
from weft.inference.teacher_forcing import teacher_force
from weft.models.base import Model
from weft.tasks.translation import attention_alignment
from weft.tasks.translation.markup_projection import MarkupProjection, MarkupSpan, Span, unchanged, visible
from weft.tasks.translation.protected_spans import Kind, find
from weft.tasks.translation.segmenter import TextSegment, Translation


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


@dataclass(frozen=True)
class MarkupTransfer:
    """Puts marks into translations, by the cross-attention of the model."""

    model: Model
    source: Tokenizer
    target: Tokenizer

    def carry(
        self, given: MarkedUpText, pieces: Sequence[TextSegment], whole: Translation, kinds: Sequence[Kind], prefix: str
    ) -> Translation:
        """The translation with all marks of its source. `kinds`: if literals were left out, what the model must not invent."""
        literals = list(given.literals) if kinds else []
        own: list[Span] = []
        if kinds:
            # What the prefix says is said already; anything else of these kinds is the model's invention.
            said = Counter(mark.open for mark in find(prefix, kinds))
            literals = [mark for mark in literals if not _take(said, mark.open)]
            own = [(mark.start, mark.end) for mark in find(whole.text, kinds) if mark.start >= len(prefix)]
        held = [(mark.start, mark.end) for mark in (*given.marks, *given.literals * bool(kinds)) if mark.kind == "held"]
        spans = attention_alignment.units(given.text, held)
        targets = [unit for unit in attention_alignment.units(whole.text, own) if unit not in own]
        weights = self._weights(given.text, spans, held, pieces, whole, targets)
        runs = MarkupProjection(given.text, spans, whole.text, targets, weights).runs(given.marks, literals)
        return replace(whole, text="".join(text for text, _ in runs), runs=runs)

    def _weights(
        self,
        text: str,
        spans: Sequence[Span],
        held: Sequence[Span],
        pieces: Sequence[TextSegment],
        whole: Translation,
        targets: Sequence[Span],
    ) -> attention_alignment.Weights:
        """[target units, source units]: the alignment of a translation. Only units of the same piece are aligned."""
        parts = whole.parts or [whole]
        columns = np.array(attention_alignment.unit_character_ranges(text, spans, held)).reshape(-1, 2)
        before = np.cumsum([0, *(not letter.isspace() for letter in whole.text)])
        rows = np.array([before[list(span)] for span in targets], np.float64).reshape(-1, 2)
        columns *= sum(attention_alignment.count_characters(piece.text) for piece in pieces) / max(1.0, columns.max(initial=0))
        weights = np.zeros((len(targets), len(spans)), np.float32)
        below = right = 0.0
        for piece, part in zip(pieces, parts, strict=True):
            block = self._block(piece, part)
            end = (
                below + attention_alignment.count_characters(part.text),
                right + attention_alignment.count_characters(piece.text),
            )
            mine = (rows[:, 0] >= below) & (rows[:, 0] < end[0])
            read = (columns[:, 0] < end[1]) & (columns[:, 1] > right + 1e-6) & (columns[:, 1] > columns[:, 0])
            names = [
                [side[a:b] for (a, b), chosen in zip(each, which) if chosen]
                for side, each, which in ((whole.text, targets, mine), (text, spans, read))
            ]
            joined = attention_alignment.spelling_and_position_similarity(*names)
            if block is not None and joined.size:
                tokens = (
                    attention_alignment.target_character_ranges(self.target.named(piece.words), part.ids),
                    attention_alignment.source_character_ranges(self.source.named(piece.words), piece.ids, piece.text),
                )
                joined += attention_alignment.between_units(
                    block, tokens, ((rows[mine] - below).tolist(), (columns[read] - right).tolist())
                )
            weights[np.ix_(mine, read)] = joined
            below, right = end
        return weights

    def _block(self, piece: TextSegment, part: Translation) -> attention_alignment.Weights | None:
        forced = teacher_force(self.model, piece.ids, part.ids)
        return attention_alignment.cross_weights(forced, len(part.ids), len(piece.ids))


def _take(said: Counter[str], text: str) -> bool:
    """Whether `text` is among those said, which it then leaves."""
    if said[text] < 1:
        return False
    said[text] -= 1
    return True
