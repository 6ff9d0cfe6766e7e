"""Processes that the page starts or stops: trainings, trials of a run, and comparisons; and the load of this machine.

Trainings are commands like those of people, in sessions of their own: they go on if the page ends, and a page that is started
again finds them by the locks of their folders.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.config.sections import recipes
from weft.errors import ConfigError, RunError
from weft.runs.run_folder import CONFIG, unbegun
from weft.training.auto.plan_for_time import seconds_of
from weft.watch.run_reader import training_process

OWN = ".watch"
"""Folder among the runs with what the page has received and written: uploads, logs and comparisons."""

RECENT = 3600.0
"""Seconds for which a training that failed before it had a run folder is shown."""

NAME = re.compile(r"[\w][\w.-]{0,79}")
TRY_SECONDS, ERROR_LINES = 120.0, 6
LONGEST = 5000
"""Characters of a text that is tried."""

MESSAGE = "weft: error: "


@dataclass(frozen=True)
class TrainingOrder:
    """A training that somebody orders on the page. data: a file, as after --data, or one that was uploaded"""

    name: str
    data: str
    recipe: str = "auto"
    time: str = "20m"
    valid: str = ""

    def words(self, folder: Path) -> list[str]:
        """The command. Raises ConfigError if something is wrong before it starts."""
        if not NAME.fullmatch(self.name):
            raise ConfigError("give the run a name of letters, digits, dots, hyphens and underscores")
        if not self.data.strip():
            raise ConfigError("name a file of training data, or upload one")
        if self.recipe not in recipes():
            raise ConfigError(f"there is no recipe {self.recipe!r}; see `weft list recipes`")
        seconds_of(self.time)
        if (folder / self.name).exists():
            raise ConfigError(f"there is a run {self.name!r} already; choose another name")
        valid = [f"--valid={self.valid}"] if self.valid.strip() else []
        time = [f"--time={self.time}"] if self.time.strip() else []
        return ["train", self.recipe, f"--data={self.data}", *valid, *time, f"--out={folder / self.name}"]


@dataclass
class Processes:
    """The processes that this page has started. folder: that of the runs"""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    comparing: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def train(self, order: TrainingOrder) -> None:
        """Starts a training."""
        self._start(order.name, order.words(self.folder))

    def resume(self, name: str, run: Path) -> None:
        """Continues a run that was stopped."""
        if training_process(run):
            raise RunError(f"{name} is training already")
        if not ((run / CONFIG).is_file() or unbegun(run)):
            raise RunError(f"{name} cannot be resumed: its folder has no {CONFIG}")
        self._start(name, ["train", "--resume", str(run)])

    def stop(self, name: str, run: Path) -> None:
        """Asks the process that trains a run here to save a checkpoint and end, as Ctrl-C does."""
        pid = training_process(run)
        if not pid:
            raise RunError(f"{name} is not trained by a process of this machine, so it cannot be stopped here")
        os.kill(pid, signal.SIGINT)

    def _start(self, name: str, words: Sequence[str]) -> None:
        self.reap()
        if name in self.running:
            raise RunError(f"{name} is starting already")
        file = self._log(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "w") as log:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            self.running[name] = subprocess.Popen([sys.executable, "-m", "weft", *words], **options)

    def reap(self) -> None:
        """Forgets processes that have ended."""
        self.running = {name: process for name, process in self.running.items() if process.poll() is None}
        self.comparing = {name: process for name, process in self.comparing.items() if process.poll() is None}

    def problem(self, name: str) -> str:
        """Why the last training of this name failed; empty if it runs, has succeeded or was not started here."""
        return "" if name in self.running else _problem(self._log(name))

    def started(self) -> list[dict[str, str]]:
        """The trainings that were started here and have no run folder: those that are about to begin, and those that failed."""
        self.reap()
        logs, oldest = self.folder / OWN / "logs", time.time() - RECENT
        found = ((file.stat().st_mtime, str(file.relative_to(logs).with_suffix(""))) for file in logs.rglob("*.log"))
        recent = [name for changed, name in sorted(found, reverse=True) if changed > oldest]
        waiting = [name for name in dict.fromkeys([*self.running, *recent]) if not (self.folder / name).exists()]
        problems = {name: self.problem(name) for name in waiting}
        return [{"name": name, "problem": text} for name, text in problems.items() if text or name in self.running]

    def _log(self, name: str) -> Path:
        """The printed output of a training. name: that of a run, so also one with folders"""
        return self.folder / OWN / "logs" / f"{name}.log"

    def save_upload(self, name: str, content: bytes) -> Path:
        """Saves a file of data under a name of its own."""
        plain, folder = _plain(Path(name).name) or "data", self.folder / OWN / "uploads"
        folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            file = folder / (plain if number == 1 else f"{number}-{plain}")
            try:
                with open(file, "xb") as out:  # two uploads may have one name at the same time
                    out.write(content)
                return file
            except FileExistsError:
                number += 1

    def predict(self, run: Path, text: str) -> str:
        """The output of a trained run for a text."""
        if len(text) > LONGEST:
            raise ConfigError(f"a text to try has at most {LONGEST:,} characters")
        command = [sys.executable, "-m", "weft", "predict", str(run)]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TRY_SECONDS, encoding="utf-8")
        except subprocess.TimeoutExpired:
            raise RunError(f"the run has not answered within {TRY_SECONDS:.0f} seconds") from None
        if done.returncode:
            raise RunError(done.stderr.strip().rpartition(MESSAGE)[2] or "the run cannot be used")
        return done.stdout.rstrip("\n")

    def compare(self, first: Path, second: Path) -> dict[str, Any]:
        """The translations of two runs side by side: the result, or that it is being computed. Call again until it is there."""
        name = "-and-".join(_plain(str(run.relative_to(self.folder))) for run in (first, second))
        folder, newest = self.folder / OWN / "comparisons", max(_weights_time(run) for run in (first, second))
        file, log = folder / f"{name}.json", folder / f"{name}.log"
        self.reap()
        if name in self.comparing:
            return {"state": "running"}
        if file.is_file() and file.stat().st_mtime > newest:
            return {"state": "done", **json.loads(file.read_text("utf-8"))}
        if log.is_file() and log.stat().st_mtime > newest and (problem := _problem(log)):
            log.unlink()  # so that it can be tried again
            raise RunError(problem)
        folder.mkdir(parents=True, exist_ok=True)
        with open(log, "w") as errors:
            words = ["-m", "weft.watch.side_by_side", str(first), str(second), str(file)]
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": errors, "stderr": errors}
            self.comparing[name] = subprocess.Popen([sys.executable, *words], **options)
        return {"state": "running"}

    def close(self) -> None:
        """Ends comparisons; trainings go on."""
        for process in self.comparing.values():
            process.terminate()


def _weights_time(run: Path) -> float:
    file = run / "model.safetensors"
    if not file.is_file():
        raise RunError(f"{run.name} has no weights yet; they come with its first checkpoint")
    return file.stat().st_mtime


def _problem(log: Path) -> str:
    """The error at the end of what a process printed; empty if there is none."""
    if not log.is_file():
        return ""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    start = max((place for place, line in enumerate(lines) if line.startswith(MESSAGE)), default=None)
    return "" if start is None else "\n".join(lines[start:][:ERROR_LINES]).removeprefix(MESSAGE)


def _plain(name: str) -> str:
    """A name for a file: letters, digits, dots, hyphens and underscores."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")[:120]


class MachineLoad:
    """The load of this machine. The GPUs are looked at every few seconds at most."""

    def __init__(self, seconds: float = 2.0) -> None:
        self.seconds = seconds
        self._gpus: tuple[float, list[dict[str, Any]]] = (0.0, [])

    def __call__(self) -> dict[str, Any]:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        return {"cores": os.cpu_count() or 1, "load": load, **_memory(), "gpus": self.gpus()}

    def gpus(self) -> list[dict[str, Any]]:
        """Name, load in percent, and memory in bytes of each NVIDIA GPU."""
        now, program = time.monotonic(), shutil.which("nvidia-smi")
        if program is None or (self._gpus[0] and now - self._gpus[0] < self.seconds):
            return self._gpus[1]
        fields = "name,utilization.gpu,memory.used,memory.total"
        command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            text = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            text = ""
        self._gpus = now, [each for line in text.splitlines() if (each := _gpu(line))]
        return self._gpus[1]


def _gpu(line: str) -> dict[str, Any]:
    name, *numbers = (part.strip() for part in line.split(","))
    try:
        load, used, total = map(float, numbers)
    except ValueError:
        return {}
    return {"name": name, "load": load, "used": used * 2**20, "total": total * 2**20}


def _memory() -> dict[str, int]:
    """Bytes of memory of the machine: all, and those in use."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
        total, free = (1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return {"memory_total": 0, "memory_used": 0}
    return {"memory_total": total, "memory_used": total - free}
