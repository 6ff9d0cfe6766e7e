"""The contract of every model's decoder, with every mechanism in its slots."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract import decoders, stepping
from contract.decoders import DecoderEntry

CHECKS: dict[str, Callable[[DecoderEntry], None]] = {
    "chunks": stepping.check_chunks,
    "rows": stepping.check_rows,
    "ragged": stepping.check_ragged,
    "beams": stepping.check_beams,
    "wide-beams": stepping.check_wide_beams,
    "padding": decoders.check_padding,
    "causality": decoders.check_causality,
    "packed": decoders.check_packed,
    "loss": decoders.check_loss,
    "pure": decoders.check_pure,
    "half": decoders.check_half,
}


@pytest.mark.parametrize(
    ("check", "entry"),
    [
        pytest.param(check, entry, id=f"{entry}-{name}")
        for entry in decoders.decoders()
        for name, check in CHECKS.items()
        if name != "packed" or entry.make().packs
    ],
)
def test_contract(check: Callable[[DecoderEntry], None], entry: DecoderEntry) -> None:
    check(entry)
