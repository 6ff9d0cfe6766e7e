"""The contract of decoders that wrap decoders: logits belong to the caller, and the wrapped decoder stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.reference.searching import small_model
from weft.data.batch import BOS, Source
from weft.decoding.coverage_penalty import CoverageDecoder
from weft.decoding.noisy_decoding import NoisyDecoder, in_chains
from weft.inference.shallow_fusion import FusedDecoder
from weft.models.base import Decoder, Encoded, Model, Sizes
from weft.models.composition import build_model
from weft.models.language_model import LanguageModel
from weft.models.wrapped_decoders import Ensemble, ShortlistDecoder, WrappedDecoder

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
