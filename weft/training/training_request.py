"""The request for a run, as it is kept until the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.config.sections import Config, load_config


@dataclass(frozen=True)
class TrainingRequest:
    """The request for a run, before anything is chosen. A run that was killed before its first step is resumed from it.

    auto: choose all sizes from the data · sets: settings that the user has fixed · seconds: how long the call may take ·
    fine_tune: choose what suits a run that starts from another one, and has its settings · clean: auto may clean noisy data
    """

    config: Config
    auto: bool = False
    sets: Sequence[str] = ()
    seconds: float | None = None
    fine_tune: bool = False
    clean: bool = True

    @staticmethod
    def load(data: Mapping[str, Any], sets: Sequence[str] = ()) -> TrainingRequest:
        """The request that `data` returned, with further settings."""
        config = load_config(data["config"], sets)
        clean = data.get("clean", True)
        return TrainingRequest(config, data["auto"], [*data["sets"], *sets], data["seconds"], data["fine_tune"], clean)

    def data(self) -> dict[str, Any]:
        """The request as plain data."""
        return {**vars(self), "config": self.config.model_dump(), "sets": [*self.sets]}
