"""The contract of decoders that wrap decoders, for each of them and for every pair, one around the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.reference.searching import small_model
from weft.data.batch import BOS, Source
from weft.decoding.beam_search import BeamSelector
from weft.decoding.length_and_coverage_penalty import CoverageDecoder
from weft.decoding.ngram_blocking_and_rules import usual_constraints
from weft.decoding.noisy_decoding import NoisyDecoder, in_chains
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.shallow_fusion import FusedDecoder
from weft.decoding.token_selection import LengthLimits
from weft.errors import ConfigError
from weft.losses.log_likelihood import text_log_likelihoods
from weft.models.base import Decoder, Encoded, Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.ensembles_and_wrapped_decoders import Ensemble, EnsembleDecoder, ShortlistDecoder, WrappedDecoder
from weft.models.language_model import LanguageModel

SIZE = 9
OPTIONS = {"kind": "transformer", "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 1}


def language_model() -> LanguageModel:
    torch.manual_seed(1)
    options = {"kind": "language_model", "dim": 8, "heads": 2, "feedforward": 16, "decoder_layers": 1}
    model = build_model(options, Sizes(SIZE, SIZE, shared=True))
    assert isinstance(model, LanguageModel)
    return model.double().eval()


WRAPPERS: dict[str, Callable[[Model], Decoder]] = {
    "plain": lambda model: WrappedDecoder(model.decoder),
    "shortlist": lambda model: ShortlistDecoder(model.decoder, torch.arange(SIZE - 2)),
    "ensemble": lambda model: Ensemble([model, small_model(OPTIONS, SIZE, seed=5)]).decoder,
    "fusion": lambda model: FusedDecoder(model.decoder, language_model(), 0.5, line_end=5),
    "coverage": lambda model: CoverageDecoder(model.decoder, 0.2),
    "noise": lambda model: NoisyDecoder(model.decoder, 0.5, "embeddings", seed=1),
}


def encoded(model: Model, name: str) -> Encoded:
    source = Source(torch.tensor([[4, 6, 5], [7, 4, 2]]))
    if name == "ensemble":
        return Encoded(model.encode(source).memory, parts=[model.encode(source), model.encode(source)])
    return in_chains(model.encode(source), torch.arange(2), 1) if name == "noise" else model.encode(source)


@pytest.mark.parametrize("name", WRAPPERS)
@torch.inference_mode()
def test_logits_belong_to_the_caller(name: str) -> None:
    model = small_model(OPTIONS, SIZE)
    decoder, source, tokens = WRAPPERS[name](model), encoded(model, name), torch.tensor([[BOS, 4], [BOS, 5]])
    assert isinstance(decoder, WrappedDecoder)
    weights = {key: value.clone() for key, value in decoder.state_dict().items()}
    fed = decoder.hidden_states(tokens, decoder.init_state(source))
    hidden, expected = fed.hidden.clone(), decoder.logits(fed.hidden).clone()
    decoder.logits(fed.hidden).fill_(-torch.inf)
    assert torch.equal(fed.hidden, hidden) and torch.equal(decoder.logits(fed.hidden), expected)
    assert all(torch.equal(value, weights[key]) for key, value in decoder.state_dict().items())
    # A search also changes the logits of the last position alone.
    decoder.logits(fed.hidden[:, -1]).fill_(0.0)
    step = decoder.hidden_states(tokens[:, 1:], fed.state)
    again = decoder.hidden_states(tokens[:, 1:], decoder.hidden_states(tokens, decoder.init_state(source)).state)
    assert torch.equal(decoder.logits(step.hidden), decoder.logits(again.hidden))


@torch.inference_mode()
def test_what_is_not_overridden_is_that_of_the_wrapped_decoder() -> None:
    model = small_model(OPTIONS, SIZE)
    decoder, source, tokens = WrappedDecoder(model.decoder), encoded(model, "plain"), torch.tensor([[BOS, 4], [BOS, 5]])
    ours, theirs = (each(tokens, each.init_state(source)) for each in (decoder, model.decoder))
    assert torch.equal(ours.logits, theirs.logits) and decoder.ending(ours.state) is None
    assert (decoder.dim, decoder.scores, decoder.max_length) == (model.decoder.dim, False, model.decoder.max_length)
    assert WRAPPERS["fusion"](model).scores


@torch.inference_mode()
def test_the_ending_of_a_hypothesis_is_its_coverage_penalty() -> None:
    model = small_model(OPTIONS, SIZE)
    decoder = WRAPPERS["coverage"](model)
    state = decoder.hidden_states(torch.tensor([[BOS], [BOS]]), decoder.init_state(encoded(model, "coverage"))).state
    ending = decoder.ending(state)
    assert ending is not None and ending.shape == (2,) and (ending < 0).all()


NEUTRAL: dict[str, Callable[[Decoder], Decoder]] = {
    "coverage": lambda decoder: CoverageDecoder(decoder, 0.0),
    "noise": lambda decoder: NoisyDecoder(decoder, 0.0, "embeddings", seed=1),
    "shortlist": lambda decoder: ShortlistDecoder(decoder, torch.arange(SIZE)),
    "ensemble": lambda decoder: EnsembleDecoder([decoder, deepcopy(decoder)]),
    "fusion": lambda decoder: FusedDecoder(decoder, language_model(), 0.0, line_end=5),
}
"""Each wrapper with settings under which it changes no text and no score."""

PAIRS = [pytest.param(outer, inner, id=f"{outer}-{inner}") for outer, inner in product(NEUTRAL, repeat=2)]
REFUSED = {("shortlist", "ensemble"), ("shortlist", "fusion")}
"""Output layers that cannot be restricted."""


def nested_source(model: Model, names: Sequence[str]) -> Encoded:
    """The encoded source that these wrappers, the outermost first, start from."""
    source = Source(torch.tensor([[4, 6, 5], [7, 4, 2]]))
    encoded = in_chains(model.encode(source), torch.arange(2), 1)
    for name in reversed(names):
        if name == "ensemble":
            encoded = replace(encoded, parts=[encoded, encoded])
    return encoded


def search(decoder: Decoder, source: Encoded) -> list[tuple[list[int], float]]:
    limits = LengthLimits(*(torch.full((2,), value) for value in (6, 0)), torch.arange(2))
    request = SearchRequest(prefix=torch.full((2, 1), BOS), limits=limits, constraints=usual_constraints(2, 8))
    return [(text.tokens, text.score) for texts in run_search(decoder, source, BeamSelector(3), request)[0] for text in texts]


def same(found: list[tuple[list[int], float]], wanted: list[tuple[list[int], float]]) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-4)


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
@torch.inference_mode()
def test_pairs_of_wrappers_that_change_nothing_find_the_same_texts(outer: str, inner: str) -> None:
    """Also above fusion with a weight, whose scores must be neither normalised nor shared by mistake."""
    model = small_model(OPTIONS, SIZE)
    fused = FusedDecoder(model.decoder, language_model(), 0.7, line_end=5)
    for below in (model.decoder, fused):
        wanted = search(below, nested_source(model, []))
        if (outer, inner) in REFUSED or ("shortlist" in (outer, inner) and below is fused):
            with pytest.raises(ConfigError, match="cannot be restricted to a shortlist"):
                NEUTRAL[outer](NEUTRAL[inner](below))
            continue
        decoder = NEUTRAL[outer](NEUTRAL[inner](below))
        assert decoder.scores == ("fusion" in (outer, inner) or below is fused)
        assert decoder.max_memory == model.decoder.max_memory and decoder.max_length == model.decoder.max_length
        weights = {key: value.clone() for key, value in decoder.state_dict().items()}
        for _ in range(2):
            same(search(decoder, nested_source(model, [outer, inner])), wanted)
        assert all(torch.equal(value, weights[key]) for key, value in decoder.state_dict().items())
        same(search(below, nested_source(model, [])), wanted)


@pytest.mark.parametrize("name", NEUTRAL)
@torch.inference_mode()
def test_a_coverage_penalty_counts_inside_and_outside_of_every_wrapper(name: str) -> None:
    model = small_model(OPTIONS, SIZE)
    wanted = search(CoverageDecoder(model.decoder, 0.6), nested_source(model, []))
    assert wanted != search(model.decoder, nested_source(model, []))
    same(search(NEUTRAL[name](CoverageDecoder(model.decoder, 0.6)), nested_source(model, [name])), wanted)
    same(search(CoverageDecoder(NEUTRAL[name](model.decoder), 0.6), nested_source(model, [name])), wanted)


@torch.inference_mode()
def test_a_shortlist_of_a_shortlist_has_tokens_of_both() -> None:
    model = small_model(OPTIONS, SIZE)
    few, fewer = torch.tensor([0, 1, 2, 3, 5, 6, 8]), torch.tensor([0, 1, 2, 3, 4, 6])
    nested = ShortlistDecoder(ShortlistDecoder(model.decoder, few), fewer)
    plain, source = ShortlistDecoder(model.decoder, few[fewer]), nested_source(model, [])
    same(search(nested, source), search(plain, source))


@torch.inference_mode()
def test_scores_of_given_texts_are_those_of_the_search() -> None:
    """The search adds up scores that do not sum to one; so does everything that scores a text."""
    model = small_model(OPTIONS, SIZE)
    fused = FusedDecoder(model.decoder, language_model(), 0.7, line_end=5)
    for decoder in (model.decoder, fused, NEUTRAL["ensemble"](fused)):
        names = ["ensemble"] if isinstance(decoder, EnsembleDecoder) else []
        limits = LengthLimits(*(torch.full((2,), value) for value in (6, 0)), torch.arange(2))
        request = SearchRequest(prefix=torch.full((2, 1), BOS), limits=limits, constraints=usual_constraints(0, 8))
        texts = [each[0] for each in run_search(decoder, nested_source(model, names), BeamSelector(3, penalty=0.0), request)[0]]
        scores = text_log_likelihoods(decoder, nested_source(model, names), [text.tokens for text in texts]).sum(1)
        assert scores.tolist() == pytest.approx([text.score for text in texts], abs=1e-4)


@torch.inference_mode()
def test_logits_of_a_pointer_belong_to_the_caller() -> None:
    torch.manual_seed(3)
    model = build_model({"kind": "pointer", "base": {**OPTIONS, "dim": 8}}, Sizes(SIZE, SIZE, shared=True)).eval()
    assert isinstance(model, Model)
    hidden = model(Source(torch.tensor([[4, 6, 5]])), torch.tensor([[BOS, 4]])).hidden
    before = hidden.clone()
    model.decoder.logits(hidden).fill_(0.0)
    assert torch.equal(hidden, before)
