"""The contract: every check for every entry of every table, in each use it declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.attention import ATTENTIONS
from weft.attention.base import Site, Use
from weft.attention.mixers import SELF, build_self
from weft.config.registry import build, load
from weft.errors import ConfigError
from weft_contract import suite
from weft_contract.mechanism_checks import check_refused, refusals
from weft_contract.mechanism_entries import DIM, HEADS, entries


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in suite.of_mechanisms()])
def test_mechanism(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in suite.of_decoders()])
def test_decoder(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in suite.of_language_models()])
def test_language_model(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in suite.of_poolings()])
def test_pooling(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(("kind", "options", "use"), [pytest.param(*case, id=f"{case[0]}-{case[2]}") for case in refusals()])
def test_refused_when_built(kind: str, options: dict[str, Any], use: Use) -> None:
    """Building a mechanism for a use that it does not support raises an error with the reason and an alternative."""
    check_refused(kind, options, use)


def test_a_refused_self_slot_names_the_kind() -> None:
    with pytest.raises(ConfigError, match="additive: AdditiveAttention does not support causal use, only cross"):
        build_self("additive", Site("causal", DIM, HEADS))


def test_rotary_needs_heads_of_even_width() -> None:
    with pytest.raises(ConfigError, match="head width must be even, not 5"):
        build("weft.attention:ATTENTIONS", {"kind": "full", "position": "rotary"}, Site("causal", 15, heads=3))


@pytest.mark.parametrize(
    ("kind", "option"), [("local", "window"), ("convolution", "width"), ("recurrent", "layers"), ("full", "rotary_base")]
)
def test_sizes_are_positive(kind: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: .*greater than 0"):
        build_self({"kind": kind, option: 0}, Site("causal", DIM, HEADS))


def test_every_line_of_the_tables_is_tested() -> None:
    """Each kind in all its uses, and each attention also in a self slot."""
    tested = {(entry.kind, entry.use, entry.wrapped) for entry in entries()}
    assert {(kind, use) for kind, use, wrapped in tested if not wrapped} == {
        (kind, use) for kind in SELF for use in load(SELF, kind).uses
    }
    assert {(kind, use) for kind, use, wrapped in tested if wrapped} == {
        (kind, use) for kind in ATTENTIONS for use in load(ATTENTIONS, kind).uses - {"cross"}
    }
