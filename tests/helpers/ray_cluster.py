"""Ray on two cores of this machine, for the tests of a module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from weft.runs.ray_engine import set_variables


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="needs Ray")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    set_variables()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    yield
    ray.shutdown()
