"""The threads of C++ kernels: one team, which lasts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from weft.data.batch import Layout, Source
from weft.decoding.cpp_search import cpp_ctc_paths, encode
from weft.layers.kernels import cpp
from weft.layers.kernels.cpp import CannotBuild, Kernels
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.nonautoregressive import NonAutoregressiveDecoder

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


def made(**options: object) -> Model:
    torch.manual_seed(1)
    config = {"kind": "transformer", "dim": 64, "feedforward": 256, "encoder_layers": 2, "decoder_layers": 1}
    model: Model = build_model({**config, **options}, Sizes(30, 30, True)).eval()
    return model


@pytest.mark.parametrize("rows", [1, 8])
def test_encoding_starts_no_threads_for_its_operations(kernels: Kernels, rows: int) -> None:
    model, source = made(), Source(torch.randint(4, 30, (rows, 100)))
    with torch.inference_mode(), cpp.using(kernels):
        encode(model, source)  # plans it, and starts the team
        assert len(threads_during(lambda: [encode(model, source) for _ in range(50)])) <= 1


CONVS2S = {"kind": "convs2s", "dim": 32, "channels": 40, "encoder_layers": 2, "decoder_layers": 1}
COMPOSED = {
    "kind": "composed",
    "share_embeddings": "all",
    "encoder": {"kind": "transformer", "dim": 32, "layers": 1},
    "decoder": {"kind": "parallel", "dim": 32, "layers": 2, "canvas": {"kind": "upsampled", "factor": 2}},
}


@pytest.mark.parametrize(
    "options", [{}, {"encoder_self": "linear"}, {"encoder_self": {"kind": "local", "window": 3}}, CONVS2S, COMPOSED]
)
def test_threads_do_not_change_a_bit(kernels: Kernels, options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads divide the rows of one block, in the middle of a sequence too."""
    model: Model = build_model(options, Sizes(30, 30, True)).eval() if "kind" in options else made(**options)
    source = Source(torch.randint(4, 30, (3, 23)), Layout.padded([23, 9, 14]))
    monkeypatch.setattr(type(model), "encode", lambda *given: pytest.fail("not native"))
    found = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        with torch.inference_mode(), cpp.using(kernels):
            encoded = encode(model, source)
            found.append([encoded.memory])
            if isinstance(model.decoder, NonAutoregressiveDecoder):
                found[-1] += cpp_ctc_paths(model.decoder, encoded, 4) or pytest.fail("not native")
    assert all(map(torch.equal, *found)) and len(found[0]) == (4 if options is COMPOSED else 1)
