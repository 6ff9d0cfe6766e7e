"""Runs the jobs of a comparison one after the other in a separate process: `python -m weft.bench.compare.worker JOBS.json`.

Each job writes a file with its result or its error. One process runs all jobs, because importing torch and starting a GPU
take longer than most of them.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from weft.bench.compare.training_jobs import Failure, Processes, Training
from weft.errors import Interrupted
from weft.file_access import replace_file

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A job of the kind "prepare" (the data of a training), "plan" (steps for a time budget) or "measure" (a run folder).

    options: the fields of `measure.Wanted`, or seconds.
    """

    kind: str
    result: str
    training: Training = Training("")
    folder: str = ""
    options: dict[str, Any] | None = None

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
                processes(name, [file.name], module="weft.bench.compare.worker")
                error = "the job wrote no result"
            except Failure as failure:
                error = str(failure)
        left = [job for job in left if not job.file.exists()]
        for job in left[:1]:
            job.save(error=error)
        left = left[1:]


def main(file: str) -> None:
    """Runs the jobs of a file."""
    for job in JOBS.validate_json(Path(file).read_bytes()):
        try:
            job.save(**_do(job))
        except Interrupted:
            sys.exit(130)
        except Exception as error:  # an error in one entry must not prevent measuring the others
            traceback.print_exc()
            job.save(error=str(error) or type(error).__name__)
        gc.collect()  # free the memory of this job for the next one


def _do(job: Job) -> Result:
    from weft.bench.compare.measure_run import Measurements, measure
    from weft.runs.distillation_and_backtranslation import OpenTeacher
    from weft.runs.open_run import build_task
    from weft.training.auto.speed_probe import probe, probe_seconds

    options = job.options or {}
    if job.kind == "measure":
        return measure(Path(job.folder), Measurements(**options))
    if job.kind == "plan":
        speed = probe(job.training.config().replaced({"data.valid": []}), probe_seconds(options["seconds"]))
        return {"steps": speed.planned(options["seconds"]), **asdict(speed)}
    with tempfile.TemporaryDirectory() as folder:
        build_task(job.training.config(), Path(folder), teacher=OpenTeacher()).prepare()
    return {}


if __name__ == "__main__":
    main(sys.argv[1])
