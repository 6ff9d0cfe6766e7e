"""When a model is compiled for training: asked for, or where it pays."""

from typing import Any

import pytest
import torch

from weft.config.sections import TrainSection
from weft.layers.kernels.cuda_graph_capture import GraphRecorder
from weft.models.base import Network, Sizes
from weft.models.encoder_decoder import build_model
from weft.training import compile_and_cuda_graphs as compiling

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def model(kind: str, dim: int, **options: Any) -> Network:
    with torch.device("meta"):
        made: Network = build_model({"kind": kind, "dim": dim, **options}, Sizes(32_000, 32_000, True))
    return made


@pytest.fixture(autouse=True)
def working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "triton_available", lambda tensor: True)


def test_large_transformers_are_compiled_on_packed_rows_of_a_gpu() -> None:
    large = model("transformer", 1024)
    assert compiling.compiles(large, TrainSection(packed=True), GPU)
    assert not compiling.compiles(large, TrainSection(packed=True), CPU)
    assert not compiling.compiles(large, TrainSection(packed=False), GPU)
    assert not compiling.compiles(model("transformer", 128), TrainSection(packed=True), GPU)
    assert not compiling.compiles(model("rnn", 2048), TrainSection(packed=True), GPU)
    assert not compiling.compiles(model("transformer", 1024, encoder_self={"kind": "local"}), TrainSection(packed=True), GPU)


@pytest.mark.parametrize("wanted", [True, False])
def test_what_is_asked_for_is_done(wanted: bool) -> None:
    assert compiling.compiles(model("transformer", 128), TrainSection(compile=wanted), CPU) is wanted


def test_nothing_is_compiled_where_triton_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "triton_available", lambda tensor: False)
    assert not compiling.compiles(model("transformer", 1024), TrainSection(packed=True), GPU)


def test_a_capture_that_fails_is_reported_once_with_its_reason() -> None:
    def refuse(work: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    said: list[str] = []
    recorder: GraphRecorder[Any] = GraphRecorder(refuse, warm=0, most=4, memory_errors=True)
    recorder.report = said.append
    key = ("step", None, 3)
    assert recorder.due(key) and recorder.capture(key, lambda: None) is None and not recorder.due(key)
    (line,) = said
    assert "step runs without a CUDA graph" in line and "stream is capturing" in line
