"""Records of the log as text for people. The command line uses this without rich's consoles, which take time to import."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len

Record = Mapping[str, Any]

NO_SCORES = ("event", "step", "stopped", "weights", "run", "seconds", "peak_memory", "joules", "joules_of")
"""Entries of a summary that are no scores."""


def describe(record: Record, steps: int, unit: str = "tokens") -> str:
    """A record as a readable line. steps: how many there will be; 0 if the time decides."""
    if record["event"] == "validation":
        return f"validation at step {record['step']}: {scores_text(record)}"
    if record["event"] == "summary":
        return "\n".join(f"{name:>12}: {value}" for name, value in map(_fact, record.items()) if name != "event")
    remaining = duration(record["seconds_left"]) if "seconds_left" in record else "?"
    skipped = f" · {record['skipped']} skipped" if record.get("skipped") else ""
    return (
        f"step {record['step']}{f'/{steps}' if steps else ''} · loss {record['loss']:.4f} · lr {record['lr']:.2e} · "
        f"{speed(record, unit)} · {remaining} left{skipped}"
    )


def speed(record: Record, unit: str) -> str:
    return f"{record['tokens_per_second']:,.0f} {unit}/s"


def _fact(item: tuple[str, Any]) -> tuple[str, str]:
    """A fact of a summary, with its unit."""
    name, value = item
    if name == "seconds":
        return "time", f"{value:.1f} s" if value < 60 else f"{duration(value)} {'hours' if value >= 3600 else 'minutes'}"
    if name == "peak_memory":
        return "peak memory", f"{value / 1e6:,.0f} MB"
    if name == "joules":
        return "energy", f"{value / 3600:.3g} Wh"
    return name, f"{value:.4g}" if isinstance(value, float) else str(value)


def scores_text(record: Record) -> str:
    return " · ".join(f"{name} {value:.4g}" for name, value in record.items() if name not in ("event", "step"))


def duration(seconds: float) -> str:
    """ "1:02:03" or "2:03"."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def rough_time(seconds: float) -> str:
    """A time in words: 90 seconds, 12 minutes, 3 hours."""
    if seconds < 120:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    return f"{math.ceil(seconds / 60)} minutes" if seconds < 2 * 3600 else f"{math.ceil(seconds / 3600)} hours"


def fit(parts: Sequence[str], width: int) -> str:
    """The parts on one line, as many of the first ones as fit."""
    text = ""
    for part in parts:
        longer = f"{text} · {part}" if text else part
        if text and cell_len(longer) > width:
            break
        text = longer
    return text
