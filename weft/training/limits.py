"""Lowers sizes of a configuration that are larger than its number of steps allows.

Sizes that the data limits, such as the vocabulary, are lowered by the task when it prepares the data (`Task.limit`).
"""

from __future__ import annotations

from collections.abc import Callable

from weft.config.sections import Config


def fit_steps(config: Config, tell: Callable[[str], None]) -> Config:
    """Shortens a warm-up that would never end, and an average of more checkpoints than there will be. Says each change.

    A warm-up as long as the training, or longer, becomes half of the steps.
    """
    train = config.train
    changes: dict[str, int] = {}
    if train.schedule.get("warmup", 0) >= train.steps:
        changes["train.schedule.warmup"] = train.steps // 2
        tell(f"train.schedule.warmup: {train.steps // 2:,}, because there are {train.steps:,} steps")
    saved = -(-train.steps // min(train.save_every, train.validate_every or train.save_every))
    if train.average_last > saved:
        changes["train.average_last"] = saved
        tell(f"train.average_last: {saved:,}, because {train.steps:,} steps give no more checkpoints")
    return config.replaced(changes) if changes else config
