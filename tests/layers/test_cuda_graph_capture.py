"""The recorder of CUDA graphs that training and searches share, with work that is repeated in place of graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from weft.layers.kernels.cuda_graph_capture import GraphRecorder

Work = Callable[[], None]


def recorder(capture: Callable[[Work], Work] = lambda work: work, warm: int = 1, errors: bool = False) -> GraphRecorder[Work]:
    return GraphRecorder(capture, warm=warm, most=2, memory_errors=errors)


def run(graphs: GraphRecorder[Work], group: str, size: int, kind: str = "one") -> bool:
    """Runs work of a size as its users do. Returns whether it is captured."""
    key = group, kind, size
    if key not in graphs.graphs and graphs.due(key) and (replay := graphs.capture(key, lambda: None)):
        graphs.graphs[key] = replay
    return key in graphs.graphs


@pytest.mark.parametrize("warm", [1, 2])
def test_work_is_captured_after_its_first_runs(warm: int) -> None:
    graphs = recorder(warm=warm)
    assert [run(graphs, "step", 3) for _ in range(4)] == [count >= warm for count in range(4)]
    assert not run(graphs, "step", 4)


def test_each_group_has_a_limit() -> None:
    graphs = recorder()
    captured = [run(graphs, group, size) for _ in range(2) for group in ("step", "work") for size in (1, 2, 3)]
    assert captured == [*[False] * 6, True, True, False, True, True, False]


def test_a_kind_that_cannot_be_captured_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def fail(work: Work) -> Work:
        tried.append(1)
        raise RuntimeError("needs the host")

    graphs = recorder(fail)
    assert not any(run(graphs, "step", size) for size in (1, 1, 1, 2, 2))
    assert len(caplog.messages) == len(tried) == 1, "one line for each kind of work"
    assert caplog.messages[0].endswith("because it cannot be captured: RuntimeError: needs the host")
    assert not any(run(graphs, "step", 1, kind="other") for _ in range(3))
    assert len(caplog.messages) == len(tried) == 2
    assert graphs.refused == {("step", "one"), ("step", "other")}


def test_memory_that_runs_out_is_an_error_in_training_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail(work: Work) -> Work:
        raise torch.OutOfMemoryError("full")

    graphs = recorder(fail)
    assert not any(run(graphs, "step", 1) for _ in range(3)) and graphs.refused
    assert "OutOfMemoryError: full" in caplog.text
    graphs = recorder(fail, errors=True)
    run(graphs, "step", 1)
    with pytest.raises(torch.OutOfMemoryError):
        run(graphs, "step", 1)
    assert not graphs.refused
