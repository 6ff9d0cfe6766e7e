"""A test that cannot fail is a defect: for each planted bug the suite must fail."""

from __future__ import annotations

import pytest

from tests.contract.bugs import BUGS
from tests.contract.planting import Bug, find, planted
from weft_contract import suite


@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name.replace(" ", "-")) for bug in BUGS])
def test_the_suite_catches(bug: Bug) -> None:
    """The cases fail with the bug. Without it they pass: all cases of the suite in test_contract, the others here."""
    for case in bug.caught_by:
        if ": " in case:
            find(case)()
    with planted(bug):
        for case in bug.caught_by:
            check = find(case)
            with pytest.raises(AssertionError):
                check()


def test_every_check_has_caught_something() -> None:
    caught = {case for bug in BUGS for case in bug.caught_by}
    for cases, checks in (
        (suite.of_mechanisms(), suite.MECHANISM),
        (suite.of_decoders(), suite.DECODER),
        (suite.of_language_models(), suite.LANGUAGE),
        (suite.of_poolings(), suite.POOLING),
    ):
        names = caught & dict(cases).keys()
        assert not [check for check in checks if not any(name.endswith(f"-{check}") for name in names)]


def test_names_of_bugs_differ() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
