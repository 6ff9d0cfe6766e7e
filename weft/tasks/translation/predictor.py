"""Translation: lines of text to lines of text. The text of a sentence does not depend on its batch."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

from weft.data.sentence_splitting import SentenceSplitter
from weft.data.tokenizers import Tokenizer
from weft.decoding.continuous_search import PREFIX, SOURCE, Feed, Slots, search_continuously, slots_opener
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.generate import GenerationRequest
from weft.decoding.hypotheses import BackpointerTables, Hypothesis
from weft.decoding.predictor import ExpectedCost, Predictor, refuse
from weft.decoding.score_given_targets import score_texts, teacher_force
from weft.decoding.search_loop import Cancellation
from weft.decoding.shortlist import Shortlist
from weft.models.base import Model
from weft.tasks.translation.generation_request import attach_terms, check_rules, most_source, translation_request
from weft.tasks.translation.markup_and_tag_transfer import MarkupTransfer, untranslated
from weft.tasks.translation.segmenter import Segmenter, TextSegment, Translation, best_first, detokenize, join_segments
from weft.tasks.translation.source_additions import SourceAdditions
from weft.tasks.translation.term_placement import TermPlacer
from weft.tasks.translation.translation_input import INPUT_FIELDS, TranslationInput


class TranslationPredictor(Predictor[TranslationInput, Translation]):
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
        super().__init__(model, options, warn)
        config = options.config
        self.source, self.target, self.shortlist, self.begin_ids = source, target, shortlist, begin
        self.runner, self._kept = options.runner(model, self.warn), cast("Slots | None", None)
        self.request = partial(translation_request, options, source, target, runner=self.runner)
        self.max_source = most_source(options, model)
        options.check_decoder(model, self.warn, narrow=shortlist is not None)
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
        self.terms = TermPlacer(model, source, target, options.search)
        room = {"most_source": self.max_source, "tags": len(self.reader.tags)}
        self.additions = SourceAdditions(model, source, target, config, **room)
        self.context_lines = config.context
        check_rules(options, source, target)

    @property
    def rounds(self) -> bool:
        return self.runner is not None

    @property
    def places(self) -> int:
        return super().places if self.runner is None else 4 * super().places

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
        inputs = self.additions.applied(inputs)
        asked = [(number, each) for number, each in enumerate(inputs) if not each.from_memory]
        texts = [(number, *some) for number, each in asked for some in self.markup.readings(each.text, each.marks)]
        prefixes = [inputs[number].prefix for number, _, _ in texts]
        read = self.reader([text for _, text, _ in texts], prefixes, [first_line + number for number, _, _ in texts])
        groups: list[list[TextSegment]] = [[] for _ in inputs]
        for (number, _, masked), segments in zip(texts, read, strict=True):
            prefix, terms = inputs[number].prefix, inputs[number].terms
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

    def group(self, part: TextSegment) -> tuple[bool, bool, bool]:
        """Required terms need another search, and terms exclude shortlists and captured graphs, so they are batched apart.

        So are those that a place of a continuous search has no room for.
        """
        return bool(part.terms.use), bool(part.terms.avoid), not self._fits(part)

    def expected_cost(self, part: TextSegment) -> ExpectedCost:
        """Counts hypotheses, which terms multiply, and the tokens of a translation that is as long as its source."""
        steps = min(*self.options.request([part.size]).max_tokens, max(part.size, self.options.config.min_length))
        return ExpectedCost(self.options.search.rows(self.options.candidates, required=bool(part.terms.use)), steps)

    def run(self, parts: list[TextSegment], control: Cancellation | None = None) -> list[list[Translation]]:
        results, _ = self.search(parts, control=control)
        rerank = self.options.rerank
        if rerank is None:
            return results
        return [self._reranked(each, rerank.scores(part.text, each)) for part, each in zip(parts, results, strict=True)]

    def begin(self, parts: list[TextSegment], control: Cancellation | None = None) -> Callable[[], list[list[Translation]]]:
        if self.options.rerank is not None:
            return super().begin(parts, control)
        hypotheses, _ = self._generate(parts, control=control)
        return lambda: self._detokenize(parts, hypotheses)

    def continuous(self, part: TextSegment) -> bool:
        """Terms and long prefixes need batches, and so do decoding options that work on whole batches."""
        return self._streams and not part.terms and self._fits(part)

    def _fits(self, part: TextSegment) -> bool:
        """Whether a place of a continuous search has room for it."""
        return len(part.prefix) < PREFIX and (self.runner is None or len(part.ids) <= SOURCE)

    @cached_property
    def _streams(self) -> bool:
        if self.options.rerank is not None or self.shortlist is not None or self.options.config.rules:
            return False
        opener = self._slots()
        if opener is None:
            return False
        with self.arithmetic(), closing(opener(1)) as slots:
            return slots.possible()

    def _slots(self) -> Callable[[int], Slots] | None:
        """Opens places of a search; None if the texts need batches."""
        if self.model.copies:
            return None
        with self.arithmetic():
            longest = [self.options.config.max_length]
            return slots_opener(self.model, replace(self.options.request([]), max_tokens=longest, runner=self.runner))

    def stream(self, first: Sequence[TextSegment], feed: Feed[TextSegment]) -> None:
        opener = self._slots() if all(map(self.continuous, first)) else None
        if opener is None:
            super().stream(first, feed)
            return

        def ask(parts: Sequence[TextSegment]) -> tuple[list[list[int]], GenerationRequest]:
            return [part.ids for part in parts], self.request(parts)

        # Those of a GPU are used again, since their tensors take long to make.
        slots, self._kept = self._kept, None
        with self.arithmetic():
            slots = slots or opener(self.places)
            with closing(slots):
                search_continuously(slots, first, feed, ask, self._detokenize)
        if self.runner is not None:
            self._kept = slots

    def _reranked(self, results: list[Translation], scores: list[float]) -> list[Translation]:
        """The n best by these scores, each text once."""
        scored = (replace(each, score=score) for each, score in zip(results, scores, strict=True))
        ranked = sorted(scored, key=lambda translation: -translation.score)
        return list({each.text: each for each in reversed(ranked)}.values())[::-1][: self.options.config.n_best]

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

    def search(
        self, parts: list[TextSegment], *, trace: bool = False, control: Cancellation | None = None
    ) -> tuple[list[list[Translation]], BackpointerTables | None]:
        """The translations of segments, not reranked, and the tables of the search; with `trace` they hold the beam tree."""
        hypotheses, tables = self._generate(parts, trace=trace, control=control)
        return self._detokenize(parts, hypotheses), tables

    def _generate(
        self, parts: list[TextSegment], *, trace: bool = False, control: Cancellation | None = None
    ) -> tuple[list[list[Hypothesis]], BackpointerTables | None]:
        options, ids = self.options, [part.ids for part in parts]
        request = replace(self.request(parts), trace=trace, cancellation=control)
        if request.required is not None and not trace:
            free, _ = self.run_search(ids, replace(request, required=None))
            return self._with_terms(parts, free, control), None
        if self.shortlist is not None and not (trace or request.constraints or request.required):
            read = [(part.ids, part.prefix) for part in parts]
            narrow = self.shortlist.narrow(read, options.config.shortlist, options.device)
            request = replace(request, shortlist=narrow)
        results, tables = self.run_search(ids, request)
        if any(part.terms.avoid for part in parts) and self._searches_freely and not trace:
            free, _ = self.run_search(ids, replace(request, constraints=()))
            with self.arithmetic():
                self.terms.check_avoided(parts, free, results)
        return results, tables

    @property
    def _searches_freely(self) -> bool:
        """Whether a search without forbidden terms says what the model would write otherwise."""
        return not (self.model.decoder.parallel or self.options.config.rules or self.options.search.kind == "sample")

    def _with_terms(
        self, parts: list[TextSegment], free: list[list[Hypothesis]], control: Cancellation | None
    ) -> list[list[Hypothesis]]:
        """Free translations with their terms in place; where there is none, those of a search that has to write the terms."""
        with self.arithmetic():
            results = self.terms.place(parts, free)
        left = [row for row, hypotheses in enumerate(results) if not hypotheses]
        if left:
            rest = [parts[row] for row in left]
            mine = None if control is None else Cancellation(len(left), lambda row: control.wanted(left[row]))
            required, _ = self.run_search([part.ids for part in rest], replace(self.request(rest), cancellation=mine))
            for row, hypotheses in zip(left, required, strict=True):
                results[row] = hypotheses
            if control is not None and mine is not None:
                control.stopped.update(left[row] for row in mine.stopped)
        return results

    def _detokenize(self, parts: Sequence[TextSegment], hypotheses: list[list[Hypothesis]]) -> list[list[Translation]]:
        pairs = zip(parts, hypotheses, strict=True)
        return [[detokenize(self.source, self.target, part, each) for each in some] for part, some in pairs]

    def log_likelihoods(self, source: str, targets: Sequence[str]) -> list[tuple[float, int]]:
        """See `Scorer`. A source that is too long is cut off."""
        segments = self.segments(source)
        if not segments or not targets:
            return [(0.0, 1)] * len(targets)
        with self.arithmetic(1):
            return score_texts(self.model, segments[0].ids, targets, self.target, segments[0].words)
