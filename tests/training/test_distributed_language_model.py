"""Streams of a text divided among real processes: training and resuming do not depend on their number."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.weft_commands import run_together
from tests.training.test_distributed import distance
from weft import cli
from weft.training import checkpoint

SETTINGS = [
    *("model.dim=16", "model.heads=2", "model.feedforward=32", "model.dropout=0.2", "data.tokenizer=bytes"),
    *("task.segment=8", "task.memory=12", "train.batch_tokens=24", "train.accumulate=4", "train.keep_last=9"),
    *("train.device=cpu", "train.threads=1", "train.tensorboard=false", "train.schedule=constant"),
]


def weft(*arguments: str | Path) -> None:
    """Runs `weft` in this process."""
    assert cli.run([*map(str, arguments)]) == 0


def test_streams_go_on_from_one_process_to_two(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{k * k % 97} and {k % 13}\n" for k in range(300)))
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    begin = ["train", "lm-tiny", "--data", tmp_path / "text.txt", *sets]
    weft(*begin, "--out", tmp_path / "whole", "--set", "train.steps=6")
    weft(*begin, "--out", tmp_path / "moved", "--set", "train.steps=3")
    run_together(["train", "--resume", tmp_path / "moved", "--set", "train.steps=6"])
    whole, moved = (checkpoint.folder_of(tmp_path / name, 6) for name in ("whole", "moved"))
    for file in ("model.safetensors", "carried.safetensors"):
        assert distance(whole / file, moved / file) < 1e-4
    assert len(checkpoint.carried(whole)) == 4 * 3  # groups × layers
