"""Real processes over gloo on this machine: training does not depend on the number of processes."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import small_task
import torch

from weft.runs.weights import read_tensors
from weft.training import checkpoint

OPTIONS = {"steps": 8, "accumulate": 4, "double": True, "save_every": 8, "validate_every": 4}


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def launch(size: int, *arguments: str) -> list[str]:
    """Starts `size` processes as torchrun does, waits for them, and returns their outputs. A single one is this process."""
    if size == 1:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            small_task.main(*arguments)
        return [said.getvalue()]
    shared = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, small_task.__file__, *arguments]
    processes = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ended = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(errors for _, errors in ended)
    return [out for out, _ in ended]


def train(size: int, run: Path, *flags: str, **options: object) -> list[str]:
    return launch(size, str(run), json.dumps({**OPTIONS, **options}), *flags)


def distance(first: Path, second: Path) -> float:
    a, b = read_tensors(first), read_tensors(second)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "train"]


def seen(run: Path) -> list[list[int]]:
    return [json.loads(file.read_text()) for file in sorted(run.glob("seen-*.json"))]


def test_gradients_of_2_processes_with_2_micro_batches_equal_those_of_1_with_4(tmp_path: Path) -> None:
    launch(1, "--gradients", str(tmp_path), "4")
    launch(2, "--gradients", str(tmp_path), "4")
    whole, first, second = (tmp_path / f"gradients-{name}.safetensors" for name in ("1-0", "2-0", "2-1"))
    assert distance(whole, first) < 1e-12
    assert distance(first, second) == 0
    assert all(float(tensor.abs().max()) > 0 for tensor in read_tensors(whole).values())


def test_losses_in_float32_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    train(1, tmp_path / "one", double=False)
    train(2, tmp_path / "two", double=False)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    one, two = seen(tmp_path / "one"), seen(tmp_path / "two")
    assert one == [list(range(32))]
    assert sorted(two) == [list(range(0, 32, 2)), list(range(1, 32, 2))]


def test_a_run_goes_from_one_process_to_two_and_back(tmp_path: Path) -> None:
    """Weights, moving average and data order are those of an uninterrupted run."""
    train(1, tmp_path / "whole")
    run = tmp_path / "moved"
    assert "stopped at step 3" in train(1, run, interrupt_at=9)[0]
    both = train(2, run, "--resume", interrupt_at=20)  # the signal reaches only one process, but both stop
    assert all("stopped at step 6" in out for out in both)
    train(1, run, "--resume")
    for file in ("model.safetensors", "ema.safetensors"):
        folders = (checkpoint.folder_of(tmp_path / "whole", 8), checkpoint.folder_of(run, 8))
        assert distance(folders[0] / file, folders[1] / file) < 1e-12
    assert sorted(number for part in seen(run) for number in part) == list(range(32))
    assert losses(run) == pytest.approx(losses(tmp_path / "whole"), abs=1e-12)


def test_frozen_weights_stay_the_same_in_all_processes(tmp_path: Path) -> None:
    options = {**OPTIONS, "freeze": ["rnn.*"], "steps": 3, "save_every": 3}
    train(2, tmp_path / "two", **options)
    small_task.train(
        tmp_path / "one", model=small_task.SmallModel().double(), **{key: options[key] for key in options if key != "double"}
    )
    folders = [checkpoint.folder_of(tmp_path / name, 3) for name in ("one", "two")]
    assert distance(folders[0] / "model.safetensors", folders[1] / "model.safetensors") < 1e-12
    start, after = small_task.SmallModel().double().state_dict(), read_tensors(folders[1] / "model.safetensors")
    same = {name for name in after if torch.equal(start[name], after[name])}
    assert same == {name for name in start if name.startswith("rnn.")}
    assert not any("rnn." in name for name in read_tensors(folders[1] / "optimizer.safetensors"))
