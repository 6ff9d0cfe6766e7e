"""torchrun starts all sharded processes again after one was lost: the training goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from tests.helpers import tiny
from tests.helpers.weft_commands import run_together
from weft.runs.weight_files import read_tensors


def workers(parent: int) -> list[int]:
    """The processes that torchrun has started, the one of rank 0 first."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    ranks = {}
    for child in map(int, children):
        facts = dict(line.partition(b"=")[::2] for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"))
        ranks[int(facts.get(b"RANK", b"-1"))] = child
    return [ranks[rank] for rank in sorted(ranks) if rank >= 0]


def command(out: Path) -> list[str]:
    settings = {
        **tiny.SETTINGS,
        "train.shard": True,
        "train.steps": 40,
        "train.save_every": 5,
        "train.accumulate": 2,
        "train.log_every": 1,
    }
    sets = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    return ["train", "transformer-tiny", "--data", tiny.generated("reverse", 500), "--out", str(out), "--set", *sets]


def start(out: Path) -> subprocess.Popen[bytes]:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    with open(out.with_suffix(".said"), "w") as said:
        return subprocess.Popen([sys.executable, *torchrun, "-m", "weft", *command(out)], stdout=said, stderr=subprocess.STDOUT)


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "train"}


def test_a_lost_process_costs_no_step(tmp_path: Path) -> None:
    run_together(command(tmp_path / "whole"))
    lost = start(tmp_path / "lost")
    until = time.monotonic() + 240
    while not (tmp_path / "lost" / "checkpoints" / "step-00000010").exists():
        assert lost.poll() is None and time.monotonic() < until, (tmp_path / "lost.said").read_text()
        time.sleep(0.02)
    os.kill(workers(lost.pid)[1], signal.SIGKILL)
    assert lost.wait(240) == 0, (tmp_path / "lost.said").read_text()
    wanted, found = (losses(tmp_path / name) for name in ("whole", "lost"))
    assert found == wanted and len(found) == 40
    first, second = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "lost"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
