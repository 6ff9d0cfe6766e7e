"""Jobs of a comparison that are done one after the other in a process of their own: `python -m weft.compare.worker JOBS.json`.

Each leaves a file with what it found, or with the error that ended it, and the next one is begun. Loading torch and waking
a GPU take longer than most jobs, so there is one process for all of them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.compare.processes import Failure, Processes
from weft.compare.trainings import Training

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """kind: prepare (make a training's data ready), plan (steps for the seconds) or measure (a run's folder).

    options: what `measure.Wanted` takes, or seconds.
    """

    kind: str
    result: str
    training: Training = Training("")
    folder: str = ""
    options: dict[str, Any] | None = None

    @property
    def file(self) -> Path:
        return Path(self.result)

    def found(self) -> Result | None:
        """What the job has left, if that is what is wanted now and no error."""
        if not self.file.exists():
            return None
        document: Result = json.loads(self.file.read_text("utf-8"))
        return document if document["options"] == self.options and "error" not in document else None

    def error(self) -> str:
        """Why the job failed, if it did; nothing is said of one that is still to be done."""
        return str(json.loads(self.file.read_text("utf-8")).get("error", "")) if self.file.exists() else ""

    def leave(self, **values: Any) -> None:
        """Written aside and renamed, so that there is never half a result."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        aside = self.file.with_name(f".tmp-{self.file.name}")
        aside.write_text(json.dumps({"options": self.options, **values}, ensure_ascii=False), "utf-8")
        os.replace(aside, self.file)


def work(name: str, jobs: Sequence[Job], processes: Processes) -> None:
    """Has the jobs done whose results are not there yet. If the process dies, its job has failed, and the rest go on."""
    left = [job for job in jobs if job.found() is None]
    for job in left:
        job.file.unlink(missing_ok=True)
    while left:
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump([asdict(job) for job in left], file)
            file.flush()
            try:
                processes(name, [file.name], module="weft.compare.worker")
                said = "gave no result"
            except Failure as failure:
                said = str(failure)
        left = [job for job in left if not job.file.exists()]
        for job in left[:1]:
            job.leave(error=said)
        left = left[1:]


def main(file: str) -> None:
    """Does the jobs of a file."""
    from weft.errors import Interrupted

    for values in json.loads(Path(file).read_text("utf-8")):
        job = Job(**{**values, "training": Training(**_tuples(values["training"]))})
        try:
            job.leave(**_do(job))
        except Interrupted:
            sys.exit(130)
        except Exception as error:  # whatever is wrong with one entry must not keep the others from being measured
            traceback.print_exc()
            job.leave(error=str(error) or type(error).__name__)
        gc.collect()  # the memory of one must not be missing for the next


def _do(job: Job) -> Result:
    from weft.compare.measure import Wanted, measure
    from weft.compare.probe import probe, probe_seconds
    from weft.registry import build
    from weft.tasks.base import Setting

    options = job.options or {}
    if job.kind == "measure":
        return measure(Path(job.folder), Wanted(**_tuples(options)))
    if job.kind == "plan":
        speed = probe(job.training.config(), probe_seconds(options["seconds"]))
        return {"steps": speed.planned(options["seconds"]), **asdict(speed)}
    config = job.training.config()
    with tempfile.TemporaryDirectory() as folder:
        build("weft.tasks:TASKS", config.task, Setting(config, Path(folder)), where="task").prepare()
    return {}


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists for them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


if __name__ == "__main__":
    main(sys.argv[1])
