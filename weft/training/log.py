"""Training logs: for people on the terminal and in `train.log`, for programs in `log.jsonl` and TensorBoard.

A record is a flat dict, written as one line of `log.jsonl`. Its `event` is "train" (step, loss, lr, tokens_per_second,
grad_norm, seconds), "validation" (step and scores) or "summary". tokens_per_second is in the unit that the task counts.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from weft.config import document
from weft.runs.folder import LOG

Record = Mapping[str, Any]


class Sink:
    """A destination of records and notes. A subclass overrides the methods for which it has something to do."""

    def begin(self, step: int) -> None:
        """Training continues after `step`: records of later steps are void."""

    def record(self, record: Record) -> None:
        """Writes a record."""

    def note(self, text: str) -> None:
        """Writes a message for people."""

    def close(self) -> None:
        """Ends the log."""


class Log:
    """Passes every record and note to its sinks. Without sinks it is silent, as in every process but the first."""

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self.sinks = list(sinks)

    def begin(self, step: int) -> None:
        for sink in self.sinks:
            sink.begin(step)

    def train(self, step: int, **values: float) -> None:
        self._record({"event": "train", "step": step, **values})

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        self._record({"event": "validation", "step": step, **scores})

    def note(self, text: str) -> None:
        for sink in self.sinks:
            sink.note(text)

    def summary(self, facts: Record) -> None:
        self._record({"event": "summary", **facts})

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def _record(self, record: Record) -> None:
        for sink in self.sinks:
            sink.record(record)


def open_log(
    run: Path,
    steps: int,
    *,
    counts: str = "tokens",
    tensorboard: bool = True,
    first: bool = True,
    terminal: bool | None = None,
) -> Log:
    """The log of a run of `steps` updates, silent unless `first`.

    counts: the unit of the speed, see `Task.counts` · terminal: whether stderr is one; None detects it
    """
    if not first:
        return Log()
    live = sys.stderr.isatty() if terminal is None else terminal
    sinks: list[Sink] = [JsonLines(run / LOG), PlainLines(run / "train.log", steps, counts)]
    sinks.append(LiveLine(steps, counts) if live else PlainLines(None, steps, counts))
    if tensorboard:
        sinks.append(TensorBoard(run / "tensorboard"))
    return Log(sinks)


class JsonLines(Sink):
    """One JSON object per line. On resume, lines of steps that will be repeated are removed, so no step occurs twice."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def begin(self, step: int) -> None:
        lines = self.file.read_text(encoding="utf-8", errors="replace").splitlines() if self.file.exists() else []
        document.replace_file(self.file, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))

    def record(self, record: Record) -> None:
        # JSON cannot express numbers that are not finite.
        clean = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()}
        with open(self.file, "a", encoding="utf-8") as out:
            out.write(json.dumps(clean) + "\n")


def _step_of(line: str) -> float:
    """The step of a line; infinite for an incomplete line of a killed process, and for an earlier summary."""
    try:
        record = json.loads(line)
        return math.inf if record["event"] == "summary" else int(record["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class PlainLines(Sink):
    """One line of text per record, appended to a file or, if it is None, printed to stderr."""

    def __init__(self, file: Path | None, steps: int, counts: str) -> None:
        self.file, self.steps, self.counts = file, steps, counts

    def begin(self, step: int) -> None:
        if step:
            self.note(f"resuming after step {step}")

    def record(self, record: Record) -> None:
        self.note(describe(record, self.steps, self.counts))

    def note(self, text: str) -> None:
        with open(self.file, "a", encoding="utf-8") if self.file else nullcontext(sys.stderr) as out:
            print(text, file=out, flush=True)


class LiveLine(Sink):
    """A status line on a terminal, with the last validation scores. Validations and notes scroll above it."""

    def __init__(self, steps: int, counts: str) -> None:
        self.steps, self.counts = steps, counts
        self._valid = ""
        self._live = Live(Text("starting"), console=Console(stderr=True, highlight=False), refresh_per_second=4)

    def begin(self, step: int) -> None:
        self._live.start()

    def record(self, record: Record) -> None:
        text = describe(record, self.steps, self.counts)
        if record["event"] == "train":
            self._live.update(Text(f"{text}{self._valid}", no_wrap=True, overflow="ellipsis"))
        else:
            self._live.console.print(text, markup=False)
        if record["event"] == "validation":
            self._valid = f" · valid {scores_text(record)}"

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()


class TensorBoard(Sink):
    """Scalars for TensorBoard, under train/ and validation/, if the package is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def begin(self, step: int) -> None:
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter  # takes a second

            self._writer = SummaryWriter(str(self.folder), purge_step=step + 1 if step else None)  # type: ignore[no-untyped-call]

    def record(self, record: Record) -> None:
        if self._writer is None or record["event"] == "summary":
            return
        for name, value in record.items():
            if name not in ("event", "step"):
                self._writer.add_scalar(f"{record['event']}/{name}", value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def describe(record: Record, steps: int, counts: str) -> str:
    """A record as a readable line. counts: the unit of the speed."""
    if record["event"] == "validation":
        return f"validation at step {record['step']}: {scores_text(record)}"
    if record["event"] == "summary":
        return "\n".join(f"{name:>12}: {value}" for name, value in record.items() if name != "event")
    remaining = duration(record["seconds_left"]) if "seconds_left" in record else "?"
    unit = "tok" if counts.endswith("tokens") else counts
    skipped = f" · {record['skipped']} skipped" if record.get("skipped") else ""
    return (
        f"step {record['step']}/{steps} · loss {record['loss']:.4f} · lr {record['lr']:.2e} · "
        f"{record['tokens_per_second']:,.0f} {unit}/s · {remaining} left{skipped}"
    )


def scores_text(record: Record) -> str:
    return " · ".join(f"{name} {value:.4g}" for name, value in record.items() if name not in ("event", "step"))


def duration(seconds: float) -> str:
    """ "1:02:03" or "2:03"."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
