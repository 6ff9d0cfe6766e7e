"""Starts a program in several processes, as torchrun does, which talk to each other over gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def launch(program: str, jobs: Sequence[Any], processes: int = 2) -> list[str]:
    """Runs `program` with jobs as JSON in several processes, and returns their outputs."""
    shared = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    started = [
        subprocess.Popen(
            [sys.executable, program, json.dumps(jobs)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(processes)
    ]
    try:
        ended = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(errors for _, errors in ended)
    return [out for out, _ in ended]
