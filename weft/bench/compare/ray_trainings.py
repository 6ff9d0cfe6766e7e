"""Trainings of a comparison on Ray: each is a task, on this machine or on another, and has a GPU to itself if there are any.

Ray only starts what `weft.bench.compare.training_jobs` runs here: the run, its log and its lock are in the folder of the
comparison, which all machines share. If a machine is lost, Ray starts the training again, and it continues at its last
checkpoint.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from weft.bench.compare.training_jobs import POLL, Failure, Processes, Stopped, Training, train
from weft.errors import RunError
from weft.runs.ray_engine import start_ray
from weft.runs.run_folder import RunLock

ORPHANED = 1.0
"""Seconds between looks at a run whose training goes on, although the process of Ray that has started it is lost."""


class RayTrainings:
    """Trains on a cluster of Ray. at_once: how many trainings have a GPU each or, without GPUs, a core."""

    def __init__(self) -> None:
        self.ray = start_ray()
        resources = self.ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        self.at_once = gpus or int(resources["CPU"])
        self._start = self.ray.remote(**({"num_gpus": 1} if gpus else {"num_cpus": 1}))(train_here)

    def __call__(self, training: Training, folder: Path, processes: Processes, log: str) -> None:
        """Does what `train` does, on a machine of the cluster. `processes` says when to stop."""
        if time.monotonic() >= processes.until:
            raise Stopped("not started; run the same command again to continue")
        started, asked = self._start.remote(training, folder.absolute(), processes.logs.absolute(), log), False
        while not self.ray.wait([started], timeout=POLL)[0]:
            if time.monotonic() >= processes.until and not asked:
                self.ray.cancel(started)
                asked = True
        try:
            error: Failure | Stopped | None = self.ray.get(started)
        except self.ray.exceptions.TaskCancelledError:
            error = Stopped("interrupted; run the same command again to continue")
        except self.ray.exceptions.RayError as lost:
            error = Failure(f"Ray lost the training: {lost}")
        if error is not None:
            raise error


def train_here(training: Training, folder: Path, logs: Path, log: str) -> Any:
    """Trains on this machine. Returns the error, if there is one, because Ray would wrap it."""
    wait_for_orphan(folder)
    try:
        train(training, folder, Processes(logs), log)
    except (Failure, Stopped) as error:
        return error
    return None


def wait_for_orphan(folder: Path) -> None:
    """Waits until no other process trains in a folder."""
    while folder.is_dir():
        try:
            with RunLock(folder):
                return
        except RunError:
            time.sleep(ORPHANED)
