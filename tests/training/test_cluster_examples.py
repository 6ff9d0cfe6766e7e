"""The examples for Slurm and Kubernetes in deploy/ are valid, and what they start is a command of weft."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers.documents import check_sets, parse

DEPLOY = Path(__file__).parents[2] / "deploy"
PRINTS = '#!/bin/sh\nprintf \'%s\\n\' "$(basename "$0")" "$@" >> "$CALLS"\n'
SLURM = {"SLURM_NNODES": "4", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-4]", "SLURM_ARRAY_TASK_ID": "3"}


def started(tmp_path: Path, *command: str) -> list[str]:
    """The command of weft that a script starts, with stand-ins for the programs of a cluster."""
    for name in ("srun", "torchrun", "weft"):
        (tmp_path / name).write_text(PRINTS)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho node1; echo node2\n")
    for file in tmp_path.iterdir():
        if file.is_file():
            file.chmod(0o755)
    calls = tmp_path / "calls"
    env = {**os.environ, **SLURM, "CALLS": str(calls), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=30)
    words = calls.read_text().splitlines()
    calls.unlink()
    return words[words.index("weft") + 1 :]


def job() -> str:
    container = yaml.safe_load((DEPLOY / "train-job.yaml").read_text("utf-8"))["spec"]["template"]["spec"]["containers"][0]
    return str(container["args"][0])


@pytest.mark.parametrize("script", ["train.sbatch", "train-job.yaml"])
def test_a_new_run_starts_and_an_interrupted_one_continues(script: str, tmp_path: Path) -> None:
    command = ["sh", "-c", job()] if script.endswith(".yaml") else ["bash", str(DEPLOY / script)]
    words = started(tmp_path, *command)
    assert words[:2] == ["train", "transformer-base"] and parse(words) == 0
    check_sets(words)
    (tmp_path / "runs" / "base").mkdir(parents=True)
    (tmp_path / "runs" / "base" / "config.yaml").touch()
    words = started(tmp_path, *command)
    assert words == ["train", "--resume", "runs/base"] and parse(words) == 0


def test_each_task_translates_its_share(tmp_path: Path) -> None:
    words = started(tmp_path, "bash", str(DEPLOY / "translate.sbatch"), "runs/ende", "mono.en", "mono.de")
    assert shlex.join(words) == "translate runs/ende mono.en -o mono.de --shard 3/16" and parse(words) == 0
