"""The threads of C++ kernels: one team, which lasts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from weft.batch import Source
from weft.kernels import cpp
from weft.kernels.cpp import CannotBuild, Kernels
from weft.models.base import Model, Sizes
from weft.models.composing import build_model
from weft.search.native import encode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    """The kernels, with two threads."""
    try:
        built = cpp.kernels()
    except CannotBuild as error:
        pytest.skip(str(error))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield built
    torch.set_num_threads(before)


def threads_during(work: Callable[[], object]) -> set[str]:
    """The threads of this process that were seen while `work` ran, without those that ran before."""
    before, seen, done = set(os.listdir("/proc/self/task")), set[str](), threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.update(os.listdir("/proc/self/task"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return seen - before - {str(watcher.native_id)}


@pytest.mark.parametrize("rows", [1, 8])
def test_encoding_starts_no_threads_for_its_operations(kernels: Kernels, rows: int) -> None:
    torch.manual_seed(1)
    config = {"kind": "transformer", "dim": 64, "feedforward": 256, "encoder_layers": 2, "decoder_layers": 1}
    model: Model = build_model(config, Sizes(30, 30, True)).eval()
    source = Source(torch.randint(4, 30, (rows, 100)))
    with torch.inference_mode(), cpp.using(kernels):
        encode(model, source)  # plans it, and starts the team
        assert len(threads_during(lambda: [encode(model, source) for _ in range(100)])) <= 1
