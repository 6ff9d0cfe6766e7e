"""Runs of the real command that are stopped, killed, resumed, and spread over processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from tests.helpers.weft_commands import run_together
from weft import cli
from weft.runs.weight_files import read_tensors
from weft.training.checkpoint import steps

SETTINGS = {
    "model.dropout": 0.2,
    "train.ema": 0.95,
    "train.steps": 120,
    "train.save_every": 6,
    "train.validate_every": 30,
    "train.log_every": 1,
    "train.batch_tokens": 2000,
    "train.keep_last": 2,
}
DATA = ["--data", tiny.generated("reverse", 2000), "--valid", tiny.generated("reverse", 50, "valid")]


def settings(**more: Any) -> list[str]:
    return tiny.sets({**SETTINGS, **{key.replace("__", "."): value for key, value in more.items()}})


def start(arguments: Sequence[str | Path], launcher: Sequence[str] = ("-m", "weft")) -> subprocess.Popen[str]:
    """`weft …` in a process of its own, which is a group like a job of a shell."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs, and so all that they start, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run_here(*arguments: str | Path) -> None:
    """`weft …` in this process, without an error, for runs that nobody interrupts."""
    assert cli.run([*map(str, arguments)]) == 0


def finish(process: subprocess.Popen[str], status: int = 0) -> str:
    """What a process says until it ends, which it has to do with `status`.

    Python now and then ends itself by the signal after handling it; a shell calls that 130, too.
    """
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    found = 128 - process.returncode if process.returncode < 0 else process.returncode
    assert found == status, errors
    return errors


def last_step(run: Path) -> int:
    """The last step that log.jsonl speaks of."""
    file = run / "log.jsonl"
    whole = [line for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []
    return max((json.loads(line).get("step", 0) for line in whole), default=0)


def wait_for(process: subprocess.Popen[str], run: Path, step: int) -> None:
    while last_step(run) < step:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "train"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    run = tmp_path_factory.mktemp("whole") / "run"
    run_here("train", "transformer-tiny", *DATA, "--out", run, *settings())
    return run


def test_killed_three_times_at_random_moments_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    run, draw = tmp_path / "run", random.Random(11)
    command: list[str | Path] = ["train", "transformer-tiny", *DATA, "--out", run, *settings()]
    for step in sorted(draw.sample(range(3, 100), 3)):
        process = start(command)
        wait_for(process, run, step)
        time.sleep(draw.random() * 0.03)  # anywhere in a step, in validating or in saving
        process.send_signal(signal.SIGKILL)
        process.communicate()
        command = ["train", "--resume", run]
    run_here(*command)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    for file in ("model", "ema", "optimizer"):
        one, other = (read_tensors(each / "checkpoints/step-00000120" / f"{file}.safetensors") for each in (run, whole))
        assert one.keys() == other.keys()
        assert all((one[name] == other[name]).all() for name in one)
    assert losses(run) == losses(whole)
    assert not list(run.rglob(".tmp-*"))


def test_control_c_saves_says_how_to_go_on_and_going_on_is_exact(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(["train", "transformer-tiny", *DATA, "--out", run, *settings(train__save_every=1000)])
    wait_for(process, run, 20)
    process.send_signal(signal.SIGINT)
    said = finish(process, 130)
    assert "saving a checkpoint" in said
    assert f"continue with `weft train --resume {run}`" in said
    assert "Traceback" not in said
    assert 20 <= steps(run)[-1] < 60
    run_here("train", "--resume", run, "--set", "train.save_every=6")
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_control_c_before_training_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    data = ["--data", "generated:dates?count=2000000", "--set", f"data.cache={tmp_path / 'cache'}"]
    process = start(["train", "demo-dates", *data, "--out", run])
    while not (run / "run.json").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = finish(process, 130)
    assert "Traceback" not in said
    assert not run.exists()


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "0"]


def torchrun(arguments: Sequence[str | Path]) -> subprocess.Popen[str]:
    return start(arguments, [*TORCHRUN, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "weft"])


def test_two_processes_train_as_one_does_and_take_over_from_it(tmp_path: Path) -> None:
    few = {
        "train__steps": 12,
        "train__accumulate": 2,
        "train__save_every": 6,
        "train__validate_every": 6,
        "train__schedule": "{kind: constant, rate: 0.01}",
    }
    one, two, moved = (tmp_path / name for name in ("one", "two", "moved"))
    begin = ["train", "transformer-tiny", *DATA, "--out"]
    run_here(*begin, one, *settings(**few))
    run_here(*begin, moved, *settings(**{**few, "train__steps": 6}))
    take_over = ["train", "--resume", moved, "--set", "train.steps=12"]
    uneven = [*begin, tmp_path / "uneven", *settings(train__accumulate=3)]
    said = run_together([*begin, two, *settings(**few)], take_over, uneven, status=1)
    assert said.count("2 processes (cpu)") == 3
    assert said.count("done: step 12") == 2
    assert losses(two) == pytest.approx(losses(one), abs=1e-4)
    assert losses(moved) == pytest.approx(losses(one), abs=1e-4)
    assert "train.accumulate: 3 micro-batches per step cannot be divided among 2 processes" in said
    assert not (tmp_path / "uneven").exists()


def test_control_c_at_a_terminal_stops_all_processes_and_saves(tmp_path: Path) -> None:
    """Each process gets the signal twice, from the terminal and from torchrun; that is still one wish to stop."""
    run = tmp_path / "run"
    long = {"train__steps": 100_000, "train__save_every": 100_000, "train__accumulate": 2}
    process = torchrun(["train", "transformer-tiny", *DATA, "--out", run, *settings(**long)])
    wait_for(process, run, 3)
    os.killpg(process.pid, signal.SIGINT)
    said = finish(process, 1)  # torchrun's own status
    [step] = steps(run)
    assert f"stopped at step {step} of 100000; continue with `weft train --resume {run}`" in said


def test_an_error_stops_all_processes_and_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = torchrun(["train", "transformer-tiny", "--data", "nowhere.a,nowhere.b", "--out", run, *settings()])
    said = finish(process, 1)
    assert said.count("nowhere.a: there is no such file") == 1
    assert "process 1 stops" in said
    assert not run.exists()
