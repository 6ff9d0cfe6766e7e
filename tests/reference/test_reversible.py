"""Reversible layers: the gradients of the plain two streams, with dropout, and no stored activations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from weft.attention.base import add_extras
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.decoder_state import leaves
from weft.layers.reversible import Added, ReversibleStreams, SubLayer, run_reversible
from weft.models import transformer
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model

SOURCE, TARGET = (19, 7, 12), (16, 23, 1)
LSH: dict[str, Any] = {"kind": "lsh", "window": 4, "buckets": 4}


def model(layers: int = 3, dropout: float = 0.2, **options: Any) -> transformer.Transformer:
    torch.manual_seed(1)
    sizes = {"dim": 16, "heads": 2, "feedforward": 24, "encoder_layers": layers, "decoder_layers": layers}
    shares = {"dropout": dropout, "attention_dropout": dropout, "feedforward_dropout": dropout}
    spec = {"kind": "transformer", "reversible": True, **sizes, **shares, **options}
    return build_model(spec, Sizes(19, 19, shared=True)).train()


def plain(x: Tensor, sublayers: Sequence[SubLayer]) -> ReversibleStreams:
    """The two streams by definition, with autograd."""
    a, b, extras, states = x, x, dict[str, Tensor](), []
    for sublayer in sublayers:
        added = sublayer.run(b)
        a, b = b, a + added.value
        add_extras(extras, added.extras)
        states.append(added.state)
    return ReversibleStreams(a, b, extras, states)


def loss(subject: transformer.Transformer) -> Tensor:
    torch.manual_seed(2)
    source, target = torch.randint(3, 19, (3, max(SOURCE))), torch.randint(3, 19, (3, max(TARGET)))
    layout = Layout.padded(TARGET)
    torch.manual_seed(3)
    state = subject.decoder.init_state(subject.encode(Source(source, Layout.padded(SOURCE))))
    found = subject.decoder.hidden_states(target, state, layout)
    wanted = torch.randn(found.hidden.shape, generator=torch.Generator().manual_seed(4)).to(found.hidden)
    total = (found.hidden * wanted)[layout.mask].sum()
    return total + sum((term[layout.mask].sin().sum() for term in found.extras.values()), torch.zeros(()).to(total))


def gradients(subject: transformer.Transformer) -> dict[str, Tensor]:
    subject.zero_grad()
    value = loss(subject)
    value.backward()
    grads = {name: weight.grad.clone() for name, weight in subject.named_parameters() if weight.grad is not None}
    assert len(grads) == len(list(subject.parameters()))
    return {"loss": value.detach(), **grads}


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "lsh": {"encoder_self": LSH, "decoder_self": LSH},
    "sinkhorn": {"encoder_self": {"kind": "sinkhorn", "block": 4}, "decoder_self": {"kind": "sinkhorn", "block": 4}},
    "extras": {"cross": {"kind": "location_aware", "coverage": True}},
    "convolution": {"feedforward_width": 3, "decoder_self": {"kind": "convolution"}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_gradients_are_those_of_the_plain_streams(kind: str, precision: str) -> None:
    """With dropout, so every sub-layer must repeat its draws; for weights of both stacks, so through the memory too."""
    subject = model(**KINDS[kind]).to(getattr(torch, precision))
    found = gradients(subject)
    with patch.object(transformer, "run_reversible", plain):
        wanted = gradients(subject)
    allowed = {"float32": 5e-6, "float64": 1e-12}[precision]
    for name, grad in wanted.items():
        error = ((found[name] - grad).abs().max() / grad.abs().max().clamp_min(1)).item()
        assert error < allowed, f"{name} is off by {error:.1e}"


def test_what_is_drawn_after_the_backward_pass_is_what_would_have_been() -> None:
    value = loss(model())
    before = torch.get_rng_state()
    value.backward()
    assert torch.equal(before, torch.get_rng_state())


def kept(layers: int, **options: Any) -> int:
    """Bytes saved for the backward pass, without weights."""
    subject = model(layers, **options)
    weights = {weight.untyped_storage().data_ptr() for weight in subject.state_dict().values()}
    sizes: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        value = loss(subject)
    assert value.requires_grad
    return sum(sizes.values())


def test_activation_memory_does_not_grow_with_depth() -> None:
    assert kept(8) <= kept(2)
    assert kept(8, encoder_self=LSH, decoder_self=LSH) <= kept(2, encoder_self=LSH, decoder_self=LSH)
    assert kept(8, reversible=False) > 3 * kept(2, reversible=False)
    assert kept(2) < kept(2, reversible=False) / 3


def test_half_precision_is_had_back_as_it_was() -> None:
    """Backward runs outside autocast, as in training, and recomputes each sub-layer inside it."""
    subject = model(layers=4)
    exact = gradients(subject)
    subject.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(subject)
    value.backward()
    for name, weight in subject.named_parameters():
        assert weight.grad is not None
        error = ((weight.grad - exact[name]).norm() / exact[name].norm().clamp_min(1e-3)).item()
        assert error < 0.15, f"{name} is off by {error:.1%}"


def test_sub_layers_are_undone_under_the_autocast_they_ran_under() -> None:
    layers, seen = [nn.Linear(4, 4), nn.Linear(4, 4)], []

    def run(layer: nn.Linear, x: Tensor) -> Added:
        found = layer(x)
        seen.append(found.dtype)
        return Added(found)

    with torch.autocast("cpu", torch.bfloat16):
        streams = run_reversible(torch.randn(2, 3, 4), [SubLayer(partial(run, layer), [layer]) for layer in layers])
    streams.mean.sum().backward()
    assert seen == [torch.bfloat16] * 4


def test_states_hold_no_graph() -> None:
    subject = model()
    state = subject.decoder.init_state(subject.encode(Source(torch.full((2, 5), 4))))
    after = subject.decoder.hidden_states(torch.full((2, 3), 4), state).state
    assert leaves(after.own)
    assert not any(leaf.requires_grad for leaf in leaves(after))


def test_clusters_learn_the_same_whether_or_not_layers_run_twice() -> None:
    routing = {"kind": "routing", "clusters": 3, "window": 4}
    found = []
    for reversible in (True, False):
        subject = model(1, dropout=0.0, reversible=reversible, encoder_self=routing)
        loss(subject).backward()
        mixer = subject.encoder.layers[0].mixer
        mixer.refresh(torch.Generator())
        found.append(mixer.centroids)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", [{"norm": "post"}, {"wiring": "same"}, {"wiring": "mix"}])
def test_what_cannot_be_undone_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="reversible needs norm: pre and wiring: last"):
        model(**options)


def test_weights_in_bf16_decode_without_gradients() -> None:
    """As on a GPU, where the weights of a model that only decodes are in bf16."""
    subject = model(dropout=0.0).eval()
    source = Source(torch.randint(3, 19, (3, max(SOURCE))), Layout.padded(SOURCE))
    with torch.inference_mode():
        wanted = subject.encode(source).memory
        found = subject.bfloat16().encode(source).memory
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=0.1, rtol=0.1)
