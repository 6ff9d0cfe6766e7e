"""Reads run folders for the page: their state, curves, samples, notes and settings. It never writes into them.

Folders may be on a shared disk and trained by other machines: then only the age of the log says whether a run still trains.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.config import yaml_document
from weft.errors import ConfigError, RunError
from weft.runs.migrations import FORMAT_FILE
from weft.runs.run_folder import CONFIG, LOCK, LOG, log_record
from weft.training.result_files import read_samples
from weft.watch.growing_curves import GrowingCurves

DEPTH = 4
"""Levels of folders below the given one where runs are looked for."""

FRESH = 300.0
"""Seconds after its last line that a log counts as that of a training on another machine."""

VALIDATIONS = 20
"""The newest validations whose samples are shown."""

NOTES = 200
"""Lines of notes that are shown, from the beginning of the log."""

PROGRESS = ("step ", "validation at step ", "resuming after step ")
"""Beginnings of lines of train.log that the curves show."""

SPEED = re.compile(r"^step .* [\d,]+ (\w+)/s ", re.MULTILINE)
"""A progress line of train.log, with the unit of the speed."""


@dataclass
class RunLog:
    """The records of a log, of which only new lines are read. A log that was replaced, as by a resume, is read anew."""

    file: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    place: int = 0
    inode: int = 0

    def read(self) -> list[dict[str, Any]]:
        """All complete records so far."""
        try:
            state = self.file.stat()
        except OSError:
            return self.records
        if state.st_ino != self.inode or state.st_size < self.place:
            self.records, self.place, self.inode = [], 0, state.st_ino
        if state.st_size > self.place:
            with open(self.file, "rb") as log:
                log.seek(self.place)
                text = log.read()
            whole, _, _ = text.rpartition(b"\n")
            self.place += len(whole) + (1 if b"\n" in text else 0)
            self.records += [record for line in whole.splitlines() if (record := log_record(line))]
        return self.records


@dataclass(frozen=True)
class RunState:
    """A line of the list of runs.

    state: training (by this machine), elsewhere (by another one, as its log is new), finished or stopped · pid: the process
    that trains it here, 0 if none · age: seconds since the last line of the log · memory: bytes of the training process, else
    the peak that the log says · unit: what the speed counts
    """

    name: str
    state: str
    pid: int
    age: float
    step: int
    steps: int
    seconds: float
    left: float | None
    speed: float | None
    loss: float | None
    scores: Mapping[str, float]
    task: str
    model: str
    memory: int
    unit: str


class RunReader:
    """The runs below a folder, or a run folder itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._reading = threading.RLock()  # each request is a thread, and two must not read the same new lines
        self._logs: dict[Path, RunLog] = {}
        self._curves: dict[Path, GrowingCurves] = {}
        self._units: dict[Path, str] = {}
        self._configs: dict[Path, tuple[float, dict[str, Any]]] = {}

    def folders(self) -> dict[str, Path]:
        """The run folders by name: their path below the folder."""
        found = sorted(_run_folders(self.folder, DEPTH))
        return {str(each.relative_to(self.folder)) if each != self.folder else each.name: each for each in found}

    def folder_of(self, name: str) -> Path:
        """The folder of a run. Names are looked up, never used as paths."""
        found = self.folders().get(name)
        if found is None:
            raise RunError(f"there is no run {name!r} in {self.folder}")
        return found

    def states(self) -> list[RunState]:
        """All runs: those that train by name, so that their rows keep their places, then those that changed last first."""
        found = [self.state(name, folder) for name, folder in self.folders().items()]
        active = [each for each in found if each.state in ("training", "elsewhere")]
        return active + sorted((each for each in found if each not in active), key=lambda each: each.age)

    def state(self, name: str, folder: Path) -> RunState:
        records, config, pid = self.records(folder), self.config(folder), training_process(folder)
        age = time.time() - _modified(folder)
        finished = bool(records) and records[-1]["event"] == "summary"
        here = _owner(folder / LOCK)[1] == platform.node()  # then it was stopped or killed, however young its log is
        fresh = age < FRESH and bool(records) and not here
        state = "training" if pid else "finished" if finished else "elsewhere" if fresh else "stopped"
        trained: dict[str, Any] = next((each for each in reversed(records) if each["event"] == "train"), {})
        valid: dict[str, Any] = next((each for each in reversed(records) if each["event"] == "validation"), {})
        train, task, model = (_section(config, name) for name in ("train", "task", "model"))
        return RunState(
            name,
            state,
            pid,
            age,
            step=max(_whole(each.get("step")) for each in (trained, valid)),
            steps=0 if train.get("budget") == "time" else _whole(train.get("steps")),
            seconds=trained.get("seconds") or 0.0,
            left=trained.get("seconds_left") if state in ("training", "elsewhere") else None,
            speed=trained.get("tokens_per_second"),
            loss=trained.get("loss"),
            scores={key: value for key, value in valid.items() if key not in ("event", "step") and value is not None},
            task=str(task.get("kind", "")),
            model=str(model.get("kind", "")),
            memory=process_memory(pid) if pid else _whole(records[-1].get("peak_memory")) if finished else 0,
            unit=self.unit(folder) if trained else "",
        )

    def unit(self, folder: Path) -> str:
        """The unit of the speed of a run, such as tokens, as its progress lines say; empty if none does."""
        if folder not in self._units:
            found = SPEED.search(_log_text(folder))
            self._units[folder] = found[1] if found else ""
        return self._units[folder]

    def records(self, folder: Path) -> list[dict[str, Any]]:
        with self._reading:
            return self._logs.setdefault(folder, RunLog(folder / LOG)).read()

    def config(self, folder: Path) -> dict[str, Any]:
        """The settings of a run as plain data; empty if it has not begun. They need not be valid for this version of weft."""
        file = folder / CONFIG
        try:
            modified = file.stat().st_mtime
            if self._configs.get(folder, (0.0, {}))[0] != modified:
                found = yaml_document.value(file.read_text("utf-8"), str(file))
                self._configs[folder] = modified, found if isinstance(found, dict) else {}
        except (OSError, ValueError, ConfigError):
            return {}
        return self._configs[folder][1]

    def curves(self, name: str) -> dict[str, Any]:
        """The curves of a run by panel and name, with at most `POINTS` points each."""
        folder = self.folder_of(name)
        with self._reading:
            return self._curves.setdefault(folder, GrowingCurves()).after(self.records(folder))

    def details(self, name: str) -> dict[str, Any]:
        """Everything of one run besides its curves: state, samples, notes (what auto chose, the verdict) and settings."""
        folder = self.folder_of(name)
        blocks = read_samples(folder)[-VALIDATIONS:]
        return {
            **asdict(self.state(name, folder)),
            "samples": [{"step": step, "texts": [asdict(each) for each in samples]} for step, samples in blocks],
            "notes": list(_notes(folder)),
            "settings": {key: _shown(value) for key, value in flat_settings(self.config(folder)).items()},
        }

    def differences(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The settings in which runs differ, each with the value of every run."""
        settings = [flat_settings(self.config(self.folder_of(name))) for name in names]
        keys = dict.fromkeys(key for each in settings for key in each)
        differing = (key for key in keys if len({_shown(each.get(key)) for each in settings}) > 1)
        return [{"key": key, "values": [_shown(each[key]) if key in each else "" for each in settings]} for key in differing]


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _whole(value: Any) -> int:
    """A number of a file that may be damaged; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """The run folders at most `depth` levels below a folder. Runs have no runs inside, and links are not followed."""
    if any((folder / name).is_file() for name in (LOG, FORMAT_FILE)):
        yield folder
    elif depth:
        try:
            inner = [each.path for each in os.scandir(folder) if each.is_dir(follow_symlinks=False) and each.name[0] != "."]
        except OSError:
            return
        for each in inner:
            yield from _run_folders(Path(each), depth - 1)


def _modified(folder: Path) -> float:
    """When a run last wrote something, as far as is known."""
    for name in (LOG, FORMAT_FILE):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


def _notes(folder: Path) -> Iterator[str]:
    """The first messages of a run: what was chosen, and why; and those at its end."""
    notes = [line for line in _log_text(folder).splitlines() if not line.startswith(PROGRESS)]
    yield from (notes if len(notes) <= 2 * NOTES else [*notes[:NOTES], "…", *notes[-NOTES:]])


def _log_text(folder: Path) -> str:
    file = folder / "train.log"
    return file.read_text("utf-8", errors="replace") if file.is_file() else ""


def flat_settings(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Settings by their whole path."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        place = f"{path}.{key}" if path else str(key)
        found |= flat_settings(value, place) if isinstance(value, Mapping) and value else {place: value}
    return found


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return str(float(f"{value:.6g}"))
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def training_process(folder: Path) -> int:
    """The process of this machine that trains a run: the one that its lock names and that has the lock open; 0 if none.

    On other systems than Linux, where that cannot be seen, a process of this number is enough.
    """
    lock = folder / LOCK
    try:
        pid, machine = _owner(lock)
        if not pid or machine not in ("", platform.node()):
            return 0
        if not Path("/proc/self/fd").exists():
            os.kill(pid, 0)
            return pid
        wanted, opened = lock.stat(), [each.path for each in os.scandir(f"/proc/{pid}/fd")]
        return pid if any(_same_file(each, wanted) for each in opened) else 0
    except (OSError, ValueError):
        return 0


def _owner(lock: Path) -> tuple[int, str]:
    """The process that locked a run last, and its machine, which runs of earlier versions do not name; 0 if none is known."""
    try:
        pid, _, machine = lock.read_text("utf-8").strip().partition(" ")
        return int(pid or 0), machine
    except (OSError, ValueError):
        return 0, ""


def _same_file(path: str, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), wanted)
    except OSError:  # closed in the meantime, or no file
        return False


def process_memory(pid: int) -> int:
    """Bytes of memory that a process uses; 0 if that is unknown."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
