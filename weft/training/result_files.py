"""The files in which a run shows its results as it trains: `results.csv`, `results.png` and `samples.txt`.

The table and the picture follow from `log.jsonl`, so they continue exactly after a resume. A row of the table is a validation,
with the training since the one before. The picture takes at most one percent of the time, besides the first and the last one;
without matplotlib there is none.
"""

from __future__ import annotations

import csv
import io
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.errors import ConfigError
from weft.explain.figures import empty_figure, style_axes
from weft.file_access import appending, replace_file, sync
from weft.runs.run_folder import records
from weft.tasks.base import LOSS, Sample
from weft.training.log import Sink
from weft.training.log_text import Record

TABLE, PICTURE, SAMPLES = "results.csv", "results.png", "samples.txt"

MEANS = ("loss", "tokens_per_second")
"""Values of training of which a row has the mean since the row before; it has the last value of others."""

LEFT_OUT = ("event", "step", "seconds", "seconds_left", "skipped")
"""Values of training that are no column, or have a place of their own."""

SHARE = 0.01
"""The largest share of the time that drawing may take."""

MARGINS = {"left": 0.075, "right": 0.985, "bottom": 0.08, "top": 0.955, "wspace": 0.17, "hspace": 0.2}
"""Room for numbers of seven characters. A layout that measures its texts takes as long as the rest of the picture."""

POINTS = 2000
"""Points of a curve that are drawn; of more, the means of neighbours are."""

LINE_END = "⏎"
"""The end of a line in a text of `samples.txt`, where each text is one line."""

Row = dict[str, Any]


class ResultFiles(Sink):
    """Writes the files at each validation. unit: what the speed counts."""

    def __init__(self, run: Path, unit: str = "tokens") -> None:
        self.run, self.unit = run, unit
        self._cost, self._drawn, self._curves_end = 0.0, -math.inf, 0

    def begin(self, step: int) -> None:
        """Removes what belongs to steps that will be repeated. The log has already lost their records."""
        file = self.run / SAMPLES
        if file.exists():
            kept = [block for block in read_samples(self.run) if block[0] <= step]
            replace_file(file, "".join(samples_text(*block) for block in kept))
        if (self.run / TABLE).exists():
            self._write_table()

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        if samples:
            with appending(self.run / SAMPLES) as out:
                out.write(samples_text(step, samples))

    def keep(self) -> None:
        if (self.run / SAMPLES).exists():
            sync(self.run / SAMPLES)

    def record(self, record: Record) -> None:
        if record["event"] == "train":
            return
        found = records(self.run)
        if not any(each["event"] == "validation" for each in found):
            return
        self._write_table(found)
        began, curves_end = time.monotonic(), sum(each["event"] != "summary" for each in found)
        last = record["event"] == "summary" and curves_end > self._curves_end
        if last or (record["event"] != "summary" and began - self._drawn >= self._cost / SHARE):
            with suppress(ConfigError):  # matplotlib may be missing
                draw_results(found, self.run / PICTURE, self.unit)
            self._drawn = time.monotonic()
            self._cost, self._curves_end = self._drawn - began, curves_end

    def _write_table(self, found: Sequence[Record] | None = None) -> None:
        rows = result_rows(records(self.run) if found is None else found)
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows
        )
        replace_file(self.run / TABLE, text.getvalue())


def result_rows(found: Iterable[Record]) -> list[Row]:
    """A row for each validation: step, seconds, the training since the row before as train_…, the scores as valid_…."""
    rows: list[Row] = []
    window: list[Record] = []
    for record in found:
        if record["event"] == "train":
            window.append(record)
        elif record["event"] == "validation":
            last = window[-1] if window else {}
            values = {name: last[name] for name in last if name not in LEFT_OUT}
            values |= {name: _mean(each.get(name) for each in window) for name in MEANS if name in last}
            scores = {f"valid_{name}": value for name, value in record.items() if name not in ("event", "step")}
            row = {"step": record["step"], "seconds": last.get("seconds"), "lr": values.pop("lr", None)}
            rows.append(row | {f"train_{name}": value for name, value in values.items()} | scores)
            window = []
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def curves(found: Iterable[Record]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The curves of a log as points (step, value): by panel (loss, score, rate, speed), then by name."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {"loss": {}, "score": {}, "rate": {}, "speed": {}}
    for record in found:
        for panel, name, value in _points(record):
            if value is not None and math.isfinite(value):
                panels[panel].setdefault(name, []).append((record["step"], value))
    return panels


def _points(record: Record) -> Iterator[tuple[str, str, float | None]]:
    """The panel, the curve and the value of each number of a record that is drawn."""
    if record["event"] == "train":
        yield from (("loss", "train", record.get("loss")), ("rate", "lr", record.get("lr")))
        yield "speed", "speed", record.get("tokens_per_second")
    elif record["event"] == "validation":
        for name, value in record.items():
            if name == LOSS.key:
                yield "loss", "valid", value
            elif name not in ("event", "step"):
                yield "score", name, value


def thinned(points: Sequence[tuple[float, float]], most: int = POINTS) -> list[tuple[float, float]]:
    """At most `most` points of a curve: means of as many neighbours as it takes."""
    size = -(-len(points) // most)
    groups = (
        (points[start : start + size] for start in range(0, len(points), size)) if size > 1 else ([each] for each in points)
    )
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def draw_results(found: Iterable[Record], file: Path, unit: str = "tokens") -> None:
    """Draws loss, score, learning rate and speed by step. Raises ConfigError without matplotlib."""
    figure = empty_figure(10, 6, 100, None)
    titles = {"loss": "loss", "score": "validation scores", "rate": "learning rate", "speed": f"{unit} per second"}
    grid = figure.subplots(2, 2, sharex=True, gridspec_kw=MARGINS)
    for axes in grid[1]:
        axes.set_xlabel("step", fontsize=9)
    for axes, (panel, lines) in zip(grid.flat, curves(found).items(), strict=True):
        for name, points in lines.items():
            marker = "." if len(points) < 60 and panel in ("loss", "score") and name != "train" else ""
            axes.plot(*zip(*thinned(points), strict=True), label=name, marker=marker, linewidth=1.3)
        axes.set_title(titles[panel], fontsize=10, loc="left")
        style_axes(axes)
        axes.tick_params(labelsize=8)
        if len(lines) > 1:
            axes.legend(fontsize=8, frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    replace_file(file, picture.getvalue())


def samples_text(step: int, samples: Iterable[Sample]) -> str:
    """The block of a validation in `samples.txt`."""
    lines = [f"step {step}", ""]
    for number, sample in enumerate(samples, start=1):
        for name, text in zip(("source", "reference", "output"), (sample.source, sample.reference, sample.output), strict=True):
            start = f"{number:3}" if name == "source" else "   "
            lines.append(f"{start} {f'{name}:':10} {LINE_END.join(text.splitlines())}".rstrip())
        lines.append("")
    return "\n".join(lines) + "\n"


BLOCK = re.compile(r"^step (\d+)$", re.MULTILINE)
SAMPLE = re.compile(r"^ *\d+ source:(?: {4}(.*))?\n +reference:(?: (.*))?\n +output:(?: {4}(.*))?$", re.MULTILINE)


def read_samples(run: Path) -> list[tuple[int, list[Sample]]]:
    """The step and the samples of each validation, oldest first; empty if the run has none yet."""
    file = run / SAMPLES
    text = file.read_text("utf-8", errors="replace") if file.is_file() else ""
    _, *parts = BLOCK.split(text)
    return [
        (int(step), [Sample(*found) for found in SAMPLE.findall(body)])
        for step, body in zip(parts[::2], parts[1::2], strict=True)
    ]
