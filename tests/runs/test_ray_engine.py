"""Ray's actors predict the same bytes as one process, also if an actor is killed."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from tests.helpers.ray_cluster import cluster, workers  # noqa: F401 — a fixture of this module
from weft.errors import DataError, DeviceError, WeftError
from weft.runs import sharded_prediction
from weft.runs.prediction_work import InputFile, PredictionWork
from weft.runs.ray_engine import predict_on_ray, start_ray

pytest.importorskip("ray.data", reason="needs Ray Data")

LINES = ["a b c", "", "d e f g", "b \u2028 c", "  ", "g f\tc", "e e e", "", "c a\u00a0b d e.  A b c. G f e!", "zzz ü 😀 a"] * 3


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sharded_prediction, "SHARD", 4)
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "in.txt"


def work(run: Path, text: Path, out: Path) -> PredictionWork:
    return PredictionWork([run], InputFile(text, run), out, "cpu", {"beam": 2})


def test_two_actors_of_which_one_is_killed_do_what_is_missing(
    weft: tiny.Shell, reverse_run: Path, text: Path, tmp_path: Path
) -> None:
    weft("translate", reverse_run, text, "-o", tmp_path / "whole.txt", "--beam", "2", "--device", "cpu")
    task = work(reverse_run, text, tmp_path / "out.txt")
    sharded_prediction.predict_corpus(task, share=(1, 4))
    done, killed = list[int](), list[int]()

    def advance(lines: int) -> None:
        if not done:
            killed.append(workers(b"ShardActor")[0])
            nice = [os.getpriority(os.PRIO_PROCESS, process) for process in (killed[0], os.getpid())]
            assert nice[0] == nice[1], "actors yield to other processes"
            os.kill(killed[0], signal.SIGKILL)
        done.append(lines)

    predict_on_ray(task, actors=2, advance=advance)
    assert killed and sum(done) == len(LINES) - 2 * 4, "of eight shards, two were finished"
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()


def test_an_error_of_an_actor_is_told_as_it_is(reverse_run: Path, text: Path, tmp_path: Path) -> None:
    here = os.getpid()

    class Unreadable(InputFile):
        def lines(self) -> Iterator[str]:
            if os.getpid() != here:
                raise DataError("line 3 is unreadable")
            return super().lines()

    given = replace(work(reverse_run, text, tmp_path / "out.txt"), inputs=Unreadable(text, reverse_run))
    with pytest.raises(WeftError, match=r"^line 3 is unreadable$"):
        predict_on_ray(given, actors=1)


def test_a_cluster_of_ones_own_is_started_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray alone would join any cluster that was started last on this machine, and wait for one that is dead."""
    import ray

    given = list[dict[str, Any]]()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **how: given.append(how))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    start_ray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        start_ray()
    assert given[0]["address"] == "local" and "address" not in given[1]
    with pytest.raises(DeviceError, match=r"^RAY_ADDRESS: the cluster 127\.0\.0\.1:\d+ does not answer \(Connection refused\)"):
        start_ray()


def test_evaluate_gives_the_same_scores(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    data = tiny.generated("reverse", 20, "test")
    common = ("evaluate", reverse_run, "--data", data, "--device", "cpu", "--json", "--samples", "10")
    plain = weft(*common, "-o", tmp_path / "a")
    spread = weft(*common, "-o", tmp_path / "b", "--engine", "ray", "--actors", "1")
    assert spread == plain
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
