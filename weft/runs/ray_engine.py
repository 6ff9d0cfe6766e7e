"""Ray as the engine of predictions for a corpus: Ray Data gives shards to actors, which may be on other machines.

An actor loads the model once and writes whole shards, as `weft predict --shard` does; Ray only carries their numbers. So
the order of lines, blank lines and retries cannot go wrong: an actor that dies is started again, and its shard with it.
Machines of a cluster need the same paths for runs, data and output, and weft installed.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from weft.errors import ConfigError, DeviceError, WeftError
from weft.garbage_collection import collect_rarely
from weft.runs.open_run import Report, silent
from weft.runs.prediction_work import PredictionWork
from weft.runs.sharded_prediction import ShardFolder, ShardPredictor

SETTINGS = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_worker_niceness": "0",
}
"""Variables of Ray. The last one is for a cluster that is started here: by default, its actors yield to all other processes of
the machine (niceness 15), so they would get almost nothing where others are at work, although the command does not yield."""


class ShardActor:
    """Predicts the shards that Ray gives to one actor."""

    def __init__(self, work: PredictionWork) -> None:
        folder = ShardFolder(work)
        folder.open(True, silent)
        self.predictor = ShardPredictor(folder)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        shard = int(row["item"])
        try:
            with collect_rarely():  # as the command does; Ray has the default of Python
                self.predictor.predict(shard)
        except WeftError as error:  # an exception would be wrapped, or tried again for ever
            return {"shard": shard, "error": str(error)}
        return {"shard": shard, "error": ""}


def predict_on_ray(
    work: PredictionWork,
    *,
    actors: int | None = None,
    advance: Callable[[int], None] = lambda lines: None,
    expect: Callable[[int], None] = lambda lines: None,
    report: Report = silent,
) -> None:
    """Predicts all missing shards by actors of Ray and writes the output.

    actors: how many; by default one for each GPU of the cluster or, without GPUs, for each core · advance: called with the
    lines of each finished shard · expect: called with the number of lines that are to be done.
    """
    ray = start_ray()
    folder = ShardFolder(work)
    folder.open(False, report)
    if missing := folder.missing():
        expect(sum(map(folder.lines_of, missing)))
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if work.device != "cpu" else 0
        count = min(actors or gpus or int(resources["CPU"]), len(missing))
        report(f"{len(missing):,} shards of {folder.size:,} lines for {count} actors on {'GPUs' if gpus else 'CPU cores'}")
        shards = ray.data.from_items(missing, override_num_blocks=len(missing))
        needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        done = shards.map(ShardActor, fn_constructor_args=(work,), compute=ray.data.ActorPoolStrategy(size=count), **needs)
        for row in done.iter_batches(batch_size=None, prefetch_batches=0):
            for shard, error in zip(row["shard"], row["error"]):
                if error:
                    raise WeftError(str(error))
                advance(folder.lines_of(int(shard)))
    folder.join()


def start_ray() -> Any:
    """Ray, connected to the cluster that RAY_ADDRESS names, or else to one that is started on this machine."""
    set_variables()
    try:
        import ray
        import ray.data
    except ImportError:
        raise ConfigError("--engine ray needs the package ray: pip install 'weft-seq2seq[ray]'") from None
    if not ray.is_initialized():
        # Without an address, Ray would join the cluster that somebody has started last on this machine, also if it is dead.
        local: dict[str, Any] = {"address": "local", "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **({} if _cluster() else local))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


def _cluster() -> str:
    """The cluster that RAY_ADDRESS names, if any. Raises DeviceError if nobody answers: Ray would try for many minutes."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            raise DeviceError(
                f"RAY_ADDRESS: the cluster {address} does not answer ({error.strerror or error}); start it (ray start --head), "
                "or unset RAY_ADDRESS to use this machine alone"
            ) from None
    return address


def set_variables() -> None:
    """Sets the variables of Ray that the user has not set. Ray reads them when it starts."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
