"""What a model reads beside a text: terms of a glossary (decode.term_use: inline) and the lines before it (decode.context).

Both need a model that was trained so, see `weft.data.changed_copies`. Neither is part of the translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.config.sections import DecodeSection
from weft.data.changed_copies import CONTEXT, inline_terms
from weft.data.tokenizers import Tokenizer
from weft.models.base import Model
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.segmenter import TextSegment

if TYPE_CHECKING:
    from weft.tasks.translation.predictor import TranslationInput


class SourceAdditions:
    """Adds terms and context to sources. most_source: the most tokens of a segment · tags: ids that begin each source."""

    def __init__(self, model: Model, source: Tokenizer, config: DecodeSection, *, most_source: int, tags: int) -> None:
        self.source, self.most_source, self.tags = source, most_source, tags
        self.inline, self.context = config.term_use == "inline", config.context > 0 and not model.copies

    def with_terms(self, inputs: Sequence[TranslationInput]) -> Sequence[TranslationInput]:
        """The inputs with their terms in their texts, if these are shown inline. Markup would not fit to such a text."""
        return (
            [self._with_terms(each) if each.terms.sources and not each.marks else each for each in inputs]
            if self.inline
            else inputs
        )

    @staticmethod
    def _with_terms(given: TranslationInput) -> TranslationInput:
        if given.from_memory:
            return given
        shown = {target for _, target in given.terms.sources}
        rest = Terms(use=tuple(term for term in given.terms.use if term not in shown), avoid=given.terms.avoid)
        match = None if given.match is not None and given.match.exact else given.match  # it lacks a term that is required
        return replace(given, text=inline_terms(given.text, given.terms.sources), terms=rest, match=match)

    def put_context(self, given: TranslationInput, segments: Sequence[TextSegment]) -> None:
        """Puts the text before each segment in front of it, if both fit. Attention that is asked for knows no such text."""
        before = given.context
        for segment in segments if self.context and not given.attention else ():
            ids = self.source.encode(f"{before} {CONTEXT}") if before and segment.context == (0, 0) else []
            before = segment.text
            if ids and len(ids) + len(segment.ids) <= self.most_source:
                segment.put_before(ids, self.tags)
