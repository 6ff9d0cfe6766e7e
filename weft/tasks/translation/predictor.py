"""Translation: lines of text to lines of text. The text of a sentence does not depend on its batch."""

from collections.abc import Sequence
from typing import Any

from weft.data.sentence_splitting import SentenceSplitter
from weft.data.tokenizers import Tokenizer
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.predictor import refuse
from weft.decoding.score_given_targets import score_texts, teacher_force
from weft.decoding.shortlist import Shortlist
from weft.models.base import Model
from weft.tasks.translation.generation_request import attach_terms, check_rules, most_source
from weft.tasks.translation.glossary import NO_TERMS
from weft.tasks.translation.markup_and_tag_transfer import MarkupTransfer, untranslated
from weft.tasks.translation.segment_search import SegmentSearch
from weft.tasks.translation.segmenter import Segmenter, TextSegment, Translation, best_first, join_segments
from weft.tasks.translation.source_additions import SourceAdditions
from weft.tasks.translation.translation_input import INPUT_FIELDS, TranslationInput


class TranslationPredictor(SegmentSearch):
    """A model with its tokenizers.

    `split` splits a line into sentences (decode.sentences). One with more tokens than `max_source` (the model's positions, or
    decode.max_source) is cut between words. The segments are translated separately and joined. What decode.protect names comes
    back as it is. `shortlist` holds the likely target tokens per source token, for decode.shortlist; lines with terms, traces
    and decode.rules use the whole vocabulary. `begin` are ids that begin every translation, but not its text.
    """

    def __init__(
        self,
        model: Model,
        source: Tokenizer,
        target: Tokenizer,
        options: DecodingOptions,
        *,
        warn: Warn | None = None,
        shortlist: Shortlist | None = None,
        split: SentenceSplitter | None = None,
        begin: Sequence[int] = (),
    ) -> None:
        super().__init__(model, source, target, options, warn=warn, shortlist=shortlist)
        config = options.config
        self.begin_ids, self.max_source = begin, most_source(options, model)
        self.reader = Segmenter(
            source,
            target,
            room=self.max_source - 1,
            most=model.max_target,
            copies=model.copies,
            split=split if config.sentences == "auto" else None,
            warn=self.warn,
            tags=source.tags(config.tag),
        )
        self.markup = MarkupTransfer(model, source, target, config.protect)
        room = {"most_source": self.max_source, "tags": len(self.reader.tags)}
        self.additions = SourceAdditions(model, source, target, options, **room)
        self.context_lines = config.context
        check_rules(options, source, target)

    def parse_input(self, line: str, **fields: Any) -> TranslationInput:
        unknown = {name: value for name, value in fields.items() if name not in INPUT_FIELDS}
        refuse(unknown, "a text to translate has no such field")
        return TranslationInput(line, **fields)

    def sentences(self, text: str) -> list[str]:
        return [each.text for each in self.reader.sentences(text)] or [text]

    def encode_input(self, inputs: Sequence[TranslationInput], first_line: int) -> list[list[TextSegment]]:
        """The segments of each input. If something in it is protected, they come twice: as they are, and masked.

        There are none for an input that a translation memory answers.
        """
        wished = [each.terms for each in inputs]
        inputs = self.additions.applied(inputs)
        asked = [(number, each) for number, each in enumerate(inputs) if not each.from_memory]
        texts = [(number, *some) for number, each in asked for some in self.markup.readings(each.text, each.marks)]
        prefixes = [inputs[number].prefix for number, _, _ in texts]
        read = self.reader([text for _, text, _ in texts], prefixes, [first_line + number for number, _, _ in texts])
        groups: list[list[TextSegment]] = [[] for _ in inputs]
        for (number, _, masked), segments in zip(texts, read, strict=True):
            prefix, terms = inputs[number].prefix, inputs[number].terms
            if len(segments) > 1 and not wished[number]:
                terms = NO_TERMS  # it is not known which part needs the terms of a fuzzy match
            if prefix or terms:
                attach_terms(prefix, terms, segments, self.model, self.options, f"line {first_line + number}: ")
            for segment in segments:
                segment.masked, segment.prefix = masked, [*self.begin_ids, *segment.prefix]
            groups[number] += segments
        for given, segments in zip(inputs, groups, strict=True):
            self.additions.put_before(given, segments)
        return groups

    def segments(self, text: str) -> list[TextSegment]:
        """The segments of a text that is not split into sentences: none if it is blank, several if it is too long."""
        return self.reader([text], [""], [1], whole=True)[0]

    def join_outputs(self, given: TranslationInput, parts: list[TextSegment], results: list[list[Translation]]) -> Translation:
        """The translation of a line: that of a translation memory, or from those of its segments."""
        if given.match is not None and given.from_memory:
            return Translation(given.match.target, 0.0, source=given.text, match=given.match, from_memory=True)
        whole = self._join(given, parts, results)
        whole.match = given.match
        return whole

    def _join(self, given: TranslationInput, parts: list[TextSegment], results: list[list[Translation]]) -> Translation:
        """The translation of a line, from those of its segments."""
        if doubtful := [term for part in results if part for term in part[0].unplaced]:
            self.warn(
                f"{given.text[:60]!r}: the translation has no sure place for {', '.join(map(repr, doubtful))}; check it there"
            )
        if len(parts) == len(results) == 1 and results[0] and not (given.marks or given.attention):
            results[0][0].alternatives = results[0][1:]
            return results[0][0]
        text = self.markup.find_literals(given.text, given.marks)
        if not parts and text.literals:
            return untranslated(given.text, given.marks)
        if not results or not all(results):
            return Translation("", 0.0)
        both = list(zip(parts, results, strict=True))
        chosen = [(segment, some) for segment, some in both if not segment.masked]
        masked = bool(text.literals) and not self.markup.keeps(text, self._whole(chosen, (0,) * len(chosen)))
        if masked:
            chosen = [(segment, some) for segment, some in both if segment.masked]
        if not chosen:
            return untranslated(given.text, given.marks)
        if given.attention:
            for segment, (first, *_) in chosen:
                forced = teacher_force(self.model, segment.ids, first.ids)
                first.attention, first.uses = forced.weights, forced.uses
        ways = best_first([[each.score for each in some] for _, some in chosen], self.options.config.n_best)
        best, *rest = (self._whole(chosen, way) for way in ways)
        if not masked:
            rest = [each for each in rest if self.markup.keeps(text, each)]
        if given.marks or masked:
            own = [segment for segment, _ in chosen]
            best, *rest = (self.markup.transfer(text, own, each, masked, given.prefix) for each in (best, *rest))
        best.alternatives = rest
        return best

    def _whole(self, chosen: Sequence[tuple[TextSegment, list[Translation]]], way: Sequence[int]) -> Translation:
        """The translation that takes this candidate of each segment."""
        parts = [results[number] for (_, results), number in zip(chosen, way, strict=True)]
        return join_segments([segment for segment, _ in chosen], parts, None if self.options.rerank else self.options.search)

    def log_likelihoods(self, source: str, targets: Sequence[str]) -> list[tuple[float, int]]:
        """See `Scorer`. A source that is too long is cut off."""
        segments = self.segments(source)
        if not segments or not targets:
            return [(0.0, 1)] * len(targets)
        with self.arithmetic(1):
            return score_texts(self.model, segments[0].ids, targets, self.target, segments[0].words)
