"""Garbage collection, less often."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from weft.garbage_collection import OBJECTS, SERVED, collect_in_short_pauses, collect_rarely, paused_at_startup


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "inside"), [(700, OBJECTS), (10 * OBJECTS, 10 * OBJECTS), (0, 0)])
def test_collections_are_rarer_inside_and_as_before_afterwards(before: int, inside: int) -> None:
    gc.set_threshold(before, 9, 8)
    with collect_rarely():
        assert gc.get_threshold() == (inside, 9, 8)
    assert gc.get_threshold() == (before, 9, 8)


def test_what_a_program_makes_at_its_start_is_not_looked_at_later() -> None:
    gc.set_threshold(700)
    before = gc.get_freeze_count()
    with paused_at_startup():
        assert gc.isenabled(), "a library leaves this to its caller"
    assert gc.get_freeze_count() == before
    try:
        with collect_rarely(), paused_at_startup():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_a_server_collects_garbage_in_short_pauses() -> None:
    gc.set_threshold(OBJECTS, 9, 8)
    with collect_in_short_pauses():
        assert gc.get_threshold() == (SERVED, 9, 8) and gc.get_freeze_count() > 10_000
    assert gc.get_threshold() == (OBJECTS, 9, 8) and gc.get_freeze_count() == 0
