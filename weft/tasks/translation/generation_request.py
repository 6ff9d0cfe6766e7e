"""From segments to a generation request: limits, decoding rules and terms. Predictors and training make their requests here."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from weft.config.registry import find_table, load
from weft.data.batch import BOS
from weft.data.copy_vocabulary import CopyIds
from weft.data.tokenizers import Tokenizer
from weft.decoding.cuda_graph_search import CapturedStepRunner
from weft.decoding.decoding_options import DecodingOptions
from weft.decoding.generate import GenerationRequest, generate
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.lexical_constraints import ForbiddenTerms
from weft.decoding.ngram_blocking_and_rules import Constraint, Rule, RuleConstraint
from weft.errors import ConfigError, DataError
from weft.models.base import Model
from weft.tasks.translation.glossary import Terms, term_automata
from weft.tasks.translation.segmenter import TextSegment

PLAIN: dict[str, Any] = {"rerank": "none", "fusion": "none", "shortlist": 0, "min_length": 0, "no_repeat_ngram": 0}
"""Settings of `decode` under which texts drawn in training have the probabilities that the model gives them."""


def most_source(options: DecodingOptions, model: Model) -> int:
    """The most tokens of a segment, EOS included: decode.max_source, or what the model has positions for."""
    wish = options.config.max_source
    most = min(wish, model.max_source or wish)
    if _same_length(options) and model.max_target is not None:
        most = min(most, model.max_target - 1)  # so that BOS, a text of the same length and EOS have positions too
    return most


def _rules(options: DecodingOptions) -> dict[str, type[Rule]]:
    """The rules of decode.rules by name."""
    return {name: load(find_table("weft.decoding:RULES"), name, "decode.rules") for name in options.config.rules}


def _same_length(options: DecodingOptions) -> bool:
    return any(rule.same_length for rule in _rules(options).values())


def check_rules(options: DecodingOptions, source: Tokenizer, target: Tokenizer) -> None:
    """Raises ConfigError if the search cannot follow decode.rules, or if the tokens of both sides cannot be compared."""
    rules = _rules(options)
    options.search.check(["rules"] if rules else [])
    for name, rule in rules.items():
        if rule.one_vocabulary and source is not target:
            raise ConfigError(
                f"decode.rules: {name} compares the tokens of both sides, so they need one vocabulary; "
                "leave it out, or train with data.shared_vocabulary: true"
            )


def make_rules(options: DecodingOptions, tokenizer: Tokenizer, segments: Sequence[TextSegment]) -> list[Constraint]:
    """The constraints of decode.rules on these segments. Different unknown words are different tokens."""
    if not options.config.rules:
        return []
    sources = [CopyIds(tokenizer).number(segment.text, segment.ids[:-1]) for segment in segments]
    content = []
    for segment in segments:
        names = tokenizer.named(segment.words).tokens(segment.ids[:-1])
        content.append([token for token, name in zip(segment.ids, names) if any(map(str.isalnum, name))])
    chosen: dict[type[RuleConstraint], list[str]] = {}
    for name, rule in _rules(options).items():
        chosen.setdefault(rule.constraint, []).append(name)
    return [constraint(rules, sources, content) for constraint, rules in chosen.items()]


def attach_terms(
    prefix: str, terms: Terms, segments: Sequence[TextSegment], model: Model, options: DecodingOptions, where: str
) -> None:
    """Gives each segment of an input its terms. Raises an error if the model or the search cannot use them, or a prefix."""
    if terms and model.copies:
        raise ConfigError(f"{where}a model that copies source words (model.kind: pointer) does not support terms")
    wanted = {"prefix": prefix, "use": terms.use, "avoid": terms.avoid}
    options.search.check((name for name, value in wanted.items() if value), where)
    try:
        for segment, own in zip(segments, terms.among([segment.text for segment in segments]), strict=True):
            segment.terms = own
    except DataError as error:
        raise DataError(f"{where}{error}") from None


def translation_request(
    options: DecodingOptions,
    source: Tokenizer,
    target: Tokenizer,
    segments: Sequence[TextSegment],
    *,
    runner: CapturedStepRunner | None = None,
) -> GenerationRequest:
    """The request for translations of these segments. runner: captures the search, see `GenerationRequest`."""
    constraints = make_rules(options, source, segments)
    avoid = term_automata(target, [segment.terms.avoid for segment in segments], options.device, early=True)
    request = replace(
        options.request([len(segment.ids) for segment in segments]),
        prefixes=[[BOS, *segment.prefix] for segment in segments],
        seeds=[segment.seed for segment in segments],
        constraints=constraints if avoid is None else [*constraints, ForbiddenTerms(avoid)],
        required=term_automata(target, [segment.terms.use for segment in segments], options.device),
        runner=runner,
    )
    if _same_length(options):
        request = replace(request, max_tokens=[len(segment.ids) - len(segment.prefix) for segment in segments])
    return request


def translate_ids(
    model: Model,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sources: Sequence[Sequence[int]],
    options: DecodingOptions,
    *,
    prefixes: Sequence[Sequence[int]] = (),
    seeds: Sequence[int] = (),
    bias: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """The translations of sources that training has as ids; no text is decoded.

    prefixes: tokens that the translations begin with · seeds, bias: see `GenerationRequest`.
    """
    segments = [TextSegment(list(ids), list(start)) for ids, start in zip(sources, prefixes or [[]] * len(sources))]
    check_rules(options, *tokenizers)
    request = replace(translation_request(options, *tokenizers, segments, runner=options.runner(model)), bias=bias)
    with options.arithmetic(next(model.parameters()).dtype, options.beams):
        return generate(model, sources, replace(request, seeds=seeds) if seeds else request)[0]
