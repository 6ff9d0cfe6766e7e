"""Streams of a text divided among real processes: training and resuming do not depend on their number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.process_group import free_port
from tests.training.test_distributed import distance
from weft import cli
from weft.training import checkpoint

SETTINGS = [
    *("model.dim=16", "model.heads=2", "model.feedforward=32", "model.dropout=0.2", "data.tokenizer=bytes"),
    *("task.segment=8", "task.memory=12", "train.batch_tokens=24", "train.accumulate=4", "train.keep_last=9"),
    *("train.device=cpu", "train.threads=1", "train.tensorboard=false", "train.schedule=constant"),
]


def weft(size: int, *arguments: str | Path) -> None:
    """Runs `weft` in several processes, as torchrun does. A single one is this process."""
    if size == 1:
        assert cli.run([*map(str, arguments)]) == 0
        return
    shared = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "weft", *map(str, arguments)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(errors)


def test_streams_go_on_from_one_process_to_two(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{k * k % 97} and {k % 13}\n" for k in range(300)))
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    begin = ["train", "lm-tiny", "--data", tmp_path / "text.txt", *sets]
    weft(1, *begin, "--out", tmp_path / "whole", "--set", "train.steps=6")
    weft(1, *begin, "--out", tmp_path / "moved", "--set", "train.steps=3")
    weft(2, "train", "--resume", tmp_path / "moved", "--set", "train.steps=6")
    whole, moved = (checkpoint.folder_of(tmp_path / name, 6) for name in ("whole", "moved"))
    for file in ("model.safetensors", "carried.safetensors"):
        assert distance(whole / file, moved / file) < 1e-4
    assert len(checkpoint.carried(whole)) == 4 * 3  # groups × layers
