"""Starts a program in several processes, as torchrun does, which talk to each other over gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any, NoReturn

from weft.torch_startup import defer_compiler

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def start(program: str, jobs: Sequence[Any], folder: Path, processes: int = 1) -> subprocess.Popen[bytes]:
    """Starts `program` with jobs as JSON in several processes, a group of their own, which write into files of `folder`."""
    shared = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [sys.executable, "-m", __name__, program, json.dumps(jobs), str(processes), str(folder)]
    return subprocess.Popen(command, env=shared, cwd=ROOT, start_new_session=True)


def kill(parent: subprocess.Popen[bytes]) -> None:
    """Kills the processes that were forked, and waits for the one that they were forked from, which waits for them."""
    for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    parent.wait()


def launch(program: str, jobs: Sequence[Any], processes: int = 2) -> list[str]:
    """Runs `program` with jobs as JSON in several processes, and returns their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        parent = start(program, jobs, Path(folder), processes)
        try:
            parent.wait(600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
        files = [Path(folder, str(rank)) for rank in range(processes)]
        assert parent.returncode == 0, "\n".join(file.with_suffix(".errors").read_text() for file in files)
        return [file.read_text() for file in files]


def fork_all(program: str, jobs: str, processes: int, folder: Path) -> None:
    """Forks the processes from one that has imported everything, which takes longest. If one fails, all end.

    That is the program and the modules in its list LATER, which it imports only as it runs. Like `weft train`, the processes
    leave out torch's compiler, which would take each of them as long as torch.
    """
    defer_compiler()
    module = import_module(".".join(Path(program).relative_to(ROOT).with_suffix("").parts))
    for name in getattr(module, "LATER", ()):
        import_module(name)
    children = [os.fork() or _process(program, jobs, rank, folder) for rank in range(processes)]
    for _ in children:
        if os.wait()[1]:
            sys.exit(1)


def _process(program: str, jobs: str, rank: int, folder: Path) -> NoReturn:
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
    for number, name in ((1, str(rank)), (2, f"{rank}.errors")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    sys.argv, code = [program, jobs], 1
    try:
        run_path(program, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    fork_all(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
