"""A stack decoder for phrase-based translation (Koehn et al. 2003): translations grow from left to right, phrase by phrase.

A stack holds the hypotheses of a text that have translated equally many of its words, in any order. The best of each stack are
extended by the phrases that are still to be translated. Many texts are decoded together: a stack is a set of arrays.

Shapes: B texts · L words of the longest · H hypotheses · C candidates, hypotheses that are not pruned yet · E phrases of the
table · P words of the longest one · n order of the language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from weft.data.phrases.ngram_language_model import NOTHING, Floats, Ids, NgramModel
from weft.data.phrases.phrase_table import PhraseTable

TOGETHER = 64
"""Texts that are decoded together."""
LONGEST = 60
"""Words that are decoded at once, fewer than the bits of an integer; a longer text is translated in parts."""


@dataclass(frozen=True)
class DecodingWeights:
    """The weights of the features of a translation, and the size of the search. The defaults of weights are those of Moses.

    language: of the language model · translation: of the table, shared by its features · distortion: of the words that are
    jumped over · words: of each word that is written · phrases: of each phrase · reach: the longest jump · beam: hypotheses of
    a stack · choices: translations of a phrase · considered: candidates of a stack that the language model scores.
    """

    language: float = 0.5
    translation: float = 0.8
    distortion: float = 0.3
    words: float = 1.0
    phrases: float = 0.2
    reach: int = 4
    beam: int = 10
    choices: int = 6
    considered: int = 50


@dataclass(frozen=True)
class _Arrays:
    """Arrays with one row per hypothesis."""

    def take(self, rows: Ids) -> Self:
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


@dataclass(frozen=True)
class _Hypotheses(_Arrays):
    """Partial translations.

    parent: the hypothesis that was extended, among all of the batch · entry: its last phrase among the entries · text: its
    number · covered: bits of the words that are translated · end: where the last phrase ends · before: [H, n − 1] the last
    words, nearest first · future: the estimated score of the words not yet translated.
    """

    parent: Ids
    entry: Ids
    text: Ids
    covered: Ids
    end: Ids
    before: Ids
    score: Floats
    future: Floats


@dataclass(frozen=True)
class _Entries:
    """The translations of all phrases, one after the other.

    places: first and last translation of a phrase · written: their words · words: [E, P] the same as ids, `NOTHING` behind
    them · scores: by table and penalties · estimates: the same with the language model, without the words before.
    """

    places: Mapping[str, tuple[int, int]]
    written: Sequence[str]
    words: Ids
    scores: Floats
    estimates: Floats


@dataclass(frozen=True)
class _Spans:
    """The phrases of some texts that the table knows, sorted by text; `first` and `last` are their entries.

    begins: [B + 1] the first span of each text · lengths: [B] words of each text · future: [B, L + 1, L + 1] the estimated
    score of the words from i to j.
    """

    start: Ids
    end: Ids
    first: Ids
    last: Ids
    begins: Ids
    lengths: Ids
    future: Floats


class StackDecoder:
    """Translates texts by a phrase table and a language model.

    ids: the words of the language model; others are `unknown`, and `ending` is what follows a text.
    """

    def __init__(
        self, table: PhraseTable, model: NgramModel, ids: Mapping[str, int], unknown: int, ending: int, weights: DecodingWeights
    ) -> None:
        self.model, self.ids, self.unknown, self.ending, self.weights = model, ids, unknown, ending, weights
        self._longest = max((phrase.count(" ") + 1 for phrase in table.entries), default=1)
        self._entries = self._compiled({phrase: table.entries[phrase] for phrase in table.entries})

    def translate(self, texts: Sequence[Sequence[str]]) -> list[list[str]]:
        """The best translation of each text. Words that the table does not know stay as they are."""
        unknown = {word: [(word, ())] for text in texts for word in text if word not in self._entries.places}
        entries = _joined(self._entries, self._compiled(unknown)) if unknown else self._entries
        parts = [(row, text[at : at + LONGEST]) for row, text in enumerate(texts) for at in range(0, len(text), LONGEST)]
        order = sorted(range(len(parts)), key=lambda part: len(parts[part][1]))
        found: dict[int, list[str]] = {}
        for begin in range(0, len(order), TOGETHER):
            batch = order[begin : begin + TOGETHER]
            found |= zip(batch, self._search([parts[part][1] for part in batch], entries), strict=True)
        whole: list[list[str]] = [[] for _ in texts]
        for part, (row, _) in enumerate(parts):
            whole[row] += found[part]
        return whole

    def _compiled(self, entries: Mapping[str, Sequence[tuple[str, Sequence[float]]]]) -> _Entries:
        """The best translations of each phrase, and what they cost."""
        flat = [(phrase, written, features) for phrase, some in entries.items() for written, features in some]
        owner = np.repeat(np.arange(len(entries)), [len(some) for some in entries.values()])
        split = [written.split(" ") for _, written, _ in flat]
        words = np.full((len(flat), max(map(len, split), default=1)), NOTHING)
        for row, each in enumerate(split):
            words[row, : len(each)] = [self.ids.get(word, self.unknown) for word in each]
        weights, lengths = self.weights, (words != NOTHING).sum(1)
        table = np.array([sum(features) / max(1, len(features)) for _, _, features in flat])
        scores = weights.translation * table + weights.words * lengths - weights.phrases
        start = np.full((len(flat), self.model.order - 1), NOTHING)
        estimates = scores + weights.language * self._follow(start, words)[0]
        best = _best(owner, estimates, weights.choices)
        ends = np.searchsorted(owner[best], np.arange(len(entries) + 1)).tolist()
        places = dict(zip(entries, pairwise(ends), strict=True))
        return _Entries(places, [flat[row][1] for row in best], words[best], scores[best], estimates[best])

    def _follow(self, before: Ids, words: Ids) -> tuple[Floats, Ids]:
        """(log p [N] of words [N, P] after the words before [N, n − 1], the last words then)."""
        scores = np.zeros(len(words))
        for column in words.T:
            rows = np.flatnonzero(column != NOTHING)
            scores[rows] += self.model.log_probs(before[rows], column[rows])
            if before.shape[1]:
                moved = np.concatenate([column[rows, None], before[rows, :-1]], 1)
                before = before.copy()
                before[rows] = moved
        return scores, before

    def _search(self, texts: Sequence[Sequence[str]], entries: _Entries) -> list[list[str]]:
        spans = self._spans(texts, entries)
        none, count = np.full(len(texts), NOTHING), len(texts)
        before = np.full((count, self.model.order - 1), self.model.start)
        zeros, longest = np.zeros(count, np.int64), int(spans.lengths.max())
        whole = spans.future[np.arange(count), 0, spans.lengths]
        stack = _Hypotheses(none, none, np.arange(count), zeros, zeros, before, np.zeros(count), whole)
        pending: list[list[_Hypotheses]] = [[] for _ in range(longest + 1)]
        stacks, size, final = [stack], count, none.copy()
        for covered in range(longest + 1):
            if covered and pending[covered]:
                stack = self._pruned(_Hypotheses.join(pending[covered]), entries, spans.lengths == covered)
                pending[covered] = []
                stacks.append(stack)
                size += len(stack.score)
                ended = np.flatnonzero(spans.lengths[stack.text] == covered)[::-1]
                final[stack.text[ended]] = ended + size - len(stack.score)  # the best one is first, so it is written last
            for length, candidates in self._extended(stack, size - len(stack.score), spans, entries):
                pending[covered + length].append(candidates)
        every = _Hypotheses.join(stacks)
        return [_words(every, row, entries) for row in final.tolist()]

    def _spans(self, texts: Sequence[Sequence[str]], entries: _Entries) -> _Spans:
        """The phrases of texts, and the estimated scores of all their parts (the best way to cut each into phrases)."""
        lengths = np.array([len(text) for text in texts])
        longest = int(lengths.max())
        future = np.full((len(texts), longest + 1, longest + 1), -np.inf)
        future[:, range(longest + 1), range(longest + 1)] = 0
        rows: list[tuple[int, int, int, int]] = []
        begins = [0]
        for number, text in enumerate(texts):
            for start in range(len(text)):
                for end in range(start + 1, min(len(text), start + self._longest) + 1):
                    place = entries.places.get(" ".join(text[start:end]))
                    if place is not None and place[0] < place[1]:
                        rows.append((start, end, *place))
                        future[number, start, end] = entries.estimates[slice(*place)].max()
            begins.append(len(rows))
        for length in range(2, longest + 1):
            for start in range(longest - length + 1):
                end = start + length
                cuts = future[:, start, start + 1 : end] + future[:, start + 1 : end, end]
                future[:, start, end] = np.maximum(future[:, start, end], cuts.max(1))
        starts, ends, first, last = np.array(rows).T
        return _Spans(starts, ends, first, last, np.array(begins), lengths, future)

    def _extended(self, stack: _Hypotheses, first: int, spans: _Spans, entries: _Entries) -> list[tuple[int, _Hypotheses]]:
        """Candidates that translate one more phrase, by its length. first: the number of the first hypothesis of the stack."""
        counts = (spans.begins[1:] - spans.begins[:-1])[stack.text]
        owner, span = _ranges(spans.begins[stack.text], counts)
        start, end = spans.start[span], spans.end[span]
        bits = (1 << end) - (1 << start)
        open_gap = stack.covered[owner] + 1  # its lowest bit that was not there before is the first gap
        gap = np.log2(open_gap & ~stack.covered[owner]).astype(np.int64) if len(owner) else owner
        jump, reach = np.abs(start - stack.end[owner]), self.weights.reach
        possible = (stack.covered[owner] & bits == 0) & (jump <= reach) & ((start == gap) | (end - gap <= reach))
        owner, span, bits, jump = owner[possible], span[possible], bits[possible], jump[possible]
        text, covered = stack.text[owner], stack.covered[owner] | bits
        future = _future(spans, text, covered)
        which, entry = _ranges(spans.first[span], spans.last[span] - spans.first[span])
        owner, end = owner[which], spans.end[span][which]
        score = stack.score[owner] + entries.scores[entry] - self.weights.distortion * jump[which]
        made = _Hypotheses(owner + first, entry, text[which], covered[which], end, stack.before[owner], score, future[which])
        length, found = end - spans.start[span][which], []
        estimate = made.score + made.future + (entries.estimates - entries.scores)[entry]
        for each in np.unique(length).tolist():
            rows = np.flatnonzero(length == each)
            best = _best(made.text[rows], estimate[rows], self.weights.considered)
            found.append((each, made.take(rows[best])))
        return found

    def _pruned(self, made: _Hypotheses, entries: _Entries, ends: NDArray[np.bool_]) -> _Hypotheses:
        """The best candidates of each text, scored by the language model and recombined. ends: [B] texts that are complete."""
        estimate = made.score + made.future + (entries.estimates - entries.scores)[made.entry]
        made = made.take(_best(made.text, estimate, self.weights.considered))
        scores, before = self._follow(made.before, entries.words[made.entry])
        complete = np.flatnonzero(ends[made.text])
        scores[complete] += self.model.log_probs(before[complete], np.full(len(complete), self.ending))
        score = made.score + self.weights.language * scores
        made = replace(made, before=before, score=score)
        same = (*before.T, made.end, made.covered, made.text)
        order = np.lexsort((-score, *same))
        fresh = np.ones(len(order), bool)
        fresh[1:] = np.any([each[order][1:] != each[order][:-1] for each in same], 0)
        made = made.take(order[fresh])  # hypotheses that no later phrase can tell apart: only the best one
        return made.take(_best(made.text, made.score + made.future, self.weights.beam))


def _joined(one: _Entries, other: _Entries) -> _Entries:
    """The entries of both."""
    count = len(one.written)
    moved = {phrase: (first + count, last + count) for phrase, (first, last) in other.places.items()}
    wide = max(one.words.shape[1], other.words.shape[1])
    words = [np.pad(each.words, ((0, 0), (0, wide - each.words.shape[1])), constant_values=NOTHING) for each in (one, other)]
    return _Entries(
        {**one.places, **moved},
        [*one.written, *other.written],
        np.concatenate(words),
        np.concatenate([one.scores, other.scores]),
        np.concatenate([one.estimates, other.estimates]),
    )


def _best(groups: Ids, scores: Floats, count: int) -> Ids:
    """The rows of the highest scores of each group, `count` at most, best first."""
    order = np.lexsort((-scores, groups))
    rank = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
    return order[rank < count]


def _ranges(begins: Ids, counts: Ids) -> tuple[Ids, Ids]:
    """The numbers from each begin on, `counts` of them, and the row that each belongs to: (rows, numbers)."""
    rows = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
    return rows, begins[rows] + within


def _future(spans: _Spans, text: Ids, covered: Ids) -> Floats:
    """The estimated scores of the gaps of some hypotheses."""
    total, begin = np.zeros(len(text)), np.zeros(len(text), np.int64)
    for place in range(int(spans.lengths.max())):
        done = np.flatnonzero(covered >> place & 1)
        total[done] += spans.future[text[done], begin[done], place]
        begin[done] = place + 1
    return total + spans.future[text, begin, np.maximum(begin, spans.lengths[text])]


def _words(every: _Hypotheses, row: int, entries: _Entries) -> list[str]:
    """The words of a hypothesis."""
    phrases: list[str] = []
    while every.parent[row] != NOTHING:
        phrases.append(entries.written[every.entry[row]])
        row = int(every.parent[row])
    return [word for phrase in reversed(phrases) for word in phrase.split(" ")]
