"""Runs a comparison: plans, trains and measures, and resumes where an earlier call stopped.

OUT/runs      one run folder per entry and seed
OUT/measures  measurements of each run
OUT/logs      output of each process
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from weft.bench.compare.comparison_report import write_report
from weft.bench.compare.measure_run import Measurements
from weft.bench.compare.plan import Comparison, ComparisonRun, check, parse_budget, parse_entries, runs_of, training
from weft.bench.compare.ray_trainings import RayTrainings
from weft.bench.compare.results import UNMEASURED, collect
from weft.bench.compare.training_jobs import Failure, Job, Processes, Stopped, Training, train, work
from weft.config.sections import override_texts
from weft.errors import Interrupted
from weft.runs.distillation_and_backtranslation import OpenTeacher
from weft.runs.open_run import Report, silent
from weft.runs.run_folder import RunLock, complete, records
from weft.tasks.base import build_task
from weft.training.log_text import duration
from weft.training.validate_and_save import Interrupts

Trainer = Callable[[Training, Path, Processes, str], None]
"""Trains in a folder with a log, as `train` does."""

TICK = 0.3
"""Seconds between progress updates."""


class Sweep:
    """Runs a comparison. `report` receives messages, `show` frequent progress updates.

    Call it to run everything. `train` and `job` run parts, for programs that run several comparisons at once.
    """

    def __init__(self, comparison: Comparison, report: Report = silent, show: Report = silent) -> None:
        self.comparison, self.report, self.show = comparison, report, show
        self.runs = [run for entry in comparison.entries for run in runs_of(comparison, entry)]
        self.errors: dict[str, str] = {}
        self.done = 0
        self.durations: list[float] = []
        self.running: dict[str, ComparisonRun] = {}
        self.logs = comparison.out / "logs"
        self._interrupted: Callable[[], bool] = lambda: False
        self._trainer: Trainer = train

    def __call__(self) -> dict[str, Any]:
        """The results as plain data, which `weft.bench.compare.comparison_report` writes; see `weft.bench.compare.results`."""
        for warning in check(self.comparison):
            self.report(f"note: {warning}")
        self.comparison.out.mkdir(parents=True, exist_ok=True)
        with RunLock(self.comparison.out), Interrupts() as interrupts:
            self._interrupted = lambda: interrupts.requested
            at_once = self._at_once()
            if at_once > 1:
                self._prepare()
            self._train(at_once)
            self._measure()
        return self.results()

    def results(self) -> dict[str, Any]:
        """The results so far. An unfinished training is included only if no other training of its entry has finished."""
        ended = {run for run in self.runs if run.name not in self.errors and complete(run.folder)}
        scored = {run.entry for run in ended}
        runs = [run for run in self.runs if run in ended or run.name in self.errors or run.entry not in scored]
        errors = {run.name: self.errors.get(run.name) or _unfinished(run) for run in runs if run not in ended}
        return collect(self.comparison, runs, errors, {run.name: self.job(run) for run in ended})

    def _prepare(self) -> None:
        """Prepares the data, which all trainings find in the cache then."""
        if not all(complete(run.folder) for run in self.runs):
            self.report("preparing the data")
            with tempfile.TemporaryDirectory() as folder:
                config = training(self.comparison, self.runs[0].entry).config()
                build_task(config, Path(folder), teacher=OpenTeacher()).prepare()

    def _at_once(self) -> int:
        """The number of trainings in parallel. An engine is started if there is anything to train."""
        if self.comparison.engine is None or all(complete(run.folder) for run in self.runs):
            return self.comparison.at_once
        trainings = RayTrainings()
        self._trainer = trainings
        return min(self.comparison.at_once, trainings.at_once) if self.comparison.at_once > 1 else trainings.at_once

    def _train(self, at_once: int) -> None:
        count = len(self.runs)
        left = [run for run in self.runs if not complete(run.folder)]
        self.done = count - len(left)
        done = f", {self.done} of them already done" if self.done else ""
        self.report(f"{count} trainings{done}; their logs are in {self.logs}")
        processes = Processes(self.logs, at_once=at_once)
        self._in_parallel([partial(self.train, run, processes) for run in self.runs], processes, self._status)

    def train(self, run: ComparisonRun, processes: Processes) -> None:
        """Trains one run, unless it is already complete. A failure becomes part of the results; Stopped is raised."""
        before = complete(run.folder)
        if not before:
            self.running[run.name] = run
            self.report(f"training {run}")
        try:
            self._trainer(self._training(run), run.folder, processes, run.name)
        except Failure as failure:
            self.errors[run.name] = str(failure)
        finally:
            self.running.pop(run.name, None)
        self.done += not before
        if run.name in self.errors:
            self.report(f"failed: {run}: {self.errors[run.name]}")
        elif not before:
            self.durations.append(records(run.folder)[-1]["seconds"])
            self.report(f"trained {run} ({self.done} of {len(self.runs)})")

    def _training(self, run: ComparisonRun) -> Training:
        budget = self.comparison.budget
        length = (
            ("train.budget=time", f"train.seconds={budget.seconds:g}") if budget.seconds else (f"train.steps={budget.steps}",)
        )
        return training(self.comparison, run.entry, *length, f"train.seed={run.seed}")

    def _measure(self) -> None:
        trained = [run for run in self.runs if run.name not in self.errors]
        jobs = [self.job(run) for run in trained]
        if missing := sum(job.load() is None for job in jobs):
            self.report(f"measuring {missing} {'run' if missing == 1 else 'runs'}, one at a time")
            processes = Processes(self.logs)

            def status() -> str:
                return f"measured: {sum(job.file.exists() for job in jobs)} of {len(jobs)}"

            self._in_parallel([lambda: work("measure", jobs, processes)], processes, status)
        for run, job in zip(trained, jobs, strict=True):
            if error := job.error():
                self.report(f"failed: {run}: {UNMEASURED}{error}")

    def job(self, run: ComparisonRun) -> Job:
        """The measurements of a run. Speed and growth do not depend on the seed: only the first run of an entry has them."""
        plan = self.comparison
        wanted = Measurements(
            plan.test, plan.sentences, plan.lengths, alone=plan.at_once > 1 or plan.engine is not None, maps=True
        )
        if run.number:
            wanted = Measurements(plan.test)
        file = plan.out / "measures" / f"{run.name}.json"
        return Job(str(file), str(run.folder), asdict(wanted))

    def _in_parallel(self, works: Sequence[Callable[[], None]], processes: Processes, status: Callable[[], str]) -> None:
        """Does all works, `at_once` at a time, in threads that wait for processes, while this thread shows the status."""
        with ThreadPoolExecutor(processes.at_once) as workers:
            waiting: set[Future[None]] = {workers.submit(one) for one in works}
            finished: set[Future[None]] = set()
            try:
                while waiting:
                    ended, waiting = wait(waiting, TICK, FIRST_COMPLETED)
                    finished |= ended
                    if self._interrupted():
                        processes.stop()
                    self.show(status())
            except BaseException:
                processes.stop()
                raise
        problems = [each.exception() for each in finished]
        if any(isinstance(problem, Stopped) for problem in problems):
            raise Interrupted("stopped; run the same command again to continue")
        for problem in problems:
            if problem is not None:
                raise problem

    def _status(self) -> str:
        parts = [f"{self.done} of {len(self.runs)} trained"]
        lasts = {run: _last(run) for run in list(self.running.values())}
        parts += [f"{run}: step {last['step']:,}, loss {last['loss'] or 0:.3f}" for run, last in lasts.items() if last]
        if times := self.durations + [last["seconds"] + last["seconds_left"] for last in lasts.values() if last]:
            running = sum(last["seconds_left"] for last in lasts.values() if last)
            waiting = max(0, len(self.runs) - self.done - len(lasts)) * statistics.fmean(times)
            parts.append(f"about {duration((running + waiting) / max(1, len(lasts)))} left")
        return " · ".join(parts)


def _unfinished(run: ComparisonRun) -> str:
    last = _last(run)
    return f"unfinished: stopped after step {last['step']:,}" if last else "not started, or stopped before the first log line"


def _last(run: ComparisonRun) -> dict[str, Any]:
    """The last training line of a run's log."""
    return next((line for line in reversed(records(run.folder)) if line["event"] == "train"), {})


def compare(
    recipes: str | Sequence[str],
    *,
    data: str | Sequence[str] = (),
    valid: str | Sequence[str] = (),
    test: str | Sequence[str] = (),
    budget: str,
    out: str | Path,
    slot: str | None = None,
    kinds: str | Sequence[str] = (),
    repeat: int = 1,
    set: Mapping[str, Any] | Sequence[str] = (),
    tell: Report = silent,
) -> dict[str, Any]:
    """Trains several models under one budget and compares them, as `weft compare` does. Returns the document of results.json.

    `recipes` are recipes or files with changes after commas; `slot` and `kinds` vary one part of each. `budget` is that of each
    training: "10m" or "2k-steps". The report is written into `out`; the same call continues after an interruption.
    """
    plan = Comparison(
        parse_entries(_listed(recipes), slot, ",".join(_listed(kinds)) or None, tell),
        Path(out),
        parse_budget(budget),
        data=tuple(_listed(data)),
        valid=tuple(_listed(valid)),
        test=tuple(_listed(test)),
        sets=tuple(override_texts(set)),
        repeat=repeat,
    )
    document = Sweep(plan, tell)()
    write_report(document, plan.out)
    return document


def _listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
