"""Ray on two cores of this machine, for the tests of a module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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


def workers(name: bytes) -> list[int]:
    """The processes of this cluster that have `name` in theirs; another test may have a cluster of its own on this machine."""
    found = {int(entry.name): entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    parents, names = dict[int, int](), dict[int, bytes]()
    for process, entry in found.items():
        with suppress(OSError):  # it has ended
            parents[process] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            names[process] = (entry / "cmdline").read_bytes()
    started = [process for process, parent in parents.items() if parents.get(parent) == os.getpid()]  # by the raylet
    return [process for process in started if name in names.get(process, b"")]
