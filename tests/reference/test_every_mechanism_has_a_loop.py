"""Every mechanism equals the loop written from its paper, in float64 and on padded rows; none is without a loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.reference import formulas_features, formulas_mixers, formulas_single_head, formulas_softmax
from tests.reference.formulas import FORMULAS, Formula, Sentence
from weft.attention import ATTENTIONS
from weft.attention.base import Site
from weft.attention.mixers import MIXERS, SELF, build_self
from weft.config.registry import build, load
from weft.data.batch import Layout
from weft.models import POOLINGS
from weft.models.pooling import build_pooling

SOURCES = (formulas_softmax, formulas_features, formulas_single_head, formulas_mixers)
"""The modules that register formulas when they are imported."""

ELSEWHERE = {
    "performer": "test_running_sums.py",
    "random": "test_patterns.py",
    "bigbird": "test_patterns.py",
    "lsh": "test_sorting_attention.py",
    "routing": "test_sorting_attention.py",
    "monotonic": "test_aligned_attention.py",
    "key_value": "test_recurrent_attention.py",
}
"""Mechanisms that draw or choose, whose loops are in files of their own."""

DIM, HEADS, MEMORY = 8, 2, 6
LENGTHS, QUERIES, EXTENT = (7, 4), 5, 8
PADDING = 9.0
"""Padding has values, so that a mechanism that reads it differs."""

CASES = [
    pytest.param(kind, formula, use, id=f"{kind}-{use}{number or ''}")
    for kind, formulas in FORMULAS.items()
    if kind not in POOLINGS
    for number, formula in enumerate(formulas)
    for use in sorted(load(SELF, kind).uses)
]


def test_every_mechanism_has_a_loop() -> None:
    """A new mechanism needs a formula with the place in its paper."""
    kinds = {*ATTENTIONS, *MIXERS, *POOLINGS}
    assert not kinds - {*FORMULAS, *ELSEWHERE}, "write a loop in tests/reference/formulas_….py"
    assert not {*FORMULAS, *ELSEWHERE} - kinds
    for kind, file in ELSEWHERE.items():
        assert kind in (Path(__file__).parent / file).read_text("utf-8").lower()


@pytest.mark.parametrize("formula", [each for some in FORMULAS.values() for each in some], ids=lambda each: each.paper[:30])
def test_a_loop_says_where_its_formula_stands(formula: Formula) -> None:
    assert any(word in formula.paper for word in ("equation", "section", "no paper"))


def prepare(part: nn.Module) -> tuple[Any, dict[str, Any]]:
    """The part in float64 with every weight moved from its initial value, and these weights."""
    with torch.no_grad():
        for parameter in part.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    part = part.double().eval()
    weights = {name.removeprefix("attention."): value.numpy() for name, value in part.state_dict().items()}
    if "directions.bits" in weights:  # a buffer of float32 bits
        weights["directions"] = weights["directions.bits"].view(np.float32).astype(np.float64)
    return part, weights


def padded(lengths: tuple[int, ...], width: int) -> tuple[Tensor, Layout]:
    layout = Layout.padded(list(lengths), EXTENT)
    tokens = torch.randn(len(lengths), EXTENT, width, dtype=torch.float64)
    return torch.where(layout.mask[..., None], tokens, PADDING), layout


@torch.no_grad()
@pytest.mark.parametrize(("kind", "formula", "use"), CASES)
def test_a_mechanism_is_its_loop(kind: str, formula: Formula, use: Any) -> None:
    spec, site = {"kind": kind, **formula.options}, Site(use, DIM, HEADS, memory=MEMORY if use == "cross" else None)
    if use == "cross":
        part, weights = prepare(build("weft.attention:ATTENTIONS", spec, site))
        memory, layout = padded(LENGTHS, MEMORY)
        queries = torch.randn(len(LENGTHS), QUERIES, DIM, dtype=torch.float64)
        found = part(queries, part.init_state(memory, layout)).context
        rows = [(queries[row], memory[row, :length], QUERIES) for row, length in enumerate(LENGTHS)]
    else:
        part, weights = prepare(build_self(spec, site))
        x, layout = padded(LENGTHS, DIM)
        found = part(x, part.init_state(rows=len(LENGTHS)), layout=layout).context
        rows = [(x[row, :length], x[row, :length], length) for row, length in enumerate(LENGTHS)]
    for row, (tokens, memory, length) in enumerate(rows):
        sentence = Sentence(weights, tokens.numpy(), memory.numpy(), use == "causal", HEADS, formula.options)
        np.testing.assert_allclose(found[row, :length].numpy(), formula.loop(sentence), rtol=0, atol=formula.tolerance)


@torch.no_grad()
@pytest.mark.parametrize("kind", POOLINGS)
def test_a_pooling_is_its_loop(kind: str) -> None:
    for formula in FORMULAS[kind]:
        part, weights = prepare(build_pooling({"kind": kind, **formula.options}, DIM, where=kind, labels=3))
        memory, layout = padded(LENGTHS, DIM)
        found = part(memory, layout).vectors
        for row, length in enumerate(LENGTHS):
            tokens = memory[row, :length].numpy()
            sentence = Sentence(weights, tokens, tokens, False, HEADS, formula.options)
            np.testing.assert_allclose(found[row].numpy(), formula.loop(sentence), rtol=0, atol=formula.tolerance)


def test_a_wrong_formula_is_noticed() -> None:
    """A loop that sees other tokens gives something else, so the comparison above is not empty."""
    _, weights = prepare(build_self({"kind": "full"}, Site("encoder", DIM, HEADS)))
    x = np.random.default_rng(0).normal(size=(4, DIM))
    sentence = Sentence(weights, x, x, False, HEADS, {})
    loop = FORMULAS["full"][0].loop
    assert not np.allclose(loop(sentence), loop(replace(sentence, causal=True)))
