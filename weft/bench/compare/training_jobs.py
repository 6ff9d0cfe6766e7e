"""Trainings as a user would start them from the command line: parallel processes, each with a log, that stop together.

Trained runs are measured one after the other in one process, `python -m weft.bench.compare.training_jobs JOBS.json`, because
importing torch and starting a GPU take longer than most measurements. Each writes a file with its result or its error.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from weft.config.sections import Config, load_config
from weft.errors import Interrupted
from weft.file_access import replace_file
from weft.runs.migrations import read_request
from weft.runs.run_folder import CONFIG, complete
from weft.runs.warm_start import started_config


@dataclass(frozen=True)
class Training:
    """A recipe with changes and data; empty data means the data of the recipe.

    time: what `--time` says, if anything · start: the run that `--from` names, if any
    """

    recipe: str
    data: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    time: str = ""
    start: str = ""

    def config(self) -> Config:
        if self.start:
            config = started_config(Path(self.start), self.recipe, self.sets, new_data=bool(self.data))
        else:
            config = load_config(self.recipe, self.sets)
        return config.with_data(self.data, self.valid).absolute()

    def words(self, folder: Path) -> list[str]:
        """The arguments of `weft` that start it."""
        start = (self.start,) if self.start else ()
        flags = [("--from", start), ("--data", self.data), ("--valid", self.valid), ("--set", self.sets)]
        options = [word for flag, values in flags for value in values for word in (flag, value)]
        return ["train", self.recipe, "--out", str(folder), *options, *(("--time", self.time) if self.time else ())]


def train(training: Training, folder: Path, processes: Processes, log: str, module: str = "weft") -> None:
    """Trains in `folder`. Resumes an interrupted run, and does nothing if the run is complete.

    module: the Python module with the command line of weft
    """
    started = (folder / CONFIG).exists()
    request = read_request(folder) if started else {}
    wanted = json.loads(json.dumps(training.config().model_dump()))  # tuples become lists, as in the file
    if request and request["config"] != wanted:
        raise Failure(f"{folder} holds a run with other settings; remove it, or choose another --out")
    if not (started and complete(folder)):
        processes(log, ["train", "--resume", str(folder)] if started else training.words(folder), module)


INTERRUPTED = (130, -signal.SIGINT)
"""Exit statuses of an interrupted command: its own, or that of a process that could not handle the signal."""

POLL = 0.1
SAVING = 60
"""Seconds that an interrupted training has to save a checkpoint."""

TAIL = 12
"""Number of log lines shown when a command fails."""

MESSAGE = "weft: error: "
"""Prefix of error messages of the command line."""


class Failure(Exception):
    """A command failed; the message says why."""


class Stopped(Exception):
    """A command was not started, or was asked to save and exit, because time ran out or the user interrupted it."""


class Processes:
    """Runs Python modules as commands, from any number of threads, until `stop` or the time `until` (of time.monotonic).

    logs     folder for the standard error of each command
    at_once  number of commands that share the cores of the machine
    """

    def __init__(self, logs: Path, *, at_once: int = 1, until: float = float("inf")) -> None:
        self.logs, self.at_once, self.until = logs, at_once, until

    def __call__(self, name: str, words: Sequence[str], module: str = "weft") -> str:
        """Runs `python -m MODULE WORDS…` with the log NAME.log and returns its standard output."""
        if time.monotonic() >= self.until:
            raise Stopped("not started; run the same command again to continue")
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        command = [sys.executable, "-m", module, *words]
        with log.open("w") as errors, tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=self._environment())
            try:
                stopped = self._wait(process)
            except KeyboardInterrupt:  # Ray cancels a task in this way
                self.stop()
                stopped = self._wait(process)
            finally:
                process.kill()
                process.wait()
            if process.returncode in INTERRUPTED or (stopped and process.returncode):
                raise Stopped("interrupted; run the same command again to continue")
            if process.returncode:
                raise Failure(reason(log) or f"`{' '.join(command)}` exited with status {process.returncode}")
            output.seek(0)
            return output.read()

    def stop(self) -> None:
        """Starts no more commands, and makes running ones save and exit."""
        self.until = 0.0

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits until the process ends, or until its time to save is over. Returns whether it was asked to stop."""
        last = float("inf")
        while process.poll() is None and time.monotonic() < last:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL)
            if time.monotonic() >= self.until and last == float("inf"):
                process.terminate()  # not SIGINT, which background processes of a shell ignore
                last = time.monotonic() + SAVING
        return last < float("inf")

    def _environment(self) -> dict[str, str]:
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if self.at_once > 1:
            variables["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.at_once))
        return variables


def reason(log: Path) -> str:
    """Why a command failed: the last error message of weft, or the last lines of the log."""
    lines = log.read_text("utf-8", "replace").splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith(MESSAGE)]
    return "\n".join(lines[errors[-1] :]).removeprefix(MESSAGE) if errors else "\n".join(lines[-TAIL:])


Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Measurements of a run folder, and the file for their result. options: the fields of `Measurements`."""

    result: str
    folder: str
    options: dict[str, Any]

    @property
    def file(self) -> Path:
        return Path(self.result)

    def load(self) -> Result | None:
        """The result of the job, if it succeeded with the same options."""
        if not self.file.exists():
            return None
        document: Result = json.loads(self.file.read_text("utf-8"))
        options = json.loads(json.dumps(self.options))  # tuples become lists, as in the file
        return document if document["options"] == options and "error" not in document else None

    def error(self) -> str:
        """Why the job failed; empty if it succeeded or has not run yet."""
        return str(json.loads(self.file.read_text("utf-8")).get("error", "")) if self.file.exists() else ""

    def save(self, **values: Any) -> None:
        """Writes the result, or the error, of the job."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.file, json.dumps({"options": self.options, **values}, ensure_ascii=False))


JOBS = TypeAdapter(list[Job])


def work(name: str, jobs: Sequence[Job], processes: Processes) -> None:
    """Runs the jobs that have no result yet. If the process dies, its current job has failed, and the others continue."""
    left = [job for job in jobs if job.load() is None]
    for job in left:
        job.file.unlink(missing_ok=True)
    while left:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(JOBS.dump_json(left))
            file.flush()
            try:
                processes(name, [file.name], module="weft.bench.compare.training_jobs")
                error = "the job wrote no result"
            except Failure as failure:
                error = str(failure)
        left = [job for job in left if not job.file.exists()]
        for job in left[:1]:
            job.save(error=error)
        left = left[1:]


def main(file: str) -> None:
    """Runs the jobs of a file."""
    from weft.bench.compare.measure_run import Measurements, measure

    for job in JOBS.validate_json(Path(file).read_bytes()):
        try:
            job.save(**measure(Path(job.folder), Measurements(**job.options)))
        except Interrupted:
            sys.exit(130)
        except Exception as error:  # an error in one entry must not prevent measuring the others
            traceback.print_exc()
            job.save(error=str(error) or type(error).__name__)
        gc.collect()  # free the memory of this job for the next one


if __name__ == "__main__":
    main(sys.argv[1])
