"""Recurrent language models with attention to their past, against the equations of Daniluk et al. 2017 (arXiv:1702.04521).

The loop below is written from the paper: one row, one token and one earlier state at a time, in float64.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.attention.base import Attended
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.recurrent import RecurrentStack
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.language_model import LanguageModel
from weft.models.rnn import RecurrentDecoder, RecurrentLanguageDecoder
from weft.tasks.language_modeling.segment_recurrence import SegmentRecurrence

VOCABULARY, LENGTHS = 11, (17, 3, 9, 1)
STYLES: dict[str, dict[str, Any]] = {
    "plain": {"style": "plain", "dim": 6},
    "attention": {"attention": {"kind": "key_value", "parts": 1, "span": 4}, "dim": 6},
    "key-value": {"attention": {"kind": "key_value", "parts": 2, "span": 1}, "dim": 6},
    "predict": {"attention": {"kind": "key_value", "parts": 3, "span": 3}, "dim": 7},
    "predict-all": {"attention": {"kind": "key_value", "parts": 3, "span": 0}, "dim": 7},
    "4-gram": {"style": "ngram", "ngram": 4, "dim": 6},
}


def make(style: str) -> LanguageModel:
    torch.manual_seed(1)
    spec = {"kind": "rnn_language_model", "cell": "lstm", "embedding": 5, "dropout": 0.0, **STYLES[style]}
    model = build_model(spec, Sizes(VOCABULARY, VOCABULARY, shared=True))
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return model.double().eval()


def lstm(model: LanguageModel, row: Tensor) -> list[Tensor]:
    """The states h_1 … h_T (Hochreiter & Schmidhuber 1997, with a forget gate)."""
    decoder = model.decoder
    assert isinstance(decoder, RecurrentLanguageDecoder)
    weight = dict(decoder.stack.layers[0].named_parameters())
    h = c = torch.zeros(decoder.dim, dtype=torch.float64)
    states = []
    for token in row:
        x = decoder.embedding.table.weight[token] * math.sqrt(5)
        gates = weight["rnn.weight_ih_l0"] @ x + weight["rnn.bias_ih_l0"]
        gates = gates + weight["rnn.weight_hh_l0"] @ h + weight["rnn.bias_hh_l0"]
        i, f, g, o = gates.chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return states


@torch.no_grad()
def by_hand(model: LanguageModel, style: str, row: Tensor) -> Tensor:
    """The logits [T, V] of one row."""
    options, states, found = STYLES[style], lstm(model, row), []
    weight = dict(model.decoder.named_parameters())
    for t, h in enumerate(states):
        if options.get("style") == "plain":
            read = h
        elif options.get("style") == "ngram":
            # Section 2.4: [h¹_t; h²_{t−1}; h³_{t−2}], where states before the first are 0.
            before = [states[t - i] if t >= i else torch.zeros_like(h) for i in range(3)]
            read = torch.cat([before[i][2 * i : 2 * i + 2] for i in range(3)])
        else:
            read = attended(options["attention"], weight, states, t)
        # Equations 4, 10 and section 2.3: h* = tanh(W^r r + W^x x) of the context r and of x = h, v or p; equation 5.
        hidden = torch.tanh(weight["readout.mix.weight"] @ read + weight["readout.mix.bias"])
        found.append(weight["output.weight" if "output.weight" in weight else "embedding.table.weight"] @ hidden)
    return torch.stack(found)


def attended(options: dict[str, Any], weight: dict[str, Tensor], states: list[Tensor], t: int) -> Tensor:
    """[x; r]: what the prediction reads at time t."""
    parts, span, size = options["parts"], options["span"], len(states[0]) // options["parts"]
    split = {1: lambda h: (h, h, h), 2: lambda h: (h[:size], h[size:], h[size:])}.get(
        parts, lambda h: (h[:size], h[size : 2 * size], h[2 * size :])
    )
    key, _, x = split(states[t])
    past = [split(h) for h in states[max(0, t - span) if span else 0 : t]]
    r = torch.zeros(size, dtype=torch.float64)
    if past:
        # Equations 1 and 7: M = tanh(W^Y k_j + W^h k_t); equations 2 and 8: α = softmax(wᵀM); equations 3 and 9: r = Σ α_j v_j.
        own = weight["look.head.score.query.weight"] @ key + weight["look.head.score.query.bias"]
        inside = [torch.tanh(weight["look.head.score.key.weight"] @ k + own) for k, _, _ in past]
        energy = torch.stack([weight["look.head.score.score.weight"][0] @ each for each in inside])
        alpha = energy.exp() / energy.exp().sum()
        for share, (_, value, _) in zip(alpha, past, strict=True):
            r = r + share * value
    return torch.cat([x, r])


def drawn(rows: int, length: int) -> Tensor:
    return torch.randint(4, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("style", STYLES)
@torch.no_grad()
def test_the_model_is_its_equations(style: str) -> None:
    """In a padded batch, whatever the padding holds."""
    model, tokens, layout = make(style), drawn(4, 17), Layout.padded(LENGTHS)
    logits = model.decoder.logits(model(tokens, layout).hidden)
    for row, length in enumerate(LENGTHS):
        close(logits[row, :length], by_hand(model, style, tokens[row, :length]))


@pytest.mark.parametrize("style", STYLES)
@torch.no_grad()
def test_steps_and_segments_are_the_same_text(style: str) -> None:
    """Token by token with room for the search, and in segments that carry a state, as training and evaluation read a text."""
    model, tokens = make(style), drawn(2, 13)
    wanted = torch.stack([by_hand(model, style, row) for row in tokens])
    state, steps = model.decoder.init_state(model.nothing(2), room=16), []
    for token in tokens.split(1, 1):
        found = model.decoder(token, state)
        state = found.state
        steps.append(found.logits)
    close(torch.cat(steps, 1), wanted)
    for kind in ("state", "memory"):
        recurrence, carried, pieces = SegmentRecurrence(kind, 13), None, []
        for piece in tokens.split([6, 2, 5], 1):
            features, carried = recurrence.read(model, piece, carried)
            pieces.append(model.decoder.logits(features.hidden))
        close(torch.cat(pieces, 1), wanted)


def test_a_carried_state_has_a_fixed_size_with_a_span() -> None:
    SegmentRecurrence("state").check(make("predict"), 8)
    SegmentRecurrence("state").check(make("4-gram"), 8)
    with pytest.raises(ConfigError, match="the state grows with the text"):
        SegmentRecurrence("state").check(make("predict-all"), 8)


@pytest.mark.parametrize("style", ["luong", "bahdanau"])
def test_a_decoder_predicts_from_the_third_part_too(style: str) -> None:
    """Attention to a source: the output reads p and the context (section 2.3), in bahdanau style also the embedding."""
    torch.manual_seed(2)
    attention = {"kind": "key_value", "parts": 3}
    spec = {"kind": "rnn", "style": style, "dim": 8, "encoder_dim": 6, "attention": attention, "dropout": 0.0}
    model = build_model(spec, Sizes(VOCABULARY, VOCABULARY, shared=True)).eval()
    assert isinstance(model, Model) and isinstance(model.decoder, RecurrentDecoder) and model.decoder.cross is not None
    states, contexts, reads = list[Tensor](), list[Tensor](), list[Tensor]()
    decoder = model.decoder

    def keep(_: Any, __: Any, output: Attended) -> None:
        contexts.append(output.context)

    decoder.cross.register_forward_hook(keep)
    decoder.readout.register_forward_pre_hook(lambda _, given: reads.append(given[0]))
    note_outputs(decoder.stack, states)
    model(Source(drawn(2, 5)), drawn(2, 4))
    outputs = torch.cat([each if each.dim() == 3 else each[:, None] for each in states], 1)
    own, context = outputs[..., 4:], torch.cat(contexts, 1)
    assert reads[0].size(-1) == 4 + 2 + (8 if style == "bahdanau" else 0)
    torch.testing.assert_close(reads[0][..., :4], own)
    torch.testing.assert_close(reads[0][..., -2:], context)


def note_outputs(stack: RecurrentStack, states: list[Tensor]) -> None:
    """Keeps the outputs of the stack, of whole sequences and of single steps."""
    step = stack.step

    def noted(*given: Any) -> Any:
        output, layers = step(*given)
        states.append(output)
        return output, layers

    stack.step = noted  # type: ignore[method-assign]
    stack.register_forward_hook(lambda _, __, found: states.append(found[0]))


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "transformer", "cross": {"kind": "key_value", "parts": 3}},
        {"kind": "language_model", "decoder_self": {"kind": "key_value", "parts": 3}},
    ],
)
def test_models_that_do_not_read_the_third_part_refuse_it(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="parts: 3 is for models whose output reads the third part"):
        build_model(model, Sizes(VOCABULARY, VOCABULARY, shared=True))


def test_a_span_counts_back_in_the_same_text() -> None:
    with pytest.raises(ConfigError, match="span: it counts back from a token of the same text"):
        build_model({"kind": "rnn", "attention": {"kind": "key_value", "span": 3}}, Sizes(VOCABULARY, VOCABULARY, shared=True))
