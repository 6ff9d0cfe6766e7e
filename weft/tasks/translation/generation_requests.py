"""Requests to `generate` translations of segments: their limits, terms and rules. Predictors and training share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from weft.config.sections import DecodeSection
from weft.data.batch import BOS
from weft.data.copy_vocabulary import CopyIds
from weft.data.tokenizers import Tokenizer
from weft.decoding.constraints import SourceRules
from weft.decoding.generate import GenerationRequest, generate
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.lexical_constraints import ForbiddenTerms
from weft.errors import ConfigError, DataError
from weft.inference.decoding_options import DecodingOptions, changed, resolve_options
from weft.models.base import Model
from weft.tasks.translation.glossary import term_automata
from weft.tasks.translation.segmenter import TextSegment, TranslationInput

PLAIN: dict[str, Any] = {"rerank": "none", "fusion": "none", "shortlist": 0, "min_length": 0, "no_repeat_ngram": 0}
"""Settings of `decode` under which texts drawn in training have the probabilities that the model gives them."""


def most_source(config: DecodeSection, model: Model) -> int:
    """The most tokens of a segment, EOS included: decode.max_source, or what the model has positions for."""
    most = min(config.max_source, model.max_source or config.max_source)
    if "same_length" in config.rules and model.max_target is not None:
        most = min(most, model.max_target - 1)  # so that BOS, a text of the same length and EOS have positions too
    return most


def check_rules(options: DecodingOptions, source: Tokenizer, target: Tokenizer) -> None:
    """Raises ConfigError if the search cannot follow decode.rules, or if the tokens of both sides cannot be compared."""
    rules = options.config.rules
    options.search.check(["rules"] if rules else [])
    if "no_shared" in rules and source is not target:
        raise ConfigError(
            "decode.rules: no_shared compares the tokens of both sides, so they need one vocabulary; "
            "leave it out, or train with data.shared_vocabulary: true"
        )


def make_rules(config: DecodeSection, tokenizer: Tokenizer, segments: Sequence[TextSegment]) -> list[SourceRules]:
    """The constraint of decode.rules on these segments; none without rules.

    Different unknown words are different tokens. Punctuation may be shared: only tokens with a letter or a digit are barred.
    """
    if not config.rules:
        return []
    sources = [CopyIds(tokenizer).number(segment.text, segment.ids[:-1]) for segment in segments]
    barred = []
    for segment in segments:
        names = tokenizer.named(segment.words).tokens(segment.ids[:-1])
        barred.append([token for token, name in zip(segment.ids, names) if any(map(str.isalnum, name))])
    return [SourceRules(config.rules, sources, barred)]


def attach_terms(
    given: TranslationInput, segments: Sequence[TextSegment], model: Model, options: DecodingOptions, where: str
) -> None:
    """Gives each segment of an input its terms. Raises an error if the model or the search cannot use them, or a prefix."""
    if given.terms and model.copies:
        raise ConfigError(f"{where}a model that copies source words (model.kind: pointer) does not support terms")
    wanted = {"prefix": given.prefix, "use": given.terms.use, "avoid": given.terms.avoid}
    options.search.check((name for name, value in wanted.items() if value), where)
    try:
        for segment, terms in zip(segments, given.terms.among([segment.text for segment in segments]), strict=True):
            segment.terms = terms
    except DataError as error:
        raise DataError(f"{where}{error}") from None


def translation_request(
    options: DecodingOptions, source: Tokenizer, target: Tokenizer, segments: Sequence[TextSegment]
) -> GenerationRequest:
    """The request for translations of these segments."""
    config, device = options.config, options.device
    constraints: list[Any] = list(make_rules(config, source, segments))
    avoid = term_automata(target, [segment.terms.avoid for segment in segments], device, early=True)
    request = replace(
        options.request([len(segment.ids) for segment in segments]),
        prefixes=[[BOS, *segment.prefix] for segment in segments],
        seeds=[segment.seed for segment in segments],
        constraints=constraints if avoid is None else [*constraints, ForbiddenTerms(avoid)],
        required=term_automata(target, [segment.terms.use for segment in segments], device),
    )
    if "same_length" in config.rules:
        request = replace(request, max_tokens=[len(segment.ids) - len(segment.prefix) for segment in segments])
    return request


def translate_ids(
    model: Model,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sources: Sequence[Sequence[int]],
    config: DecodeSection,
    changes: Mapping[str, Any],
    *,
    prefixes: Sequence[Sequence[int]] = (),
    seeds: Sequence[int] = (),
    bias: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """The translations of sources that training has as ids, with the settings `changes` of decode; no text is decoded.

    prefixes: tokens that the translations begin with · seeds, bias: see `GenerationRequest`.
    """
    options = resolve_options(changed(config, {**PLAIN, **changes}), model.device)
    segments = [TextSegment(list(ids), list(start)) for ids, start in zip(sources, prefixes or [[]] * len(sources))]
    check_rules(options, *tokenizers)
    request = replace(translation_request(options, *tokenizers, segments), bias=bias, runner=options.runner(model))
    with options.arithmetic(next(model.parameters()).dtype, options.beams):
        return generate(model, sources, replace(request, seeds=seeds) if seeds else request)[0]
