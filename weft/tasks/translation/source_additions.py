"""Additions to a source text: terms of a glossary (decode.term_use), the lines before it (decode.context), fuzzy matches.

Inline terms and context need a model that was trained so, see `weft.data.changed_copies`. Nothing of it is part of the
translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.data.changed_copies import CONTEXT, inline_terms
from weft.data.tokenizers import Tokenizer
from weft.decoding.decoding_options import DecodingOptions
from weft.models.base import Model
from weft.tasks.translation.fuzzy_matches import FuzzyMatches, usual_use
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.segmenter import TextSegment
from weft.tasks.translation.translation_input import TranslationInput


class SourceAdditions:
    """Adds terms and context to sources. most_source: the most tokens of a segment · tags: ids that begin each source."""

    def __init__(
        self, model: Model, source: Tokenizer, target: Tokenizer, options: DecodingOptions, *, most_source: int, tags: int
    ) -> None:
        config = options.config
        self.source, self.most_source, self.tags = source, most_source, tags
        self.inline, self.context = config.term_use == "inline", config.context > 0 and not model.copies
        use = usual_use(options.search) if config.fuzzy == "auto" else config.fuzzy
        self.fuzzy = FuzzyMatches(model, source, target, use, most_source=most_source, tags=tags)

    def applied(self, inputs: Sequence[TranslationInput]) -> Sequence[TranslationInput]:
        """The inputs with inline terms in their texts, and with prefixes and terms of their matches. Markup excludes both."""
        if self.inline:
            inputs = [self._with_terms(each) if each.terms.sources and not each.marks else each for each in inputs]
        return self.fuzzy.applied(inputs)

    def put_before(self, given: TranslationInput, segments: list[TextSegment]) -> None:
        """Puts a fuzzy match or the text before it in front of each segment, if both fit."""
        self.fuzzy.prompt(given, segments)
        if self.context and not given.attention:
            self._put_context(given.context, segments)

    @staticmethod
    def _with_terms(given: TranslationInput) -> TranslationInput:
        if given.from_memory:
            return given
        shown = {target for _, target in given.terms.sources}
        rest = Terms(use=tuple(term for term in given.terms.use if term not in shown), avoid=given.terms.avoid)
        match = None if given.match is not None and given.match.exact else given.match  # it lacks a term that is required
        return replace(given, text=inline_terms(given.text, given.terms.sources), terms=rest, match=match)

    def _put_context(self, before: str, segments: Sequence[TextSegment]) -> None:
        for segment in segments:
            ids = self.source.encode(f"{before} {CONTEXT}") if before and segment.context == (0, 0) else []
            before = segment.text
            if ids and len(ids) + len(segment.ids) <= self.most_source:
                segment.put_before(ids, self.tags)
