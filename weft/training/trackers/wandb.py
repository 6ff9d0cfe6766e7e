"""Weights & Biases. Offline: WANDB_MODE=offline, and later `wandb sync`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from weft.training.trackers.base import PROJECT, Tracker


class Wandb(Tracker):
    """Sends to the project of WANDB_PROJECT. The step is a value of its own, since W&B's must not go back."""

    package = "wandb"

    def open(self, settings: dict[str, Any]) -> str:
        project, name = os.environ.get("WANDB_PROJECT", PROJECT), self.run.resolve().name
        known = {"id": self.id, "resume": "allow"} if self.id else {}
        self.inner = self.module.init(project=project, name=name, dir=str(self.run), config=settings, **known)
        self.inner.define_metric("step", hidden=True)
        self.inner.define_metric("*", step_metric="step")
        return str(self.inner.id)

    def send(self, values: Mapping[str, float], step: int) -> None:
        self.inner.log({**values, "step": step})

    def end(self) -> None:
        self.inner.finish()
