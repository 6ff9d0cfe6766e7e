"""Copying against the papers' formula, word by word: p(w) = p_gen P(w) + (1 − p_gen) Σ α_j over the places of w."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.attention.base import Attended
from weft.attention.core.weight_recorder import record
from weft.data.batch import BOS, EOS, PAD, UNK, Layout, Source
from weft.errors import ConfigError
from weft.losses.cross_entropy import IMPOSSIBLE, label_smoothed_cross_entropy
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.pointer_generator import PointerDecoder, PointerState, joined_mass, mixture

SIZE = 12
NEVER = float("-inf")

SOURCES = [[5, SIZE, 7, 5, SIZE + 1, SIZE, EOS], [9, 9, SIZE, EOS], [EOS]]
"""Repeated words, and unknown ones, which differ between sources."""

TARGETS = [[BOS, 7, SIZE, SIZE + 1, 5], [BOS, SIZE, 9, 4, 4], [BOS, 3, 6, 8, 10]]

RNN = {"kind": "rnn", "dim": 8, "dropout": 0.0}
SMALL = {"dim": 8, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
BASES: dict[str, tuple[dict[str, Any], str]] = {
    "bahdanau": (RNN, "decoder.base.cross"),
    "luong": ({**RNN, "style": "luong", "input_feeding": True, "attention": "general"}, "decoder.base.cross"),
    "local-p": ({**RNN, "attention": {"kind": "local_p", "window": 1}}, "decoder.base.cross"),
    "transformer": ({"kind": "transformer", "heads": 4, **SMALL}, "decoder.base.layers.1.cross"),
    "convs2s": ({"kind": "convs2s", "channels": 8, **SMALL}, "decoder.base.layers.1.cross"),
}


def made(base: dict[str, Any], **options: Any) -> Model:
    spec = {"kind": "pointer", "base": base, **options}
    model: Model = build_model(spec, Sizes(SIZE, SIZE, shared=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def batch() -> tuple[Tensor, Layout, Tensor]:
    layout = Layout.padded([len(source) for source in SOURCES])
    source = torch.tensor([[*row, *[PAD] * (layout.longest - len(row))] for row in SOURCES])
    return source, layout, torch.tensor(TARGETS)


def by_hand(generated: Tensor, gate: float, weights: Tensor, source: list[int]) -> Tensor:
    """The probabilities [V + S] after one target token, from P [V], p_gen and α [S]."""
    chances = [gate * float(chance) for chance in generated] + [0.0] * 7
    for place, word in enumerate(source):
        chances[word] += (1 - gate) * float(weights[place])
    return torch.tensor(chances) / sum(chances)


@pytest.mark.parametrize("kind", ["generator", "network"])
@pytest.mark.parametrize("name", BASES)
@torch.no_grad()
def test_every_word_has_the_probability_of_the_formula(name: str, kind: str) -> None:
    base, attention = BASES[name]
    generate = kind == "generator"
    model = made(base, generate=generate)
    decoder = model.decoder
    assert isinstance(decoder, PointerDecoder)
    source, layout, target = batch()
    found = model.decoder(target, model.decoder.init_state(model.encode(Source(source, layout)))).logits.softmax(-1)
    assert found.shape == (3, 5, SIZE + 7)
    known = source.masked_fill(source >= SIZE, UNK), target.masked_fill(target >= SIZE, UNK)
    inner, contexts = model.decoder.base, []
    hook = model.get_submodule(attention).register_forward_hook(lambda _, __, seen: contexts.append(seen.context))
    encoded = model.encoder.base(Source(known[0], layout))
    with record(model) as tape:
        hidden = inner.hidden_states(known[1], inner.init_state(encoded)).hidden
    hook.remove()
    weights, context = torch.cat(tape[attention], 2).mean(1), torch.cat(contexts, 1)
    gates = torch.sigmoid(torch.cat([hidden, context], -1) @ decoder.gate.weight[0] + decoder.gate.bias)
    end = torch.eye(SIZE)[EOS]
    for row, words in enumerate(SOURCES):
        for step in range(5):
            generated = inner.logits(hidden)[row, step].softmax(-1) if generate else end
            wanted = by_hand(generated, float(gates[row, step]), weights[row, step], words)
            torch.testing.assert_close(found[row, step], wanted, atol=1e-6, rtol=1e-4)
            possible = set(words) | (set(range(SIZE)) if generate else {EOS})
            assert {word for word in range(SIZE + 7) if found[row, step, word] > 0} <= possible
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 5))


def test_weights_are_joined_in_full_precision() -> None:
    """Three hundred small weights of one word, under autocast."""
    weights = torch.full((1, 1, 1, 300), 1 / 300)
    joins = torch.zeros(1, 300, 300)
    joins[..., 0] = 1
    state = PointerState(None, torch.zeros(1, 300, dtype=torch.long), joins)
    with torch.autocast("cpu", torch.bfloat16):
        mass = joined_mass([Attended(weights, weights=weights)], state)
    torch.testing.assert_close(mass[0, 0, 0], torch.tensor(1.0), atol=1e-5, rtol=0.0)


def test_a_layer_can_be_chosen() -> None:
    base, _ = BASES["transformer"]
    chosen = {layer: made(base, layer=layer).decoder for layer in (0, 1, -1, -2)}
    names = {layer: decoder.cross_name for layer, decoder in chosen.items() if isinstance(decoder, PointerDecoder)}
    assert names == {0: "layers.0.cross", -2: "layers.0.cross", 1: "layers.1.cross", -1: "layers.1.cross"}


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, gates, masses and columns: two known words, an unknown one, and an unused column."""
    logits = torch.randn(2, 3, 6, dtype=dtype)
    mass = torch.rand(2, 3, 4, dtype=dtype)
    mass[..., 3] = 0
    columns = torch.tensor([4, 2, 6, 10]).expand(2, 3, 4)
    return logits, torch.randn(2, 3, dtype=dtype), mass / mass.sum(-1, keepdim=True), columns


def test_gradients_by_differences() -> None:
    logits, gate, mass, columns = problem()
    inputs = [part.requires_grad_() for part in (logits, gate)]

    def chances(logits: Tensor, gate: Tensor, scores: Tensor) -> Tensor:
        weights = torch.nn.functional.pad(scores.softmax(-1), (0, 1))
        return mixture(logits, gate, weights, columns).softmax(-1)

    assert torch.autograd.gradcheck(chances, (*inputs, mass[..., :3].log().requires_grad_()))


@pytest.mark.parametrize("gate", [-1e4, -50.0, 0.0, 50.0, 1e4])
@pytest.mark.parametrize("weight", [0.0, 1e-42, 1.0])
@pytest.mark.parametrize("label", [1, 2, 6, 7])
def test_gradients_are_finite_at_the_extremes(gate: float, weight: float, label: int) -> None:
    """Closed gates, weights of 0 and below the smallest float; labels that are generated, both, copied, or impossible."""
    logits, _, mass, columns = problem(torch.float32)
    gates = torch.full((2, 3), gate, requires_grad=True)
    weights = torch.zeros_like(mass)
    weights[..., 2] = weight
    weights.requires_grad_()
    found = mixture(logits.requires_grad_(), gates, weights, columns)
    loss, nll = label_smoothed_cross_entropy(found, torch.full((2, 3), label), 0.1)
    loss.backward()
    assert loss.isfinite() and nll <= 6 * 2e4
    for part in (logits, gates, weights):
        assert part.grad is not None and part.grad.isfinite().all()


def test_what_cannot_be_said_costs_much_and_takes_no_share_of_the_smoothing() -> None:
    logits = torch.tensor([[[1.0, NEVER, 2.0, 0.5, NEVER]]], requires_grad=True)
    loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([[4]]), 0.0)
    assert float(nll) == IMPOSSIBLE
    loss.backward()
    assert logits.grad is not None and not logits.grad.any()
    loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([[2]]), 0.1)
    logp = logits[0, 0, [0, 2, 3]].log_softmax(-1)
    torch.testing.assert_close(loss, -0.9 * logp[1] - 0.1 * logp.mean())


def refused(says: str, base: dict[str, Any], shared: bool = True, **options: Any) -> None:
    spec = {"kind": "pointer", "base": base, **options}
    with pytest.raises(ConfigError, match=says):
        build_model(spec, Sizes(SIZE, SIZE, shared))


def test_what_cannot_point_is_refused_when_built() -> None:
    refused("no attention over the source", {"kind": "bytenet", "dim": 8})
    refused("no attention over the source", {**RNN, "style": "fixed"})
    refused("LinearAttention shows no weights", {**RNN, "attention": "linear"})
    refused("there is no attention 2", BASES["transformer"][0], layer=2)
    refused("cannot be the base of a pointer", {"kind": "pointer"})
    refused("shared_vocabulary: true", {**RNN, "share_embeddings": "output"}, shared=False)
    assert isinstance(made(BASES["transformer"][0], layer=1).decoder, PointerDecoder)
