"""Every check of the contract for every installed part."""

from collections.abc import Callable

import pytest

from weft_contract.fixtures import one_thread
from weft_contract.installed import installed_cases

__all__ = ["one_thread"]


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in installed_cases()])
def test_part(check: Callable[[], None]) -> None:
    check()
