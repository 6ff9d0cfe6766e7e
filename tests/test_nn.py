"""weft.nn: every mechanism as a plain module gives the same as its full interface, whatever is masked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import weft.nn
from tests.helpers.documents import ROOT, Block, blocks, python_source
from weft.attention.base import Site
from weft.attention.mixers import build_self
from weft.config.registry import build, find_table, load
from weft.data.batch import Layout
from weft.errors import ConfigError, InputError
from weft_contract.mechanism_entries import REFUSED, VARIANTS, perturbed, same, vectors

DIM, HEADS, MEMORY, QUERIES, KEYS = 16, 4, 24, 5, 13
LENGTHS = (13, 4, 1)
MASK = Layout.padded(LENGTHS).mask
SCATTERED = torch.rand(3, KEYS, generator=torch.Generator().manual_seed(3)) < 0.6
"""Keys and padding in any order."""

Spec = dict[str, Any]


def specs(table: str, use: str) -> Iterator[Any]:
    """Every kind of a table, built in or installed, with its defaults and with the options that the contract suite tries."""
    for kind in find_table(table):
        for name, options in {"": {}, **VARIANTS.get(kind, {})}.items():
            options = {key: value for key, value in options.items() if not key.startswith("site.")}
            refused = [*REFUSED, ("key_value", {"parts": 3}, "causal")]  # its third part is for the model's own prediction
            if use in load(find_table(table), kind).uses and (kind, options, use) not in refused:
                yield pytest.param({"kind": kind, **options}, id="-".join(filter(None, [kind, name, use])))


CROSS = list(specs("weft.attention:CROSS", "cross"))
ENCODER, CAUSAL = (list(specs("weft.attention.mixers:SELF", use)) for use in ("encoder", "causal"))


def cross(spec: Spec) -> tuple[weft.nn.Attention, Tensor, Tensor]:
    """A layer, queries and keys. Only multistep needs keys of the width of queries."""
    torch.manual_seed(0)
    width = DIM if spec["kind"] == "multistep" else MEMORY
    layer = weft.nn.Attention(spec, DIM, memory_dim=width, heads=HEADS)
    return perturbed(layer, 0.1), vectors(3, QUERIES, DIM, 1), vectors(3, KEYS, width, 2)


@pytest.mark.parametrize("spec", CROSS)
def test_attention_gives_what_the_full_interface_gives(spec: Spec) -> None:
    layer, query, keys = cross(spec)
    site = Site("cross", DIM, HEADS, memory=keys.size(-1), predicts=True)
    full = build("weft.attention:CROSS", spec, site).eval()
    full.load_state_dict(layer.mechanism.state_dict())
    memory = torch.cat([keys, keys], -1) if spec["kind"] == "multistep" else keys
    for mask in (None, MASK):
        layout = None if mask is None else Layout.padded(LENGTHS, KEYS)
        expected = full(query, full.init_state(memory, layout), need_weights=True)
        context, weights = layer(query, keys, keys, mask)
        same(context, expected.context, "context")
        assert context.size(-1) == layer.context_dim
        assert (weights is None) == (full.weights_sum is None)
        if weights is not None:
            same(weights, expected.weights, "weights")
            same(layer(query, keys, mask=mask, need_weights=False)[0], context, "without weights and values")
            assert layer(query, keys, mask=mask, need_weights=False)[1] is None


@pytest.mark.parametrize("spec", CROSS)
def test_masked_keys_count_as_absent_wherever_they_are(spec: Spec) -> None:
    layer, query, keys = cross(spec)
    context, weights = layer(query, keys, keys, SCATTERED)
    for row, mask in enumerate(SCATTERED):
        alone, shown = layer(query[row : row + 1], keys[row : row + 1, mask])
        same(context[row : row + 1], alone, f"row {row}")
        if weights is not None:
            assert not weights[row][..., ~mask].any()
            same(weights[row : row + 1][..., mask], shown, f"weights of row {row}")


@pytest.mark.parametrize("spec", CROSS)
def test_values_are_averaged_and_do_not_decide_where_to_look(spec: Spec) -> None:
    """The context is affine in the values, and the weights depend on the keys alone."""
    layer, query, keys = cross(spec)
    one, two = vectors(3, KEYS, keys.size(-1), 4), vectors(3, KEYS, keys.size(-1), 5)
    (first, weights), (second, others), (both, _), (none, _) = (
        layer(query, keys, values, SCATTERED) for values in (one, two, one + two, torch.zeros_like(one))
    )
    same(first + second - none, both, "affine in the values", atol=1e-4)
    assert not torch.allclose(first, second)
    if weights is not None:
        assert torch.equal(weights, others)
        same(weights, layer(query, keys, keys, SCATTERED)[1], "weights of the keys")
    if spec["kind"] in ("additive", "general", "location_aware", "monotonic"):
        assert weights is not None
        same(first, weights[:, 0] @ one, "weights times values")


@pytest.mark.parametrize("spec", CROSS)
def test_a_memory_continues_after_earlier_queries(spec: Spec) -> None:
    layer, query, keys = cross(spec)
    whole, _ = layer(query, keys, keys, SCATTERED)
    memory = layer.memory(keys, keys, SCATTERED)
    steps = [memory(query[:, t : t + 1])[0] for t in range(QUERIES)]
    same(torch.cat(steps, 1), whole, "step by step")


@pytest.mark.parametrize(("causal", "spec"), [(False, *p.values) for p in ENCODER] + [(True, *p.values) for p in CAUSAL])
def test_self_attention_gives_what_the_full_interface_gives(causal: bool, spec: Spec) -> None:
    torch.manual_seed(0)
    layer = perturbed(weft.nn.SelfAttention(spec, DIM, heads=HEADS, causal=causal), 0.1)
    full = build_self(spec, Site("causal" if causal else "encoder", DIM, HEADS)).eval()
    full.load_state_dict(layer.mechanism.state_dict())
    x, layout = vectors(3, KEYS, DIM, 1), Layout.padded(LENGTHS, KEYS)
    for mask in (None, MASK):
        own = None if mask is None else layout
        expected = full(x, full.init_state(rows=3), layout=own, need_weights=True)
        found, weights = layer(x, mask), layer.weights(x, mask)
        real = torch.ones_like(MASK) if mask is None else mask
        same(found[real], expected.context[real], "outputs")
        assert found.shape == x.shape and (weights is None) == (full.weights_sum is None)
        if weights is not None:
            same(weights, expected.weights, "weights")
    found, weights = layer(x, SCATTERED), layer.weights(x, SCATTERED)
    for row, mask in enumerate(SCATTERED):
        kept = x[row : row + 1, mask]
        same(found[row : row + 1, mask], layer(kept), f"row {row}")
        if weights is not None:
            same(weights[row : row + 1][..., mask, :][..., mask], layer.weights(kept), f"weights of row {row}")
            assert not weights[row][..., ~mask].any()


def test_wrong_tensors_and_names_are_refused() -> None:
    layer, x = weft.nn.Attention("general", DIM, memory_dim=MEMORY), torch.zeros(2, 3, DIM)
    keys = torch.zeros(2, 4, MEMORY)
    with pytest.raises(InputError, match=r"query must be \[rows, length, 16\], not \[2, 16\]"):
        layer(x[:, 0], keys)
    with pytest.raises(InputError, match=r"keys must be \[rows, length, 24\]"):
        layer(x, x)
    with pytest.raises(InputError, match="values must have the shape of the keys"):
        layer(x, keys, keys[:, :2])
    with pytest.raises(InputError, match=r"mask must be bool \[2, 4\], True where there is a token, not torch.float32"):
        layer(x, keys, keys, torch.ones(2, 4))
    with pytest.raises(InputError, match="2 rows of queries, but 1 of keys"):
        layer(x, keys[:1])
    with pytest.raises(ConfigError, match="did you mean 'general'"):
        weft.nn.Attention("generl", DIM)
    with pytest.raises(ConfigError, match="does not support cross use"):
        weft.nn.Attention("local", DIM)
    with pytest.raises(ConfigError, match="window: "):
        weft.nn.SelfAttention("local", DIM, window=-1)
    with pytest.raises(ConfigError, match="multistep projects nothing"):
        weft.nn.Attention("multistep", DIM, memory_dim=MEMORY)(x, keys)


def test_a_mechanism_without_values_of_its_own_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attention of another package may read one memory only."""
    layer, query, keys = cross({"kind": "general"})
    read = layer.mechanism.read
    monkeypatch.setattr(layer.mechanism, "read", lambda memory, layout: read(memory, layout))
    assert layer(query, keys, keys)[0].shape == (3, QUERIES, MEMORY)
    with pytest.raises(ConfigError, match="leave out `values`"):
        layer(query, keys, keys + 1)


def test_extras_and_buffers_are_within_reach() -> None:
    """What REINFORCE needs of hard attention, and new random features after a step."""
    torch.manual_seed(0)
    layer = weft.nn.Attention("hard", DIM)
    layer(vectors(2, 3, DIM, 1), vectors(2, 4, DIM, 2))
    assert layer.extras["log_prob"].shape == (2, 3)
    performer = weft.nn.SelfAttention("performer", DIM, heads=2, redraw=1)
    before = performer(x := vectors(2, 3, DIM, 1))
    performer.refresh(torch.Generator().manual_seed(1))
    assert not torch.equal(before, performer(x))


PAGE = ROOT / "docs" / "own-models.md"


@pytest.mark.parametrize("block", [block for block in blocks(PAGE.read_text("utf-8"), PAGE.name) if block.language == "python"])
def test_the_examples_of_the_page_run(block: Block) -> None:
    """The second one trains a recurrent network with an attention on top, and must learn its task."""
    names: dict[str, Any] = {}
    exec(compile(python_source(block), block.place, "exec"), names)
    assert names.get("accuracy", 1.0) > 0.9
