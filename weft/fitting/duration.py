"""Durations as people write them."""

from __future__ import annotations

import re

UNITS = {"h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float | None:
    """The seconds of "90s", "20m", "1.5h" or "1h30m"; None if the text is none of these or zero."""
    number = r"(?:(\d+(?:\.\d+)?){})?"
    match = re.fullmatch("".join(number.format(unit) for unit in UNITS), text.strip())
    if not match:
        return None
    return sum(float(part) * unit for part, unit in zip(match.groups(), UNITS.values(), strict=True) if part) or None
