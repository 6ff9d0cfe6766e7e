"""Everything around the steps of a run: starting, validating, saving, publishing, finishing, and interruption.

After Ctrl-C or SIGTERM the current step ends and a checkpoint is saved.
"""

from __future__ import annotations

import math
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from weft.config.sections import TrainSection
from weft.errors import ConfigError, DeviceError, RunError
from weft.runs.device_and_precision import autocast
from weft.runs.run_folder import MODEL, remove_stale
from weft.runs.weight_files import copy_weights, read_tensors
from weft.tasks.base import Sample, StatefulTask, Task, find_measure
from weft.tasks.corpus_task import CorpusTask
from weft.training import checkpoint
from weft.training.checkpoint import Progress, TrainingState, described, folder_of, publish, published, published_by_command
from weft.training.distributed import World, same_start
from weft.training.log import Log
from weft.training.log_text import duration
from weft.training.sharding import gathered
from weft.training.time_budget import OutOfTime, SchedulePosition, time_limit
from weft.training.verdict import Floor, verdict

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MESSAGE = b"\nstopping after this step and saving a checkpoint; interrupt again to stop immediately\n"

ECHO = 1.0
"""Seconds during which a second signal is ignored: torchrun forwards a Ctrl-C that its processes have already received."""


class Interrupts:
    """Inside the block the first signal only sets `requested`; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False
        self._first = 0.0
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        # Only the main thread can handle signals; in other threads the existing handlers stay.
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._request) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if time.monotonic() - self._first < ECHO:
                return
            raise KeyboardInterrupt
        self.requested, self._first = True, time.monotonic()
        os.write(2, MESSAGE)  # print is not safe in a signal handler: it may interrupt another print


@dataclass(frozen=True)
class Result:
    """The end of a training, and its scores.

    stopped  "steps" after the last step, "time" if the time ran out, "patience" if the score stopped improving
    weights  the weights in `model.safetensors`: "best", "average", "ema" or "last"
    scores   validation scores of these weights
    verdict  a sentence about the scores, next to those of trivial answers; empty if none are known
    """

    update: int
    stopped: str
    weights: str
    scores: dict[str, float]
    skipped: int
    seconds: float
    verdict: str = ""


@dataclass
class Session:
    """The state of a run in one process. validation: the seconds that one is expected to take, if time is limited."""

    run: Path
    trained: TrainingState
    task: Task
    config: TrainSection
    world: World
    log: Log
    progress: Progress = field(default_factory=Progress)
    scores: dict[str, float] = field(default_factory=dict)
    out_of_time: bool = False
    unscored: bool = False
    floor: Floor | None = None
    validation: float = 0.0

    def __post_init__(self) -> None:
        self.autocast = autocast(self.world.device, self.config.precision)
        self.position = SchedulePosition(self.config, validation=self.validation)
        self._began, self._first = time.perf_counter(), 0
        self.meter = self.world.meter()
        self._validated = 0.0
        self._samples: list[Sample] = []
        self._samples_failed = False

    def begin(self, resume: bool) -> Progress:
        """Loads the newest checkpoint if the run is resumed, else starts at step 0. Returns the progress."""
        if self.world.first:
            remove_stale(self.run)
        newest = self.world.broadcast(checkpoint.latest(self.run))
        if newest is not None and not resume:
            hint = f"continue it with `weft train --resume {self.run}`, or choose another folder"
            raise RunError(f"{self.run}: there are checkpoints of an earlier training; {hint}")
        if newest is not None:
            self.progress = checkpoint.load(newest, self.trained, self.world)
            if isinstance(self.task, StatefulTask):
                self.task.load_extra_state(checkpoint.carried(newest))
        same_start(self.trained.model, self.world)
        self._began = time.perf_counter() - self.progress.seconds
        self._validated = self.progress.seconds
        self.log.begin(self.progress.update)
        self._continue_schedule()
        if newest is not None:
            self.check_time()
        self._first = self.progress.update
        if resume and newest is None:
            self.log.note("there is no checkpoint yet: training starts from the beginning")
        self._note_published()
        return self.progress

    @property
    def seconds(self) -> float:
        """Training time of this run so far, including the time before it was resumed."""
        return time.perf_counter() - self._began

    def validation_pays(self) -> bool:
        """Whether a validation would not take too much of a limited time, for all processes together."""
        return self.world.broadcast(self.position.validation_pays(self.seconds - self._validated))

    def last_validation_fits(self) -> bool:
        """Whether the last weights can be scored within the time. If not, a run that keeps the best ones does without."""
        fits = bool(self.world.broadcast(self.position.validation_fits(self.seconds)))
        if not fits:
            self._leave_unscored()
        return fits

    def _leave_unscored(self) -> None:
        """Says that there is no time to score the last weights."""
        self.unscored = True
        what = "earlier weights are published" if self.progress.best else "its weights are published without a score"
        self.log.note(f"no time is left to validate step {self.progress.update}; {what}")

    @property
    def out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    @property
    def ended(self) -> bool:
        return self.position.ended or self.out_of_patience or self.out_of_time

    def check_time(self) -> None:
        """Decides, once per step and for all processes together, whether the time has run out."""
        if self.config.seconds:
            self.out_of_time = self.world.any(self.seconds >= self.config.seconds - self.position.reserve)

    def advance(self, update: int) -> tuple[float, float]:
        """Moves on in the schedule for an update. Returns the positions before and after it, the same in all processes."""
        before, after = self.position.value, self.position.after(update, self.seconds)
        if self.config.seconds:
            after = self.world.broadcast(after)
        self.position.value = after
        return before, after

    def _continue_schedule(self) -> None:
        """Continues at the position of a checkpoint. With another time, its schedule is stretched over all of it."""
        progress, config = self.progress, self.config
        if self.position.resume(progress.schedule, progress.update, progress.seconds):
            progress.stale = 0
            self.log.note(
                f"the schedule is stretched over {duration(config.seconds)} in all: {self.position.value / config.steps:.0%} "
                "of it are done, so the learning rate is that of this place again, and falls until the end"
            )

    def check(self, skipped: int, in_row: int, worst: int) -> None:
        """Records the number of skipped steps, and raises RunError if too many consecutive steps were skipped."""
        self.progress.skipped, self.progress.in_row = skipped, in_row
        if worst >= self.config.max_bad_steps:
            raise RunError(
                f"training stopped at step {self.progress.update}: the loss or its gradient was not finite in {worst} "
                f"steps in a row. {self._last_checkpoint()} Try a lower learning rate (train.schedule), a smaller "
                "train.clip, or train.precision: float32"
            )

    def check_weights(self) -> None:
        """Raises RunError if a weight is not finite: no later step could repair it, and a checkpoint would keep it."""
        if self.world.any(not self.trained.finite()):
            raise RunError(
                f"training stopped at step {self.progress.update}: some weights are not finite, although the losses and "
                f"gradients of the steps that were taken are. {self._last_checkpoint()} Try a lower learning rate "
                "(train.schedule), or other options of train.optimizer, such as a larger eps"
            )

    def validate(self) -> bool:
        """Scores the model in the first process while the others wait. Returns whether it is the best so far.

        A task without validation data has no scores.
        """
        progress, began = self.progress, self.seconds
        self._note_memory()
        self.note_energy()
        self.log.phase("validating")
        with self._whole_model() as model:
            found = self.world.broadcast(self._evaluate_in_time(model) if self.world.first else {})
        if found is None:
            self._leave_unscored()
            self.out_of_time = True
            return False
        self.scores, self._validated = found, self.seconds
        self.position.add_pause("validation", self._validated - began)
        if not self.scores:
            return False  # without validation data the newest weights are published
        self.log.samples(progress.update, self._samples)
        self.log.validation(progress.update, self.scores)
        self._note_seen()
        measure = find_measure(self.task, self.config.best_by)
        by = measure.key
        if by not in self.scores:
            raise ConfigError(f"train.best_by: {by} was not measured; choose one of {', '.join(sorted(self.scores))}")
        better = measure.better(self.scores[by], progress.best.get(by, math.nan))
        if better:
            progress.best, progress.best_step, progress.stale = self.scores, progress.update, 0
        else:
            progress.stale += 1
        return better

    def score_start(self) -> None:
        """Scores the weights that a new run starts with, and saves them as a candidate for the best ones."""
        if self.validate():
            self.progress.start = self.scores
            self.save()
            self.scores = {}

    def save(self) -> None:
        """Writes a checkpoint, removes old ones, and publishes the run's model."""
        began = self.progress.seconds = self.seconds
        self.progress.schedule = self.position.state()
        self._note_memory()
        self.note_energy()
        self.log.phase("saving a checkpoint")
        carried = self.world.collect(self.task.extra_state() if isinstance(self.task, StatefulTask) else {})
        if self.world.first:
            self.log.keep()
        if self.world.first or self.trained.plain is not None:
            checkpoint.save(self.run, self.trained, self.progress, carried, self.world)
        if self.world.first:
            self._prune()
            self._publish(average=False)
        self.position.add_pause("checkpoint", self.seconds - began)

    def _prune(self) -> None:
        """Removes old checkpoints."""
        kept = max(self.config.keep_last, self.config.average_last)
        checkpoint.prune(self.run, kept, self.progress.best_step if self.config.keep_best else None)

    def finish(self) -> Result:
        """Publishes the weights that the configuration selects, and loads them into the model."""
        weights, scores = "", self.progress.best
        self.log.phase("publishing the model")
        # Borrowed weights are in no checkpoint.
        others = gathered(self.trained.model, {}, keep=self.world.first) if self.trained.plain is not None else {}
        if self.world.first:
            self._prune()  # a process that was killed after the last checkpoint may have left some
            weights, tensors = self._publish(average=self.config.average_last > 0)
            model = self._with_weights({**others, **tensors})
            if weights == "average":
                scores = self._evaluate(model)
            elif weights != "best" and not self.unscored:
                scores = self.scores or self._evaluate(model)
        weights, scores = self.world.broadcast((weights, scores))
        if not self.scores:
            self._note_seen()  # otherwise the last validation has
        stopped = "patience" if self.out_of_patience and not self.position.ended else "time"
        if self.position.ended and self.config.budget == "steps" and self.progress.update >= self.config.steps:
            stopped = "steps"
        progress = self.progress
        passes = self.task.passes(progress.position) if isinstance(self.task, CorpusTask) and self.floor else 0.0
        settled = stopped == "patience" or bool(progress.start)
        words = verdict(self.floor, scores, passes=passes, seconds=progress.seconds, settled=settled)
        result = Result(progress.update, stopped, weights, scores, progress.skipped, progress.seconds, words)
        facts: dict[str, Any] = {"step": result.update, "stopped": result.stopped, "weights": weights, "run": str(self.run)}
        facts |= {"seconds": result.seconds, "peak_memory": self.progress.memory}
        self.note_energy()
        if self.meter is not None and self.meter.names:
            facts |= {"joules": round(progress.energy), "joules_of": self.meter.names}
        self.log.summary({**facts, **scores})
        for words in filter(None, (self._compared_with_start(weights, scores), result.verdict)):
            self.log.note(words)
        return result

    def _compared_with_start(self, weights: str, scores: dict[str, float]) -> str:
        """A sentence if the published weights are not better than those that the run started with; otherwise nothing."""
        start, measure = self.progress.start, find_measure(self.task, self.config.best_by) if self.progress.start else None
        if measure is None or measure.key not in scores:
            return ""
        if weights == "best" and self.progress.best_step == 0:
            return f"no step was better by {measure.title} than the run it started from, whose weights are published"
        before, after = start[measure.key], scores[measure.key]
        if measure.better(after, before):
            return ""
        found = f"{measure.title} {before:.4g} before, {after:.4g} now"
        return f"the published weights are not better than the run that training started from: {found}"

    def _note_published(self) -> None:
        """Logs a note if `weft average` has published weights, with what happens to them."""
        facts = published(self.run) if self.world.first else {}
        if published_by_command(facts):
            end = "they stay" if self.ended else "training will publish over them and keep them in another file"
            self.log.note(f"{MODEL} holds {described(facts)}, published by `weft average`: {end}")

    def _note_seen(self) -> None:
        """Logs the number of passes over each training corpus, if there are several."""
        passes = self.task.corpus_passes(self.progress.position) if isinstance(self.task, CorpusTask) else ""
        if passes and self.world.first:
            self.log.note(passes)

    def _note_memory(self) -> None:
        """Records the peak memory of training. After the first validation, the peak may be that of validation."""
        if not self.scores:
            self.progress.memory = max(self.progress.memory, peak_memory(self.world.device))

    def note_energy(self) -> None:
        """Adds the energy since the last call. Called often enough for counters that begin anew after some minutes."""
        if self.meter is not None:
            self.progress.energy += self.meter.since()

    def _publish(self, average: bool) -> tuple[str, dict[str, Tensor]]:
        """Publishes an average, else the best weights, else the newest. Returns which, and the tensors.

        If no step was made, weights that another command has published stay.
        """
        step, best, before = self.progress.update, self.progress.best_step, published(self.run)
        if step == self._first and published_by_command(before):
            return before.get("weights", "average"), read_tensors(self.run / MODEL)
        facts: dict[str, str] = {}
        if average:
            weights, tensors = "average", checkpoint.average(self.run, last=self.config.average_last)
            averaged = checkpoint.newest_steps(self.run, self.config.average_last)
            facts["averaged"] = ",".join(map(str, averaged))
            if len(averaged) < self.config.average_last:
                wanted, has = self.config.average_last, len(averaged)
                self.log.note(f"train.average_last is {wanted}, but there are only {has} checkpoints: averaged these")
        elif self.config.keep_best and best is not None:
            weights, step, tensors = "best", best, checkpoint.weights(folder_of(self.run, best))
        else:
            weights, tensors = "ema" if self.trained.ema else "last", checkpoint.weights(folder_of(self.run, step))
        facts |= {"weights": weights, "step": str(step)}
        if (facts | {"by": "train"}).items() - before.items() and (kept := publish(self.run, tensors, facts)):
            self.log.note(f"{MODEL} now holds {described(facts)}; the earlier weights, {described(before)}, are in {kept.name}")
        return weights, tensors

    @contextmanager
    def _whole_model(self) -> Iterator[nn.Module]:
        """The model to score, with the moving average if there is one. All processes gather one that is divided among them."""
        trained = self.trained
        if trained.plain is None:
            with trained.ema.applied() if trained.ema is not None and self.world.first else nullcontext():
                yield trained.model
            return
        average = trained.ema.average if trained.ema is not None else {}
        tensors = gathered(trained.model, average, keep=self.world.first)
        yield trained.plain.filled(trained.model, tensors) if self.world.first else trained.model

    def _with_weights(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model with these weights; if it is divided among processes, a copy with them."""
        model, plain = self.trained.model, self.trained.plain
        if plain is not None:
            return plain.filled(model, tensors)
        copy_weights(model, tensors, self.run)
        return model

    def _evaluate(self, model: nn.Module) -> dict[str, float]:
        """The task's scores of a model."""
        with torch.no_grad(), self.autocast:
            model.eval()
            try:
                scores = {name: float(value) for name, value in self.task.evaluate(model).items()}
                self._samples = self._written_samples(model) if scores else []
                return scores
            finally:
                model.train()

    def _written_samples(self, model: nn.Module) -> list[Sample]:
        """Outputs for the first validation inputs; none, with a note, if the task's predictor fails. Training goes on."""
        try:
            return self.task.samples(model)
        except (OutOfTime, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if not self._samples_failed:
                self.log.note(f"there are no samples: the predictor of the task failed: {type(error).__name__}: {error}")
            self._samples_failed = True
            return []

    def _evaluate_in_time(self, model: nn.Module) -> dict[str, float] | None:
        """The scores of `_evaluate`; None if the time was over before."""
        limit = self.position.validation_limit(self.seconds)
        try:
            with time_limit(limit):
                return self._evaluate(model)
        except OutOfTime:
            return None

    @contextmanager
    def memory_errors(self) -> Iterator[None]:
        """Turns an out-of-memory error into one that says what to do."""
        try:
            yield
        except torch.OutOfMemoryError:
            config = self.config
            raise DeviceError(
                f"{self.world.device} ran out of memory in step {self.progress.update + 1}: lower train.batch_tokens (now "
                f"{config.batch_tokens}), and raise train.accumulate (now {config.accumulate}) by the same factor to keep the "
                f"size of a step. {self._last_checkpoint()}"
            ) from None

    def _last_checkpoint(self) -> str:
        newest = checkpoint.latest(self.run)
        return f"The last good checkpoint is {newest}." if newest else "There is no checkpoint yet."


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of tensors on a GPU, elsewhere of the whole process including the interpreter."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    # Prefer this to getrusage: on Linux a process inherits the peak of its parent.
    if status.exists() and (peak := re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text("utf-8"), re.MULTILINE)):
        return int(peak[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
