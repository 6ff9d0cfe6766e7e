"""The training budget of each entry of a comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.errors import ConfigError

UNITS = {"s": 1, "m": 60, "h": 3600}
FACTORS = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True)
class Budget:
    """A number of steps or of seconds; the other is 0. text: the budget as the user wrote it."""

    text: str
    steps: int = 0
    seconds: float = 0.0


def parse_budget(text: str) -> Budget:
    """Parses a budget such as "10m", "90s", "1.5h", "500-steps" or "20k-steps"."""
    number = r"(\d+(?:\.\d+)?)"
    if match := re.fullmatch(rf"{number}([smh])", text.strip()):
        seconds = float(match[1]) * UNITS[match[2]]
        if seconds > 0:
            return Budget(text, seconds=seconds)
    if match := re.fullmatch(rf"{number}(k|M|)[- ]?steps?", text.strip()):
        steps = round(float(match[1]) * FACTORS[match[2]])
        if steps > 0:
            return Budget(text, steps=steps)
    raise ConfigError(f"--budget {text}: write a time such as 90s, 10m or 1.5h, or steps such as 500-steps or 20k-steps")
