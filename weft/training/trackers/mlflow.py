"""MLflow: a server at MLFLOW_TRACKING_URI or, without one, the folder that MLflow chooses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from weft.training.trackers.base import PROJECT, Tracker, flat

LONGEST = 500
"""Characters of a parameter; some stores of MLflow refuse longer ones."""


class MLflow(Tracker):
    """Sends to the experiment of MLFLOW_EXPERIMENT_NAME. Metric names keep their slash, which groups them."""

    package = "mlflow"

    def open(self, settings: dict[str, Any]) -> str:
        self.module.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        if self.id:
            return str(self.module.start_run(run_id=self.id).info.run_id)
        found = self.module.start_run(run_name=self.run.resolve().name)
        self.module.log_params({key: str(value)[:LONGEST] for key, value in flat(settings).items()})
        return str(found.info.run_id)

    def send(self, values: Mapping[str, float], step: int) -> None:
        self.module.log_metrics(dict(values), step=step)

    def end(self) -> None:
        self.module.end_run()
