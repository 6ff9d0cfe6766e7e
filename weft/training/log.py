"""Training logs: for people on the terminal and in `train.log`, for programs in `log.jsonl` and TensorBoard.

A record is a flat dict, written as one line of `log.jsonl`. Its `event` is "train" (step, loss, lr, tokens_per_second,
grad_norm, seconds), "validation" (step and scores) or "summary". tokens_per_second is in the unit that the task counts.
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from weft.config.sections import Config
from weft.explain.figures import CANNOT_DRAW, can_draw
from weft.file_access import MALFORMED, appending, replace_file, sync
from weft.runs.run_folder import LOG
from weft.tasks.base import Sample
from weft.training.log_text import Record, describe, duration, fit, scores_text, speed


class Sink:
    """A destination of records and notes. A subclass overrides the methods for which it has something to do."""

    def begin(self, step: int) -> None:
        """Training continues after `step`: records of later steps are void."""

    def record(self, record: Record) -> None:
        """Writes a record."""

    def note(self, text: str) -> None:
        """Writes a message for people."""

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Shows outputs of the model at a validation, whose record follows."""

    def step(self, step: int) -> None:
        """A step is done. Called after every step, so it must be quick and must not wait for the device."""

    def phase(self, text: str) -> None:
        """Training is busy with something else than steps."""

    def keep(self) -> None:
        """Syncs what was written to disk. Called before each checkpoint: a run that is resumed there lacks no record."""

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

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        for sink in self.sinks:
            sink.samples(step, samples)

    def step(self, step: int) -> None:
        for sink in self.sinks:
            sink.step(step)

    def phase(self, text: str) -> None:
        for sink in self.sinks:
            sink.phase(text)

    def keep(self) -> None:
        for sink in self.sinks:
            sink.keep()

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
    unit: str = "tokens",
    tensorboard: bool = True,
    first: bool = True,
    terminal: bool | None = None,
    trackers: Config | None = None,
) -> Log:
    """The log of a run of `steps` updates (0: as many as the time allows), silent unless `first`.

    unit: what the speed counts · terminal: whether stderr is one; None detects it · trackers: a configuration whose
    train.trackers are opened as well.
    """
    if not first:
        return Log()
    live = sys.stderr.isatty() if terminal is None else terminal
    from weft.training.result_files import PICTURE, ResultFiles

    # The result files follow from log.jsonl, so that comes first.
    sinks: list[Sink] = [JsonLines(run / LOG), ResultFiles(run, unit), PlainLines(run / "train.log", steps, unit)]
    sinks.append(LiveLine(steps, unit) if live else PlainLines(None, steps, unit))
    if tensorboard:
        sinks.append(TensorBoard(run / "tensorboard"))
    if trackers is not None:
        from weft.training.trackers.base import open_trackers

        sinks += open_trackers(run, trackers)
    log = Log(sinks)
    if not can_draw():
        log.note(f"there will be no {PICTURE}: {CANNOT_DRAW}")
    return log


class JsonLines(Sink):
    """One JSON object per line. On resume, lines of steps that will be repeated are removed, so no step occurs twice."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def begin(self, step: int) -> None:
        lines = self.file.read_text(encoding="utf-8", errors="replace").splitlines() if self.file.exists() else []
        replace_file(self.file, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))

    def record(self, record: Record) -> None:
        # JSON cannot express numbers that are not finite.
        clean = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()}
        with appending(self.file) as out:
            out.write(json.dumps(clean) + "\n")

    def keep(self) -> None:
        sync(self.file)


def _step_of(line: str) -> float:
    """The step of a line; infinite for an incomplete line of a killed process, and for an earlier summary."""
    try:
        record = json.loads(line)
        return math.inf if record["event"] == "summary" else int(record["step"])
    except MALFORMED:
        return math.inf


class PlainLines(Sink):
    """One line of text per record, appended to a file or, if it is None, printed to stderr."""

    def __init__(self, file: Path | None, steps: int, unit: str = "tokens") -> None:
        self.file, self.steps, self.unit = file, steps, unit

    def begin(self, step: int) -> None:
        if step:
            self.note(f"resuming after step {step}")

    def record(self, record: Record) -> None:
        self.note(describe(record, self.steps, self.unit))

    def note(self, text: str) -> None:
        with appending(self.file) if self.file else nullcontext(sys.stderr) as out:
            print(text, file=out, flush=True)


class LiveLine(Sink):
    """A status line on a terminal that follows every step. Validations and notes scroll above it."""

    def __init__(self, steps: int, unit: str = "tokens", console: Console | None = None) -> None:
        self.steps, self.unit = steps, unit
        self.console = console or Console(stderr=True, highlight=False)
        self._phase = "loading the model and its state"
        self._last: Record = {}
        self._scores: Record = {}
        self._step, self._began, self._ended, self._logged = 0, (0, 0.0), 0.0, 0.0
        self._live = Live(get_renderable=self._line, console=self.console, refresh_per_second=8)

    def begin(self, step: int) -> None:
        self._step = step
        self._live.start()

    def step(self, step: int) -> None:
        self._ended = time.monotonic()
        if self._phase:
            self._began = step, self._ended  # a pause, or the first step, says nothing about the speed
        self._step, self._phase = step, ""

    def phase(self, text: str) -> None:
        self._phase = text

    def record(self, record: Record) -> None:
        if record["event"] == "train":
            self._last, self._step, self._logged = record, record["step"], time.monotonic()
            return
        if record["event"] == "validation":
            self._scores = record
        self.note(describe(record, self.steps, self.unit))

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._phase = ""
        self._live.stop()

    def _line(self) -> Text:
        return Text(self.line(self.console.width), no_wrap=True, overflow="ellipsis")

    def line(self, width: int) -> str:
        """The status in at most `width` columns; what matters less is left out first."""
        parts = [f"step {self._step:,}/{self.steps:,}" if self.steps else f"step {self._step:,}"]
        if self._phase:
            return fit([*parts, self._phase] if self._step else [self._phase], width)
        if self._last:
            parts += [f"loss {self._last['loss']:.3f}", speed(self._last, self.unit)]
        first, began = self._began
        if not self.steps and self._last:
            parts.append(f"{duration(max(0.0, self._last['seconds_left'] + self._logged - time.monotonic()))} left")
        elif first < self._step < self.steps:
            seconds = (self._ended - began) / (self._step - first) * (self.steps - self._step)
            parts.append(f"{duration(max(0.0, seconds + self._ended - time.monotonic()))} left")
        if self._last.get("skipped"):
            parts.append(f"{self._last['skipped']} skipped")
        if self._scores:
            parts += f"valid {scores_text(self._scores)}".split(" · ")
        if self._last:
            parts.append(f"lr {self._last['lr']:.1e}")
        return fit(parts, width)


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
