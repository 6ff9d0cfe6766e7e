"""Garbage collection, less often."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from weft.collecting import OBJECTS, rarely


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "inside"), [(700, OBJECTS), (10 * OBJECTS, 10 * OBJECTS), (0, 0)])
def test_collections_are_rarer_inside_and_as_before_afterwards(before: int, inside: int) -> None:
    gc.set_threshold(before, 9, 8)
    with rarely():
        assert gc.get_threshold() == (inside, 9, 8)
    assert gc.get_threshold() == (before, 9, 8)
