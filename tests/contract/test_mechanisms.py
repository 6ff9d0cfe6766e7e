"""The contract, for every attention and every mixer in each use it declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contract import facts, masking, stepping
from contract.entries import DIM, HEADS, Entry, entries, refusals
from weft.attention import ATTENTIONS
from weft.attention.base import Site, Use
from weft.errors import ConfigError
from weft.mixers import SELF, build_self
from weft.registry import build

ALL, CAUSAL, STEPWISE = ("encoder", "causal", "cross"), ("causal",), ("causal", "cross")

CHECKS: dict[str, tuple[Callable[[Entry], None], tuple[str, ...]]] = {
    "padding-content": (masking.check_padding_content, ALL),
    "padding-length": (masking.check_padding_length, ALL),
    "future": (masking.check_future, CAUSAL),
    "reach": (masking.check_reach, ALL),
    "alive": (masking.check_alive, ALL),
    "empty-row": (masking.check_empty_row, ALL),
    "packed": (masking.check_packed, ALL),
    "shapes": (facts.check_shapes, ALL),
    "weights": (facts.check_weights, ALL),
    "step-weights": (facts.check_step_weights, CAUSAL),
    "earlier-segment": (facts.check_earlier_segment, CAUSAL),
    "gradients": (facts.check_gradients, ALL),
    "key-order": (facts.check_key_order, ALL),
    "terms": (facts.check_terms, ALL),
    "pure": (facts.check_pure, ALL),
    "checkpoint": (facts.check_checkpoint, ALL),
    "half": (facts.check_half, ALL),
    "half-steps": (facts.check_half_steps, CAUSAL),
    "chunks": (stepping.check_chunks, STEPWISE),
    "rows": (stepping.check_rows, STEPWISE),
    "ragged": (stepping.check_ragged, STEPWISE),
    "beams": (stepping.check_beams, STEPWISE),
    "wide-beams": (stepping.check_wide_beams, STEPWISE),
}
"""name → the check and the uses it is about."""


def cases() -> list[Any]:
    found = []
    for entry in entries():
        left_out = _left_out(entry)
        for name, (check, uses) in CHECKS.items():
            if entry.use in uses and name not in left_out:
                found.append(pytest.param(check, entry, id=f"{entry}-{name}"))
    return found


def _left_out(entry: Entry) -> set[str]:
    """Packing is asked only of those that declare it, and only attentions take memory when they start."""
    return {name for name, asked in (("packed", entry.facts.packs), ("earlier-segment", entry.direct)) if not asked}


@pytest.mark.parametrize(("check", "entry"), cases())
def test_contract(check: Callable[[Entry], None], entry: Entry) -> None:
    check(entry)


@pytest.mark.parametrize(("kind", "options", "use"), [pytest.param(*case, id=f"{case[0]}-{case[2]}") for case in refusals()])
def test_refused_when_built(kind: str, options: dict[str, Any], use: Use) -> None:
    """Asking for a use that a mechanism does not have fails with a sentence, before anything runs."""
    table = "weft.attention:ATTENTIONS" if kind in ATTENTIONS else "weft.mixers:SELF"
    with pytest.raises(ConfigError, match=r"\w+ \w+ \w+"):
        build(table, {"kind": kind, **options}, Site(use, DIM, HEADS))


def test_a_refused_self_slot_names_the_kind() -> None:
    with pytest.raises(ConfigError, match=r"additive: .*cannot serve as causal"):
        build_self("additive", Site("causal", DIM, HEADS))


def test_rotary_needs_heads_of_even_width() -> None:
    with pytest.raises(ConfigError, match="even"):
        build("weft.attention:ATTENTIONS", {"kind": "full", "position": "rotary"}, Site("causal", 15, heads=3))


def test_every_line_of_the_tables_is_tested() -> None:
    tested = {(entry.kind, entry.wrapped) for entry in entries()}
    assert {kind for kind, wrapped in tested if not wrapped} == set(SELF)
    assert {kind for kind, wrapped in tested if wrapped} == {kind for kind in ATTENTIONS if kind != "additive"}
