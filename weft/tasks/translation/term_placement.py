"""Puts required terms where a translation already says the same, by the cross-attention of the model.

A search that has to write a term somewhere often writes it beside the usual translation, so that the text says the same twice.
Here the free translation comes first. The words that it has for a source term are found by alignment, and the term takes their
place; the rest of the text stays as it is.

Shapes: T target units · S source units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch

from weft.data.batch import EOS, UNK, Layout, Source, pad
from weft.data.tokenizers import Tokenizer
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.length_and_coverage_penalty import length_penalty
from weft.decoding.noisy_decoding import ranked
from weft.decoding.search_methods import Search
from weft.losses.log_likelihood import text_log_likelihoods
from weft.models.base import Model
from weft.tasks.translation import attention_alignment as alignment
from weft.tasks.translation.attention_alignment import Span, Weights
from weft.tasks.translation.glossary import Terms, whole_word
from weft.tasks.translation.segmenter import TextSegment, Translation, detokenize

SURE = 0.15
"""The least share of the attention of some words that must go to a source term, for the words to be its translation."""

DOUBT = 3.0
"""The most by which the log-probability of a text without forbidden terms may be below that of the free translation. If it is
further below, the model knows no other word for the same."""

STEM = 4
"""The least number of letters that two forms of a word have in common at their beginning."""


@dataclass
class PlacedTerms:
    """A translation with its terms in place. unplaced: required terms that have no place, since nothing aligns with them."""

    text: str
    unplaced: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AlignedPair:
    """A source and its translation: their units, and the weights [T, S] between them."""

    source: str
    source_units: Sequence[Span]
    target: str
    target_units: Sequence[Span]
    weights: Weights

    def place(self, terms: Terms, begin: int = 0) -> PlacedTerms:
        """The translation with all terms. Its first `begin` characters stay as they are."""
        taken: list[tuple[Span, str]] = [
            (match.span(), term) for term in terms.use for match in whole_word(term, any_case=False).finditer(self.target)
        ]
        unplaced = []
        for term in terms.unmet(self.target):
            spans = [span for source, use in terms.sources if use == term for span in self._spans(source)]
            new = [place for span in spans if (place := self._find(span, term, begin, [each for each, _ in taken]))]
            # Two occurrences of a source term may be translated by the same words.
            taken += [(place, term) for place in dict.fromkeys(new)]
            if not new:
                unplaced.append(term)
        text = self.target
        for (start, end), term in sorted(taken, reverse=True):
            text = text[:start] + term + text[end:]
        return PlacedTerms(text, unplaced)

    def words(self, span: Span) -> str:
        """The source words that a range of the translation is aligned with, as they are in the source; "" if there are none."""
        rows = [row for row, unit in enumerate(self.target_units) if _overlap(unit, span)]
        best = [int(self.weights[row].argmax()) for row in rows if self.weights.shape[1]]
        named = [self.source_units[column] for column in best if self._is_word(self.source, self.source_units[column])]
        return self.source[min(named)[0] : max(named)[1]] if named else ""

    def without(self, terms: Sequence[str]) -> str:
        """The translation with the words of the source in place of these terms."""
        spans = [match.span() for term in terms for match in whole_word(term, any_case=False).finditer(self.target)]
        text = self.target
        for start, end in sorted(spans, reverse=True):
            text = text[:start] + (self.words((start, end)) or text[start:end]) + text[end:]
        return text

    def _spans(self, term: str) -> list[Span]:
        return [match.span() for match in whole_word(term).finditer(self.source)]

    def _find(self, span: Span, term: str, begin: int, taken: Sequence[Span]) -> Span | None:
        """The range of the translation that says what this range of the source says; None if none does."""
        columns = [column for column, unit in enumerate(self.source_units) if _overlap(unit, span)]
        free = [
            row
            for row, unit in enumerate(self.target_units)
            if unit[0] >= begin and self._is_word(self.target, unit) and not any(_overlap(unit, other) for other in taken)
        ]
        if not columns or not free:
            return None
        shares = self.weights[:, columns].sum(1) / np.maximum(self.weights.sum(1), 1e-9)
        alike = [row for row in free if self._same_stem(row, term)]
        rows = alike or [row for row in free if int(self.weights[row].argmax()) in columns] or free
        runs = _runs(rows)
        run = max(runs, key=lambda run: float(shares[run[0] : run[1]].max()))
        if not alike and float(shares[run[0] : run[1]].max()) < SURE:
            return None
        return self.target_units[run[0]][0], self.target_units[run[1] - 1][1]

    def _same_stem(self, row: int, term: str) -> bool:
        """Whether a word of the translation is probably another form of a word of the term."""
        start, end = self.target_units[row]
        word = self.target[start:end].casefold()
        return any(_common(word, each) >= max(STEM, 0.6 * len(word)) for each in term.casefold().split())

    @staticmethod
    def _is_word(text: str, span: Span) -> bool:
        return any(map(str.isalnum, text[span[0] : span[1]]))


class TermPlacer:
    """Puts the terms of segments into their free translations, and scores the results as the search would."""

    def __init__(self, model: Model, source: Tokenizer, target: Tokenizer, search: Search) -> None:
        self.model, self.source, self.target, self.search = model, source, target, search

    def place(self, segments: Sequence[TextSegment], hypotheses: Sequence[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """For each segment its hypotheses with all terms, best first; none if a term has no place in the best of them."""
        flat = [(segment, each) for segment, some in zip(segments, hypotheses, strict=True) for each in some]
        texts = [detokenize(self.source, self.target, segment, each) for segment, each in flat]
        pairs = align(self.model, self.source, self.target, [segment for segment, _ in flat], texts) if flat else []
        placed = [self._placed(segment, text, pair) for (segment, _), text, pair in zip(flat, texts, pairs, strict=True)]
        changed = [row for row, ids in enumerate(placed) if ids is not None and ids != flat[row][1].tokens]
        scores = dict(zip(changed, self._scores([(flat[row][0], placed[row] or []) for row in changed]), strict=True))
        rows = iter(range(len(flat)))
        results: list[list[Hypothesis]] = []
        for segment, some in zip(segments, hypotheses, strict=True):
            own = [next(rows) for _ in some]
            if own and placed[own[0]] is not None:
                kept = [(flat[row][1], ids, scores.get(row)) for row in own if (ids := placed[row]) is not None]
                results.append(ranked([each if new is None else Hypothesis(new, ids) for each, ids, new in kept]))
            else:
                segment.unplaced = segment.terms.unmet(texts[own[0]].text) if own else []
                results.append([])
        return results

    def check_avoided(
        self, segments: Sequence[TextSegment], free: Sequence[list[Hypothesis]], results: list[list[Hypothesis]]
    ) -> None:
        """Sees to it that a forbidden term does not become another fact, in `results`, which do without the terms.

        If the model has no other word for a term, which the probability of its text says, the words of the source take the
        place of the term, unless they contain it; in any case, `unplaced` of the segment says so.
        """
        for segment, some, own in zip(segments, free, results, strict=True):
            if not some or not own:
                continue
            text = detokenize(self.source, self.target, segment, some[0])
            said = [term for term in segment.terms.avoid if whole_word(term, any_case=False).search(text.text)]
            if not said or self._total(some[0]) - self._total(own[0]) <= DOUBT:
                continue
            segment.unplaced = said
            (pair,) = align(self.model, self.source, self.target, [segment], [text])
            if pair is None or segment.prefix or EOS not in some[0].tokens:
                continue
            ids = [*self.target.encode(pair.without(said)), EOS]
            written = self.target.decode(ids[:-1])
            if UNK not in ids and not any(whole_word(term, any_case=False).search(written) for term in segment.terms.avoid):
                own.insert(0, Hypothesis(self._scores([(segment, ids)])[0], ids))

    def _total(self, hypothesis: Hypothesis) -> float:
        """The log-probability of a hypothesis."""
        size = torch.tensor(len(hypothesis.tokens))
        penalty, offset = self.search.length_penalty, self.search.length_offset
        return hypothesis.score * float(length_penalty(size, torch.zeros(()), penalty, offset))

    def _placed(self, segment: TextSegment, text: Translation, pair: AlignedPair | None) -> list[int] | None:
        """The tokens of a translation with all terms in place, without the prefix; None if that is not possible."""
        tokens = text.ids[len(segment.prefix) :]
        if not segment.terms.unmet(text.text):
            return tokens
        # After a forced prefix, the tokens of a changed text could not be told from those of the prefix.
        if pair is None or segment.prefix or EOS not in tokens:
            return None
        placed = pair.place(segment.terms)
        ids = [*self.target.encode(placed.text), EOS]
        written = self.target.decode(ids[:-1])
        most = self.model.max_target
        avoided = any(whole_word(term, any_case=False).search(written) for term in segment.terms.avoid)
        wrong = placed.unplaced or segment.terms.unmet(written) or avoided
        return None if wrong or UNK in ids or (most is not None and len(ids) >= most) else ids

    def _scores(self, texts: Sequence[tuple[TextSegment, list[int]]]) -> list[float]:
        """The score of each text: its log-probability, normalised by length as in the search."""
        if not texts:
            return []
        lengths, device = [len(segment.ids) for segment, _ in texts], self.model.device
        block = pad([segment.ids for segment, _ in texts]).to(device)
        encoded = self.model.encode(Source(block, Layout.padded(lengths).to(device)))
        totals = text_log_likelihoods(self.model.decoder, encoded, [ids for _, ids in texts]).sum(1)
        sizes = torch.tensor([len(ids) for _, ids in texts], device=device)
        penalty, offset = self.search.length_penalty, self.search.length_offset
        scores: list[float] = (totals / length_penalty(sizes, totals, penalty, offset)).tolist()
        return scores


def align(
    model: Model, source: Tokenizer, target: Tokenizer, segments: Sequence[TextSegment], texts: Sequence[Translation]
) -> list[AlignedPair | None]:
    """Each segment aligned with its translation; None if the model shows no attention to its tokens."""
    attended = alignment.attention_of(model, [each.ids for each in segments], [each.ids for each in texts])
    if attended is None:
        return [None] * len(segments)
    pairs = zip(segments, texts, attended.cpu().numpy(), strict=True)
    return [_aligned(source, target, segment, text, weights) for segment, text, weights in pairs]


def _aligned(source: Tokenizer, target: Tokenizer, segment: TextSegment, text: Translation, weights: Weights) -> AlignedPair:
    sides = (text.text, segment.text)
    units = [alignment.units(each) for each in sides]
    tokens = (
        alignment.target_character_ranges(target.named(segment.words), text.ids),
        alignment.source_character_ranges(source.named(segment.words), segment.ids, segment.text),
    )
    ranges = [alignment.unit_character_ranges(side, spans) for side, spans in zip(sides, units, strict=True)]
    between = alignment.between_units(weights[: len(text.ids), : len(segment.ids)], tokens, ranges)
    words = [[side[start:end] for start, end in spans] for side, spans in zip(sides, units, strict=True)]
    between = between + alignment.spelling_and_position_similarity(*words)
    return AlignedPair(segment.text, units[1], text.text, units[0], between)


def _common(one: str, other: str) -> int:
    """The number of letters that two words have in common at their beginning."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _runs(rows: Sequence[int]) -> list[Span]:
    """Runs of neighbouring numbers, as ranges."""
    runs: list[Span] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1] = (runs[-1][0], row + 1)
        else:
            runs.append((row, row + 1))
    return runs
