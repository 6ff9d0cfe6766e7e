"""Uses that a mechanism does not support: building it must raise an error with the reason and an alternative."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, get_args

import pytest

from weft.attention.base import Site, Use
from weft.attention.mixers import SELF
from weft.config.registry import build, find_table
from weft.errors import ConfigError
from weft_contract.entries import DIM, HEADS, REFUSED, facts_of


def refusals(kinds: Collection[str] = SELF) -> Iterator[tuple[str, dict[str, Any], Use]]:
    """(kind, options, use) for every use that a kind does not support, or that its options rule out."""
    for kind in kinds:
        yield from ((kind, {}, use) for use in get_args(Use) if use not in facts_of(kind).uses)
    yield from (case for case in REFUSED if case[0] in kinds)


def check_refused(kind: str, options: dict[str, Any], use: Use) -> None:
    table = "weft.attention:ATTENTIONS"
    if kind not in find_table(table):
        table = "weft.attention.mixers:SELF"
    with pytest.raises(ConfigError) as caught:
        build(table, {"kind": kind, **options}, Site(use, DIM, HEADS))
    facts = facts_of(kind)
    if use in facts.uses and "position" not in options:
        assert any(f"{name}: " in str(caught.value) for name in options), f"{kind}: no option is named: {caught.value}"
        return
    if use in facts.uses:
        name, value = next(iter(options.items()))
        wanted = [f"position: {value}", "use position: none"] if name == "position" else [name]
    else:
        wanted = [
            facts.__name__,
            f"does not support {use} use, only {' or '.join(sorted(facts.uses))}",
            facts.instead.get(use, ""),
        ]
    missing = [words for words in wanted if words not in str(caught.value)]
    assert not missing, f"{kind}: the error does not say {missing}: {caught.value}"
