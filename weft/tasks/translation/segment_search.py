"""The search for translations of segments: greedy, beam or sampling, with terms, shortlists, and one after the other."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from math import inf, isnan
from typing import cast

from weft.data.tokenizers import Tokenizer
from weft.decoding.continuous_search import PREFIX, SOURCE, Feed, Slots, search_continuously, slots_opener
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.hypotheses import BackpointerTables, Hypothesis
from weft.decoding.predictor import ExpectedCost, Predictor
from weft.decoding.search_loop import Cancellation
from weft.decoding.shortlist import Shortlist
from weft.models.base import Model
from weft.tasks.translation.generation_request import translation_request
from weft.tasks.translation.segmenter import TextSegment, Translation, detokenize
from weft.tasks.translation.term_placement import TermPlacer
from weft.tasks.translation.translation_input import TranslationInput


class SegmentSearch(Predictor[TranslationInput, Translation]):
    """The part of a predictor of translations that searches. `TranslationPredictor` makes segments of texts and joins them."""

    def __init__(
        self,
        model: Model,
        source: Tokenizer,
        target: Tokenizer,
        options: DecodingOptions,
        *,
        warn: Warn | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        super().__init__(model, options, warn)
        self.source, self.target, self.shortlist = source, target, shortlist
        self.runner, self._kept = options.runner(model, self.warn), cast("Slots | None", None)
        self.request = partial(translation_request, options, source, target, runner=self.runner)
        options.check_decoder(model, self.warn, narrow=shortlist is not None)
        self.terms = TermPlacer(model, source, target, options.search)

    @property
    def rounds(self) -> bool:
        return self.runner is not None

    @property
    def places(self) -> int:
        return super().places if self.runner is None else 4 * super().places

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
        return self.joinable(part) and self._fits(part) and self._streams

    def joinable(self, part: TextSegment) -> bool:
        """Terms and long prefixes need batches, and so do decoding options that work on whole batches."""
        if self.options.rerank is not None or self.shortlist is not None or self.options.config.rules or self.model.copies:
            return False
        return self.options.search.continuous and not part.terms and len(part.prefix) < PREFIX

    def _fits(self, part: TextSegment) -> bool:
        """Whether a place of a continuous search has room for it."""
        return len(part.prefix) < PREFIX and (self.runner is None or len(part.ids) <= SOURCE)

    @cached_property
    def _streams(self) -> bool:
        opener = self._slots()
        if opener is None:
            return False
        with self.arithmetic(), closing(opener(1)) as slots:
            return slots.possible()

    def _slots(self) -> Callable[[int], Slots] | None:
        """Opens places of a search; None if the texts need batches."""
        if self.options.device.type == "cuda":  # until captured places have been measured on a GPU
            return None
        with self.arithmetic():
            longest = [self.options.config.max_length]
            return slots_opener(self.model, replace(self.options.request([]), max_tokens=longest, runner=self.runner))

    def stream(self, first: Sequence[TextSegment], feed: Feed[TextSegment]) -> None:
        opener = self._slots() if all(map(self.continuous, first)) else None
        if opener is None:
            super().stream(first, feed)
            return

        # Those of a GPU are used again, since their tensors take long to make.
        slots, self._kept = self._kept, None
        with self.arithmetic():
            slots = slots or opener(self.places)
            with closing(slots):
                search_continuously(slots, first, feed, self.request, self._detokenize)
        if self.runner is not None:
            self._kept = slots

    def _reranked(self, results: list[Translation], scores: list[float]) -> list[Translation]:
        """The n best by these scores, each text once. A score that is NaN stays NaN, and comes last."""
        scored = [
            each if isnan(each.score) else replace(each, score=score) for each, score in zip(results, scores, strict=True)
        ]
        ranked = sorted(scored, key=lambda each: inf if isnan(each.score) else -each.score)
        return list({each.text: each for each in reversed(ranked)}.values())[::-1][: self.options.config.n_best]

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
