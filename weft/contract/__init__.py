"""The contract suite over the parts of installed packages: `pytest --pyargs weft.contract`."""

import pytest

pytest.register_assert_rewrite("weft_contract")
