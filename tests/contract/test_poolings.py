"""The contract of every pooling."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract import poolings
from contract.poolings import PoolingEntry

CHECKS: dict[str, Callable[[PoolingEntry], None]] = {
    "padding": poolings.check_padding,
    "alive": poolings.check_alive,
    "empty-row": poolings.check_empty_row,
    "weights": poolings.check_weights,
    "gradients": poolings.check_gradients,
    "key-order": poolings.check_key_order,
    "pure": poolings.check_pure,
    "half": poolings.check_half,
}


@pytest.mark.parametrize(
    ("check", "entry"),
    [pytest.param(check, entry, id=f"{entry}-{name}") for entry in poolings.poolings() for name, check in CHECKS.items()],
)
def test_contract(check: Callable[[PoolingEntry], None], entry: PoolingEntry) -> None:
    check(entry)
