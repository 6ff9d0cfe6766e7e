"""Commands in processes of their own: side by side, each with a log, stopped together and not in the middle of a step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

INTERRUPTED = (130, -signal.SIGINT)
"""How a command ends that was interrupted: by its own status, or before it could answer."""

POLL = 0.1
SAVING = 60
"""Seconds a training has to save itself when it is to stop."""

TAIL = 12
"""Lines shown of the log of a command that failed."""

MESSAGE = "weft: error: "
"""How the command line begins what it says of an error."""


class Failure(Exception):
    """A command failed; the text says why."""


class Stopped(Exception):
    """A command was not begun, or was asked to save itself and end, because time was up or a user wished so."""


class Processes:
    """Runs Python modules as commands, from any number of threads, until `stop` or the moment `until` (of time.monotonic).

    logs: folder for what each command says on standard error · at_once: how many will share the machine's cores.
    """

    def __init__(self, logs: Path, *, at_once: int = 1, until: float = float("inf")) -> None:
        self.logs, self.at_once, self.until = logs, at_once, until

    def __call__(self, name: str, words: Sequence[str], module: str = "weft") -> str:
        """What `python -m MODULE WORDS…` prints on standard output; its log is NAME.log."""
        if time.monotonic() >= self.until:
            raise Stopped("not begun; the same command goes on here")
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        command = [sys.executable, "-m", module, *words]
        with log.open("w") as said, tempfile.TemporaryFile("w+") as printed:
            process = subprocess.Popen(command, stdout=printed, stderr=said, env=self._environment())
            try:
                asked = self._wait(process)
            finally:
                process.kill()
                process.wait()
            if process.returncode in INTERRUPTED or (asked and process.returncode):
                raise Stopped("interrupted; the same command goes on here")
            if process.returncode:
                raise Failure(reason(log) or f"`{' '.join(command)}` ended with status {process.returncode}")
            printed.seek(0)
            return printed.read()

    def stop(self) -> None:
        """Let nothing new begin, and what is running save itself and end."""
        self.until = 0.0

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Until the process ends, or has been asked to and had time enough. Gives whether it was asked."""
        last = float("inf")
        while process.poll() is None and time.monotonic() < last:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL)
            if time.monotonic() >= self.until and last == float("inf"):
                process.terminate()  # SIGINT is ignored in what a shell runs in the background
                last = time.monotonic() + SAVING
        return last < float("inf")

    def _environment(self) -> dict[str, str]:
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if self.at_once > 1:
            found["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.at_once))
        return found


def reason(log: Path) -> str:
    """Why a command failed: what weft said of its error, or the last lines of the log."""
    lines = log.read_text("utf-8", "replace").splitlines()
    said = [number for number, line in enumerate(lines) if line.startswith(MESSAGE)]
    return "\n".join(lines[said[-1] :]).removeprefix(MESSAGE) if said else "\n".join(lines[-TAIL:])
