"""The limits of a search for some pieces of text: lengths, and the rules of `decode.rules`.

Translation: lines of text to lines of text. The text of a sentence does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from weft.config.registry import find_table, load
from weft.config.sections import DecodeSection
from weft.data.batch import BOS, EOS, Layout, Source, power_of_two
from weft.data.copy_vocabulary import CopyIds
from weft.data.sentence_splitting import SentenceSplitter
from weft.data.tokenizers import Tokenizer
from weft.decoding.constraints import Constraint, Rule, RuleConstraint, usual_constraints
from weft.decoding.cpp_search import encode, prepare
from weft.decoding.cuda_graph_search import CapturedStepRunner, search_graphs_of
from weft.decoding.hypotheses import BackpointerTables, Hypothesis
from weft.decoding.lexical_constraints import ForbiddenTerms
from weft.decoding.search_loop import CHECK, EAGER, Cancellation
from weft.decoding.token_selection import LengthLimits
from weft.errors import ConfigError, DataError
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import ExpectedCost, Predictor, pad, refuse
from weft.inference.shortlist import BatchVocabulary, Shortlist
from weft.inference.teacher_forcing import teacher_force
from weft.layers.kernels.cuda_graph_capture import Compiler
from weft.losses.log_likelihood import log_likelihoods
from weft.models.base import Model
from weft.models.wrapped_decoders import ShortlistDecoder
from weft.tasks.translation.documents.html import has_words
from weft.tasks.translation.glossary import NO_TERMS, Terms, term_automata
from weft.tasks.translation.markup import MarkedUpText, MarkupSpan, MarkupTransfer, find_literals, repeated, untranslated
from weft.tasks.translation.protected_spans import hint, kinds
from weft.tasks.translation.segmenter import Segmenter, TextSegment, Translation, best_first, join_segments


def most_source(section: DecodeSection, model: Model) -> int:
    """The most tokens of a piece, EOS included: decode.max_source, or what the model has positions for."""
    most = min(section.max_source, model.max_source or section.max_source)
    if _same_length(section) and model.max_target is not None:
        most = min(most, model.max_target - 1)  # so that BOS, a text of the same length and EOS have positions too
    return most


def length_limits(
    resolved: DecodingOptions, model: Model, pieces: Sequence[TextSegment], real: int, bias: Tensor | None = None
) -> LengthLimits:
    """Length limits per piece; pieces from number `real` on only pad the batch and end at once. bias: see `LengthLimits`."""
    section = resolved.section
    if _same_length(section):
        longest = [len(piece.ids) - len(piece.prefix) for piece in pieces]
    else:
        longest = [min(section.max_length, int(section.max_ratio * len(piece.ids)) + 10) for piece in pieces]
    if model.max_target is not None:
        longest = [min(each, model.max_target - len(piece.prefix) - 1) for each, piece in zip(longest, pieces, strict=True)]
    longest = [max(1, each) if k < real else 1 for k, each in enumerate(longest)]
    shortest = [min(section.min_length, each - 1) for each in longest]
    columns = torch.tensor([longest, shortest, [piece.seed for piece in pieces]], device=resolved.device)  # one copy
    return LengthLimits(columns[0], columns[1], columns[2], bias)


def _rules(section: DecodeSection) -> dict[str, type[Rule]]:
    """The rules of decode.rules by name."""
    return {name: load(find_table("weft.decoding:RULES"), name, "decode.rules") for name in section.rules}


def _same_length(section: DecodeSection) -> bool:
    return any(rule.same_length for rule in _rules(section).values())


def check_rules(resolved: DecodingOptions, source: Tokenizer, target: Tokenizer) -> None:
    """Raises ConfigError if the search cannot follow decode.rules, or if the tokens of both sides cannot be compared."""
    rules = _rules(resolved.section)
    resolved.search.check(["rules"] if rules else [])
    for name, rule in rules.items():
        if rule.one_vocabulary and source is not target:
            raise ConfigError(
                f"decode.rules: {name} compares the tokens of both sides, so they need one vocabulary; "
                "leave it out, or train with data.shared_vocabulary: true"
            )


def make_rules(section: DecodeSection, tokenizer: Tokenizer, pieces: Sequence[TextSegment]) -> list[Constraint]:
    """The constraints of decode.rules on these pieces. Different unknown words are different tokens."""
    if not section.rules:
        return []
    sources = [CopyIds(tokenizer).number(piece.text, piece.ids[:-1]) for piece in pieces]
    content = []
    for piece in pieces:
        names = tokenizer.named(piece.words).tokens(piece.ids[:-1])
        content.append([token for token, name in zip(piece.ids, names) if any(map(str.isalnum, name))])
    chosen: dict[type[RuleConstraint], list[str]] = {}
    for name, rule in _rules(section).items():
        chosen.setdefault(rule.constraint, []).append(name)
    return [constraint(rules, sources, content) for constraint, rules in chosen.items()]


ROUND = 16
"""On a GPU sources are padded to a multiple of this many tokens, so that recorded searches come in few sizes."""


@dataclass(frozen=True)
class TranslationInput:
    """A text to translate.

    prefix: how the translation has to begin · terms: words it must use or avoid · attention: whether to add attention weights
    · marks: tags and other things in the text that the translation must have as well.
    """

    text: str
    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False
    marks: tuple[MarkupSpan, ...] = ()


class TranslationPredictor(Predictor[TranslationInput, Translation]):
    """A model with its tokenizers.

    `split` splits a line into sentences (decode.sentences). One with more tokens than `max_source` (the model's positions, or
    decode.max_source) is cut between words. The pieces are translated separately and joined. What decode.protect names comes
    back as it is. `shortlist` holds the likely target tokens per source token, for decode.shortlist; lines with terms, traces
    and decode.rules use the whole vocabulary.
    """

    def __init__(
        self,
        model: Model,
        source: Tokenizer,
        target: Tokenizer,
        resolved: DecodingOptions,
        *,
        warn: Callable[[str], None] | None = None,
        shortlist: Shortlist | None = None,
        split: SentenceSplitter | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.source, self.target, self.shortlist = source, target, shortlist
        self.recorder, self._setting = search_graphs_of(model), resolved.section.model_dump_json()
        self.compiler = Compiler(self.warn) if resolved.section.compile else None
        self.max_source = most_source(resolved.section, model)
        resolved.search.wrap_decoder(model.decoder)  # fails now if the search cannot work with this decoder
        if resolved.kernels is not None:
            prepare(model.decoder, self.warn)
        self.reader = Segmenter(
            source,
            target,
            room=self.max_source - 1,
            most=model.max_target,
            copies=model.copies,
            split=split if resolved.section.sentences == "auto" else None,
            warn=self.warn,
            tags=source.tags(resolved.section.tag),
        )
        self.protected = kinds(resolved.section.protect)
        self.hint = hint(self.protected)
        self.carrier = MarkupTransfer(model, source, target)
        if resolved.section.n_best > 1:
            resolved.search.check(["n_best"])
        check_rules(resolved, source, target)
        if shortlist:
            resolved.search.check(["shortlist"])
            # Fails now if the model has no narrow output layer; otherwise it is prepared for all searches.
            model.decoder.among(torch.tensor([EOS], device=model.device))

    @property
    def rounds(self) -> bool:
        return self.recorder is not None

    def parse(
        self,
        line: str,
        *,
        prefix: str = "",
        terms: Terms = NO_TERMS,
        attention: bool = False,
        marks: tuple[MarkupSpan, ...] = (),
        **fields: Any,
    ) -> TranslationInput:
        refuse(fields, "a text to translate has no such field")
        return TranslationInput(line, prefix, terms, attention, marks)

    def sentences(self, text: str) -> list[str]:
        return [each.text for each in self.reader.sentences(text)] or [text]

    def read(self, inputs: Sequence[TranslationInput], first_line: int) -> list[list[TextSegment]]:
        """The pieces of each input. If something in it is protected, they come twice: as they are, and masked."""
        texts: list[tuple[int, str, bool]] = []
        for number, given in enumerate(inputs):
            if not given.marks and not (self.hint and self.hint.search(given.text)):
                texts.append((number, given.text, False))
                continue
            text = self._marked(given)
            hidden = text.masked if text.literals else ""
            if not text.literals or has_words(hidden):
                texts.append((number, text.visible, False))
            if text.literals and has_words(hidden):
                texts.append((number, hidden, True))
        prefixes = [inputs[number].prefix for number, _, _ in texts]
        found = self.reader([text for _, text, _ in texts], prefixes, [first_line + number for number, _, _ in texts])
        groups: list[list[TextSegment]] = [[] for _ in inputs]
        for (number, _, masked), pieces in zip(texts, found, strict=True):
            if inputs[number].prefix or inputs[number].terms:
                self._add_terms(inputs[number], pieces, f"line {first_line + number}: ")
            for piece in pieces:
                piece.masked = masked
            groups[number] += pieces
        return groups

    def _marked(self, given: TranslationInput) -> MarkedUpText:
        return find_literals(given.text, given.marks, self.protected)

    def _add_terms(self, given: TranslationInput, pieces: list[TextSegment], where: str) -> None:
        if given.terms and self.model.copies:
            raise ConfigError(f"{where}a model that copies source words (model.kind: pointer) does not support terms")
        wanted = {"prefix": given.prefix, "use": given.terms.use, "avoid": given.terms.avoid}
        self.resolved.search.check((name for name, value in wanted.items() if value), where)
        try:
            for piece, terms in zip(pieces, given.terms.among([piece.text for piece in pieces]), strict=True):
                piece.terms = terms
        except DataError as error:
            raise DataError(f"{where}{error}") from None

    def pieces(self, text: str) -> list[TextSegment]:
        """The pieces of a text that is not split into sentences: none if it is blank, several if it is too long."""
        return self.reader([text], [""], [1], whole=True)[0]

    def group(self, part: TextSegment) -> tuple[bool, bool]:
        """Required terms need another search, and terms exclude shortlists and recorded graphs, so they are batched apart."""
        return bool(part.terms.use), bool(part.terms.avoid)

    def effort(self, part: TextSegment) -> ExpectedCost:
        """Counts hypotheses, which terms multiply, and the tokens of a translation that is as long as its source."""
        section = self.resolved.section
        steps = min(section.max_length, int(section.max_ratio * part.size) + 10, max(part.size, section.min_length))
        return ExpectedCost(self.resolved.search.rows(self.resolved.candidates, required=bool(part.terms.use)), steps)

    def run(self, parts: list[TextSegment], control: Cancellation | None = None) -> list[list[Translation]]:
        found, _ = self.search(parts, control=control)
        rerank = self.resolved.rerank
        if rerank is None:
            return found
        return [self._reranked(each, rerank.scores(piece.text, each)) for piece, each in zip(parts, found, strict=True)]

    def begin(self, parts: list[TextSegment], control: Cancellation | None = None) -> Callable[[], list[list[Translation]]]:
        if self.resolved.rerank is not None:
            return super().begin(parts, control)
        found, narrow, _ = self._find(parts, False, control)
        return lambda: self._translations(parts, found, narrow)

    def _reranked(self, found: list[Translation], scores: list[float]) -> list[Translation]:
        """The n best by these scores, each text once."""
        ranked = sorted((replace(each, score=score) for each, score in zip(found, scores, strict=True)), key=lambda t: -t.score)
        return list({each.text: each for each in reversed(ranked)}.values())[::-1][: self.resolved.section.n_best]

    def join(self, given: TranslationInput, parts: list[TextSegment], results: list[list[Translation]]) -> Translation:
        """The translation of a line, from those of its pieces."""
        if len(parts) == len(results) == 1 and results[0] and not (given.marks or given.attention):
            results[0][0].alternatives = results[0][1:]
            return results[0][0]
        text = self._marked(given)
        if not parts and text.literals:
            return untranslated(given.text, given.marks)
        if not results or not all(results):
            return Translation("", 0.0)
        chosen = [(piece, found) for piece, found in zip(parts, results, strict=True) if not piece.masked]
        masked = bool(text.literals) and not repeated(
            text.literals, self.protected, self._whole(chosen, (0,) * len(chosen)).text
        )
        if masked:
            chosen = [(piece, found) for piece, found in zip(parts, results, strict=True) if piece.masked]
        if not chosen:
            return untranslated(given.text, given.marks)
        if given.attention:
            for piece, found in chosen:
                forced = teacher_force(self.model, piece.ids, found[0].ids)
                found[0].attention, found[0].uses = forced.weights, forced.uses
        ways = best_first([[each.score for each in found] for _, found in chosen], self.resolved.section.n_best)
        best, *rest = (self._whole(chosen, way) for way in ways)
        if text.literals and not masked:
            rest = [each for each in rest if repeated(text.literals, self.protected, each.text)]
        if given.marks or masked:
            own, kinds = [piece for piece, _ in chosen], self.protected if masked else ()
            best, *rest = (self.carrier.transfer(text, own, each, kinds, given.prefix) for each in (best, *rest))
        best.alternatives = rest
        return best

    def _whole(self, chosen: Sequence[tuple[TextSegment, list[Translation]]], way: Sequence[int]) -> Translation:
        """The translation that takes this candidate of each piece."""
        pieces, parts = [piece for piece, _ in chosen], [found[number] for (_, found), number in zip(chosen, way, strict=True)]
        return join_segments(pieces, parts, None if self.resolved.rerank else self.resolved.search.length_penalty)

    def search(
        self, pieces: list[TextSegment], *, trace: bool = False, control: Cancellation | None = None
    ) -> tuple[list[list[Translation]], BackpointerTables | None]:
        """The translations of some pieces, not reranked, and the tables of the search; with `trace` they hold the beam tree."""
        found, narrow, tables = self._find(pieces, trace, control)
        return self._translations(pieces, found, narrow), tables

    def _find(
        self, pieces: list[TextSegment], trace: bool, control: Cancellation | None
    ) -> tuple[list[list[Hypothesis]], BatchVocabulary | None, BackpointerTables | None]:
        """What the search finds for each piece, and the tokens that it chose from, if not from all."""
        resolved, device = self.resolved, self.resolved.device
        # Recorded searches come in few sizes, so the batch is padded with empty pieces to a power of two.
        missing = power_of_two(len(pieces)) - len(pieces) if self.rounds else 0
        rows = [*pieces, *(TextSegment([EOS], []) for _ in range(missing))]
        narrow, rules = None, make_rules(resolved.section, self.source, rows)
        if self.shortlist is not None and not (trace or rules or any(piece.terms for piece in pieces)):
            narrow = self.shortlist.narrow([(row.ids, row.prefix) for row in rows], resolved.section.shortlist, device)
        prefixes = [[BOS, *(narrow.numbers(piece.prefix) if narrow else piece.prefix)] for piece in rows]
        lengths = [len(prefix) for prefix in prefixes]
        use = term_automata(self.target, [piece.terms.use for piece in rows], device)
        avoid = term_automata(self.target, [piece.terms.avoid for piece in rows], device, early=True)
        limits = self.limits(rows, len(pieces), narrow)
        ngram = resolved.section.no_repeat_ngram
        # Reading a limit makes a GPU wait.
        constraints = usual_constraints(ngram, max(lengths) + int(limits.longest.max()) if ngram else 0)
        constraints += [*rules, *([ForbiddenTerms(avoid)] if avoid else [])]
        recorded = None
        if self.recorder is not None and not (use or avoid or narrow or rules):
            recorded = self.recorder.stepping(self._setting, self.compiler)
        with resolved.arithmetic(next(self.model.parameters()).dtype, resolved.beams):
            decoder = self.model.decoder if narrow is None else ShortlistDecoder(self.model.decoder, narrow.ids)
            found, tables = resolved.search.find(
                decoder,
                self._encode(rows, recorded),
                limits=limits,
                first=pad(prefixes).to(device),
                first_layout=Layout.padded(lengths).to(device) if len(set(lengths)) > 1 else None,
                best=resolved.candidates,
                constraints=constraints,
                required=use,
                stepping=recorded or EAGER,
                check=1 if trace else CHECK,
                trace=trace,
                control=control,
            )
        return found[: len(pieces)], narrow, tables

    def _translations(
        self, pieces: list[TextSegment], found: list[list[Hypothesis]], narrow: BatchVocabulary | None
    ) -> list[list[Translation]]:
        return [[self.translation(piece, each, narrow) for each in some] for piece, some in zip(pieces, found, strict=True)]

    def _encode(self, rows: list[TextSegment], recorded: CapturedStepRunner | None) -> Any:
        block = pad([piece.ids for piece in rows], ROUND if self.rounds else 1).to(self.resolved.device)
        lengths = [len(piece.ids) for piece in rows]
        # Searches with and without a layout would be recorded separately, so on a GPU there always is one.
        full = set(lengths) == {block.size(1)} and not self.rounds
        source = Source(block, None if full else Layout.padded(lengths, block.size(1)).to(self.resolved.device))
        return encode(self.model, source) if recorded is None else recorded.encode(self.model, source)

    def limits(self, pieces: list[TextSegment], real: int, narrow: BatchVocabulary | None = None) -> LengthLimits:
        """Length limits per piece; pieces from number `real` on only pad the batch and end at once."""
        return length_limits(self.resolved, self.model, pieces, real, None if narrow is None else narrow.bias)

    def translation(self, piece: TextSegment, hypothesis: Hypothesis, narrow: BatchVocabulary | None) -> Translation:
        ids = [*piece.prefix, *(narrow.tokens(hypothesis.tokens) if narrow else hypothesis.tokens)]
        source, target = self.source.named(piece.words), self.target.named(piece.words)
        text = target.decode([token for token in ids if token != EOS])
        names = target.tokens(ids), source.tokens(piece.ids)
        return Translation(text, hypothesis.score, ids, *names, source=piece.text, passes=hypothesis.passes)

    def log_likelihoods(self, source: str, targets: Sequence[str]) -> list[tuple[float, int]]:
        """See `Scorer`. Texts longer than the model's positions are cut off; the targets are scored in their own batch."""
        if self.model.decoder.parallel:
            raise ConfigError("decode.rerank: a model that writes all tokens at once cannot score texts; name another run")
        pieces = self.pieces(source)
        if not pieces or not targets:
            return [(0.0, 1)] * len(targets)
        numbering = CopyIds(self.target, pieces[0].words)
        most = self.model.max_target and self.model.max_target - 1
        rows = [[*numbering.find(text, ids)[:most], EOS] for text, ids in zip(targets, self.target.encode_batch(list(targets)))]
        labels, block = (pad(some).to(self.model.device) for some in (rows, [pieces[0].ids] * len(rows)))
        fed = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
        with self.resolved.arithmetic(next(self.model.parameters()).dtype):
            hidden = self.model(Source(block), fed, Layout.padded([len(row) for row in rows]).to(self.model.device)).hidden
            found = log_likelihoods(self.model.decoder, hidden, labels).sum(1).tolist()
        return [(score, len(row)) for score, row in zip(found, rows, strict=True)]
