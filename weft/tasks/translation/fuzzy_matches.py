"""Uses of fuzzy matches of a translation memory in decoding (decode.fuzzy): forced prefix, required terms, or prompt.

The words that a text shares with its match are found by their order. The attention of the model says which words of the match's
translation belong to them. They become the forced beginning of the translation (`prefix`), or terms that it must have
(`terms`; Bulté & Tezcan 2019 call such words matched). As a `prompt`, the match stands before the text, and its translation
before the translation, of which it is no part (Moslem et al. 2023, for language models).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, Literal

import torch

from weft.data.batch import EOS, UNK
from weft.data.tokenizers import Tokenizer
from weft.decoding.search_methods import Search
from weft.models.base import Model
from weft.tasks.translation.attention_alignment import units
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.segmenter import TextSegment, Translation
from weft.tasks.translation.term_placement import AlignedPair, align
from weft.tasks.translation.translation_input import TranslationInput
from weft.tasks.translation.translation_memory import MemoryMatch

Use = Literal["report", "prefix", "terms", "prompt"]

LEAST_WORDS, MOST_TERMS = 2, 4
"""The fewest words of a term that is taken from a match, and the most such terms."""


def usual_use(search: Search) -> Use:
    """The use of `decode.fuzzy: auto`: the one that raised BLEU and chrF, if the search accepts it; see the results page."""
    return "prefix" if "prefix" in search.accepts else "report"


class FuzzyMatches:
    """Turns the fuzzy matches of inputs into what the search can use. tags: ids that begin each source."""

    def __init__(self, model: Model, source: Tokenizer, target: Tokenizer, use: Use, *, most_source: int, tags: int) -> None:
        self.tags = tags
        self.model, self.source, self.target, self.use, self.most_source = model, source, target, use, most_source

    def applied(self, inputs: Sequence[TranslationInput]) -> Sequence[TranslationInput]:
        """The inputs with prefixes or terms of their matches. Those that have a prefix, terms or markup stay as they are."""
        places = [place for place, each in enumerate(inputs) if self._applies(each)]
        if self.use not in ("prefix", "terms") or not places:
            return inputs
        changed = list(inputs)
        matches = [match for place in places if (match := inputs[place].match) is not None]
        for place, match, pair in zip(places, matches, self._aligned(matches), strict=True):
            if pair is not None:
                kept = matched_words(inputs[place].text, match, pair)
                changed[place] = replace(inputs[place], **self._fields(kept, pair))
        return changed

    def prompt(self, given: TranslationInput, segments: list[TextSegment]) -> None:
        """Puts the match before the only segment of an input, if both fit."""
        if self.use != "prompt" or len(segments) != 1 or not self._applies(given) or given.match is None:
            return
        before, segment = self.source.encode(given.match.source), segments[0]
        start = self.target.encode(given.match.target)
        room = self.model.max_target
        if len(before) + len(segment.ids) > self.most_source or 2 * len(start) + len(segment.ids) >= (room or math.inf):
            return
        segment.put_before(before, self.tags, start)

    @staticmethod
    def _applies(each: TranslationInput) -> bool:
        fuzzy = each.match is not None and not each.match.exact
        return fuzzy and not (each.prefix or each.terms or each.marks or each.attention)

    @torch.inference_mode()
    def _aligned(self, matches: Sequence[MemoryMatch]) -> list[AlignedPair | None]:
        """The words of each match aligned with those of its translation."""
        segments = [TextSegment([*self.source.encode(each.source), EOS], [], text=each.source) for each in matches]
        texts = [Translation(each.target, 0.0, [*self.target.encode(each.target), EOS]) for each in matches]
        return align(self.model, self.source, self.target, segments, texts)

    def _fields(self, kept: Sequence[bool], pair: AlignedPair) -> dict[str, Any]:
        """The field of an input that the kept words of a match's translation become."""
        spans, text = pair.target_units, pair.target
        if self.use == "prefix":
            count = next((number for number, each in enumerate(kept) if not each), len(kept))
            prefix = text[: spans[count - 1][1]] if count else ""
            return {"prefix": prefix} if prefix and UNK not in self.target.encode(prefix) else {}
        runs, start = list[tuple[int, int]](), 0
        for end in range(len(kept) + 1):
            if end == len(kept) or not kept[end]:
                if end - start >= LEAST_WORDS:
                    runs.append((start, end))
                start = end + 1
        longest = sorted(runs, key=lambda run: run[0] - run[1])[:MOST_TERMS]
        terms = tuple(dict.fromkeys(text[spans[first][0] : spans[last - 1][1]] for first, last in sorted(longest)))
        written = tuple(term for term in terms if UNK not in self.target.encode(term))
        return {"terms": Terms(use=written)} if written else {}


def matched_words(text: str, match: MemoryMatch, pair: AlignedPair) -> list[bool]:
    """For each word of the translation of a match, whether it belongs to a word that the text shares with the match."""
    theirs = [pair.source[start:end] for start, end in pair.source_units]
    ours = [text[start:end] for start, end in units(text)]
    shared = [False] * len(theirs)
    for block in SequenceMatcher(None, theirs, ours, autojunk=False).get_matching_blocks():
        shared[block.a : block.a + block.size] = [True] * block.size
    return [bool(theirs) and shared[int(row.argmax())] for row in pair.weights]
