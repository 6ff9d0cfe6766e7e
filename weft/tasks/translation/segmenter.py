"""Segments: cuts lines into sentences, and sentences that are too long into parts, and joins their translations."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from weft.data.batch import EOS
from weft.data.copy_vocabulary import CopyIds
from weft.data.sentence_splitting import Sentence, SentenceSplitter, join_texts, split
from weft.data.tokenizers import Tokenizer
from weft.decoding.hypotheses import Hypothesis, RefinementPass
from weft.decoding.predictor import BatchItem, Prediction, Weights, seed_of
from weft.decoding.search_methods import Search
from weft.errors import DataError
from weft.tasks.translation.glossary import NO_TERMS, Terms
from weft.tasks.translation.translation_memory import MemoryMatch

Encodes = Tokenizer | CopyIds
Run = tuple[str, bool]
"""A part of a translation, and whether it is markup."""

CELLS = 1 << 22
"""The most weights per layer that the attention of several segments is joined to; `parts` has the weights in any case."""


def split_long(line: str, tokenizer: Encodes, room: int) -> list[list[int]]:
    """The ids of a line in parts of at most `room` ids, cut between words where possible."""
    words = [part for word in line.split() for part in _fit(word, tokenizer, room)]
    sizes = [len(ids) for ids in tokenizer.encode_batch(words)]
    # In some vocabularies a space is a separate token.
    space = -(-(len(tokenizer.encode(" ".join(words))) - sum(sizes)) // max(1, len(words) - 1))
    parts: list[list[str]] = []
    filled = room
    for word, size in zip(words, sizes, strict=True):
        filled += max(0, space) + size
        if filled > room:
            parts.append([])
            filled = size
        parts[-1].append(word)
    return [ids for part in parts for ids in _checked(part, tokenizer, room)]


def _checked(words: list[str], tokenizer: Encodes, room: int) -> list[list[int]]:
    """The ids of some words; in halves if they are too many, since a word may have more tokens in context than alone."""
    ids = tokenizer.encode(" ".join(words))
    if len(ids) <= room or len(words) < 2:
        return [ids[start : start + room] for start in range(0, len(ids), max(1, room))]
    middle = len(words) // 2
    return _checked(words[:middle], tokenizer, room) + _checked(words[middle:], tokenizer, room)


def _fit(word: str, tokenizer: Encodes, room: int) -> list[str]:
    """A word, halved until its parts fit."""
    if len(word) < 2 or len(tokenizer.encode(word)) <= room:
        return [word]
    middle = len(word) // 2
    return _fit(word[:middle], tokenizer, room) + _fit(word[middle:], tokenizer, room)


@dataclass(eq=False)
class TextSegment(BatchItem):
    """A line, a sentence of it, or a part of a sentence that is too long. Its ids end with EOS.

    prefix: ids of the forced prefix · words: unknown words of the source, if the model can copy them; the first has the first
    id beyond the vocabulary, and so on · text: the text of the ids · gap: the white space before it in its line · masked:
    whether protected parts are left out of the text · unplaced: required terms
    that have no place in its translation, and forbidden ones that the model has no other word for · context: the numbers of
    ids at the beginning of the source and of the prefix that belong to another text and its translation, and are not shown.
    """

    prefix: list[int]
    words: list[str] = field(default_factory=list)
    terms: Terms = NO_TERMS
    text: str = ""
    gap: str = ""
    masked: bool = False
    context: tuple[int, int] = (0, 0)
    unplaced: list[str] = field(default_factory=list)

    def put_before(self, ids: Sequence[int], tags: int, start: Sequence[int] = ()) -> None:
        """Puts another text before the source, behind its tags, and `start`, its translation, behind the prefix."""
        self.ids = [*self.ids[:tags], *ids, *self.ids[tags:]]
        self.prefix = [*self.prefix, *start]
        self.context = tags + len(ids), len(self.prefix) if start else 0

    @property
    def seed(self) -> int:
        """The seed of the sentence for sampling."""
        return seed_of(array("q", [len(self.ids), *self.ids, *self.prefix]).tobytes())


class Segmenter:
    """Turns lines into segments.

    room: the most source tokens of a segment, without EOS · most: the target positions of the model, if they are limited ·
    copies: whether the model can copy unknown words · split: splits lines into sentences; None: lines are not split · tags: ids
    that begin each segment.
    """

    def __init__(
        self,
        source: Tokenizer,
        target: Tokenizer,
        *,
        room: int,
        most: int | None,
        copies: bool,
        split: SentenceSplitter | None,
        warn: Callable[[str], None],
        tags: Sequence[int] = (),
    ) -> None:
        self.source, self.target, self.room, self.most = source, target, max(1, room - len(tags)), most
        self.tags = tags
        self.copies, self.split, self.warn = copies, split, warn

    def __call__(
        self, lines: Sequence[str], prefixes: Sequence[str], numbers: Sequence[int], *, whole: bool = False
    ) -> list[list[TextSegment]]:
        """The segments of each line: none if it is blank. Messages call a line by its number. Segments begin with the tags.

        whole: do not split lines into sentences.
        """
        starts = self.target.encode_batch(list(prefixes)) if any(prefixes) else [[] for _ in prefixes]
        sentences = [
            [] if not line or line.isspace() else [Sentence(line)] if whole else self.sentences(line, prefix)
            for line, prefix in zip(lines, prefixes, strict=True)
        ]
        encoded = iter(self.source.encode_batch([each.text for group in sentences for each in group]))
        groups: list[list[TextSegment]] = []
        for number, group, prefix, start in zip(numbers, sentences, prefixes, starts, strict=True):
            if self.most is not None and len(start) + 1 >= self.most:
                raise DataError(
                    f"line {number}: its prefix has {len(start):,} tokens, and the model has {self.most:,} positions"
                )
            segments: list[TextSegment] = []
            for each in group:
                ids = next(encoded)
                added = self._segments(each, ids, [] if segments else start, "" if segments else prefix)
                if len(ids) > self.room:
                    where = f"line {number}" if len(group) == 1 else f"line {number}: a sentence"
                    count = f"{len(ids):,} tokens, more than {self.room:,}"
                    self.warn(f"{where} has {count}: translated in {len(added)} parts")
                segments += added
            groups.append(segments)
        return groups

    def sentences(self, line: str, prefix: str = "") -> list[Sentence]:
        """The sentences of a line. As many as the prefix has form the first one, which the prefix begins."""
        if self.split is None:
            return [Sentence(line)]
        return self.split(line, whole=len(split(prefix)) if prefix else 1)

    def _segments(self, sentence: Sentence, ids: list[int], start: list[int], prefix: str) -> list[TextSegment]:
        """The segments of a sentence: usually one, several if it is too long. `start` are the ids of its prefix."""
        numbering = CopyIds(self.source) if self.copies else None
        parts = [ids if numbering is None else numbering.number(sentence.text, ids)] if ids else []
        if len(ids) > self.room:
            parts = split_long(sentence.text, numbering or self.source, self.room)
        segments = [TextSegment([*part, EOS], [] if k else start, text=sentence.text) for k, part in enumerate(parts)]
        if numbering is not None:
            segments = [self._copying(segment, numbering, prefix) for segment in segments]
        for k, segment in enumerate(segments):
            segment.gap = " " if k else sentence.gap
            if len(segments) > 1:
                segment.text = self.source.named(segment.words).decode(segment.ids[:-1])
            segment.ids[:0] = self.tags
        return segments

    def _copying(self, segment: TextSegment, numbering: CopyIds, start: str) -> TextSegment:
        """The segment with ids for its own unknown words, which the prefix `start` may use too."""
        ids, words = numbering.alone(segment.ids)
        return TextSegment(ids, CopyIds(self.target, words).find(start, segment.prefix), words, text=segment.text)


@dataclass
class Translation(Prediction):
    """A translation. Its score is that of the search, such as the log-probability divided by lengthᵅ, or of the reranker.

    parts: the translations of its sentences, if there are several · source: the text that was read · runs: the text in parts
    that are markup and parts that are not, if the source has markup · passes: see `Hypothesis` · unplaced: required
    terms for which alignment found no place, so that the text may contain their usual translation too, and forbidden terms for
    which the model has no other word · match: the entry of a translation memory that is most similar to the source ·
    from_memory: whether the text is that of the match, not of the model · quality: the estimate of a run of the task quality,
    a `weft.tasks.quality.predictor.Quality`.
    """

    parts: list[Translation] = field(default_factory=list, repr=False)
    source: str = ""
    runs: list[Run] = field(default_factory=list, repr=False)
    passes: list[RefinementPass] = field(default_factory=list, repr=False)
    unplaced: list[str] = field(default_factory=list, repr=False)
    match: MemoryMatch | None = field(default=None, repr=False)
    from_memory: bool = field(default=False, repr=False)
    quality: Any = field(default=None, repr=False)

    def document(self) -> dict[str, Any]:
        """Plain data, for JSON. It has the translations of several sentences one by one as well."""
        plain = super().document()
        if self.parts:
            plain["sentences"] = [part.document() for part in self.parts]
        return {**plain, **self.memory_document(), **self.confidence_document()}

    def confidence_document(self) -> dict[str, Any]:
        """The part of the document that says how good the translation and its words are, if that is estimated."""
        if self.quality is None:
            return {}
        estimate = self.quality.document()
        return {"confidence": estimate["confidence"], **({"words": estimate["words"]} if "words" in estimate else {})}

    def memory_document(self) -> dict[str, Any]:
        """The part of the document that says what a translation memory has: nothing, this text, or a similar one."""
        if self.match is None:
            return {}
        if self.from_memory:
            return {"memory": "exact"}
        match = {"score": round(self.match.score, 4), "source": self.match.source, "target": self.match.target}
        return {"memory": "fuzzy", "match": match}


def detokenize(source: Tokenizer, target: Tokenizer, segment: TextSegment, hypothesis: Hypothesis) -> Translation:
    """A hypothesis for a segment as text, after the forced prefix."""
    before, hidden = segment.context
    ids = [*segment.prefix[hidden:], *hypothesis.tokens]
    source, target = source.named(segment.words), target.named(segment.words)
    text = target.decode([token for token in ids if token != EOS])
    names = target.tokens(ids), source.tokens(segment.ids[before:])
    translation = Translation(text, hypothesis.score, ids, *names, source=segment.text, passes=hypothesis.passes)
    translation.unplaced = list(segment.unplaced)
    return translation


def best_first(scores: Sequence[Sequence[float]], count: int) -> list[tuple[int, ...]]:
    """The `count` best ways to choose one candidate per segment, by the sum of their scores; each list is best first."""
    # A choice is written as the places where it does not take the best, backwards, so that equal losses keep one order.
    queue: list[tuple[float, tuple[tuple[int, int], ...]]] = [(0.0, ())]
    seen: set[tuple[tuple[int, int], ...]] = {()}
    choices: list[tuple[int, ...]] = []
    while queue and len(choices) < count:
        loss, changes = heappop(queue)
        numbers = {-place: number for place, number in changes}
        choices.append(tuple(numbers.get(place, 0) for place in range(len(scores))))
        for place in range(len(scores) if len(choices) < count else 0):
            number = numbers.get(place, 0)
            following = tuple(sorted({**dict(changes), -place: number + 1}.items(), reverse=True))
            if number + 1 < len(scores[place]) and following not in seen:
                seen.add(following)
                heappush(queue, (loss + scores[place][number] - scores[place][number + 1], following))
    return choices


def join_segments(segments: Sequence[TextSegment], parts: Sequence[Translation], search: Search | None) -> Translation:
    """The translation of a line from those of its segments.

    Its score is that of one text: the log-probabilities are added, and divided by the total lengthᵅ, where the search divides.
    So a search whose scores are log-probabilities, such as greedy and CTC, adds them. A reranker's scores (search: None) are
    averaged.
    """
    if len(parts) < 2:
        return parts[0] if parts else Translation("", 0.0)
    whole = Translation(join_texts([part.text for part in parts], [each.gap for each in segments]), 0.0, parts=list(parts))
    for part in parts:
        whole.unplaced += part.unplaced
        whole.ids += part.ids
        whole.tokens += part.tokens
        whole.source_tokens += part.source_tokens
    if search is None:
        whole.score = sum(part.score for part in parts) / len(parts)
    else:
        lengths = [max(1, len(part.ids) - len(segment.prefix)) for segment, part in zip(segments, parts, strict=True)]
        logp = sum(part.score * search.divisor(length) for part, length in zip(parts, lengths, strict=True))
        whole.score = logp / search.divisor(sum(lengths))
    whole.uses = dict(parts[0].uses)
    for name in parts[0].attention:
        layers = [part.attention[name] for part in parts if name in part.attention]
        if len(layers) == len(parts) and np.prod(np.sum([layer.shape[1:] for layer in layers], 0)) <= CELLS:
            whole.attention[name] = _diagonal(layers)
    return whole


def _diagonal(layers: Sequence[Weights]) -> Weights:
    """[H, rows, columns]: the weights of several segments along the diagonal. No segment attends to another."""
    rows, columns = np.cumsum([layer.shape[1:] for layer in layers], 0).T
    joined = np.zeros((layers[0].shape[0], rows[-1], columns[-1]), np.float32)
    for layer, row, column in zip(layers, rows, columns, strict=True):
        joined[:, row - layer.shape[1] : row, column - layer.shape[2] : column] = layer
    return joined
