"""The contract suite over the parts of installed packages: `pytest --pyargs weft.contract`.

Every check of the contract for every installed part.
"""

from collections.abc import Callable

import pytest

from weft_contract.fixtures import one_thread
from weft_contract.installed import installed_cases

pytest.register_assert_rewrite("weft_contract")

__all__ = ["one_thread"]


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in installed_cases()])
def test_part(check: Callable[[], None]) -> None:
    check()
