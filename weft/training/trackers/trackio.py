"""Trackio, a local tracker: curves go into a file under TRACKIO_DIR, and `trackio show` shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from weft.training.trackers.base import PROJECT, Tracker


class Trackio(Tracker):
    """Sends to the project of TRACKIO_PROJECT. Names must be unique there, so a name includes when the run began."""

    package = "trackio"

    def open(self, settings: dict[str, Any]) -> str:
        name = self.id or f"{self.run.resolve().name}-{int(self.run.stat().st_ctime)}"
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.inner = self.module.init(project=project, name=name, config=settings, resume="allow")
        return name

    def send(self, values: Mapping[str, float], step: int) -> None:
        self.module.log(dict(values), step=step)

    def end(self) -> None:
        self.module.finish()
