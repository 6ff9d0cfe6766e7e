"""Shared code of the sweeps: trains several runs in parallel on one device and scores each of them.

A run calls `weft train` and `weft evaluate` as a user would, in separate processes. Completed runs in the results folder are
not repeated, interrupted runs are resumed, and a run that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training, train
from weft.bench.machine import about as describe_machine
from weft.config.registry import build
from weft.config.sections import Config, load_config
from weft.errors import WeftError
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.runs.open_run import open_run
from weft.runs.run_folder import records
from weft.tasks.base import TaskContext


@dataclass(frozen=True)
class Run:
    """One training: a recipe with changes, on `data`. tests: name → data to score, decoded with a beam of `beam`.

    data: empty if `sets` name it · tags: the tag of each test that needs one · beam: 0 for tasks without one · time: what
    `--time` says, if anything · valid: validation data, if there is any · start: the run to start from, if any ·
    contrasts: name → a file of contrastive pairs · decode: settings of `weft evaluate`
    """

    name: str
    recipe: str
    data: str
    sets: tuple[str, ...] = ()
    tests: Mapping[str, str] = field(default_factory=dict)
    beam: int = 5
    time: str = ""
    valid: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    start: str = ""
    contrasts: Mapping[str, str] = field(default_factory=dict)
    decode: tuple[str, ...] = ()

    @property
    def training(self) -> Training:
        data, valid = (self.data,) if self.data else (), (self.valid,) if self.valid else ()
        return Training(self.recipe, data, valid, self.sets, self.time, self.start)

    def config(self) -> Config:
        return self.training.config()

    def decoding(self, test: str) -> list[str]:
        """The options of `weft evaluate` that say how a test is decoded."""
        words = ["--beam", str(self.beam)] if self.beam and not self.decode else []
        words += [word for setting in self.decode for word in ("--set", setting)]
        return [*words, "--tag", self.tags[test]] if test in self.tags else words


@dataclass
class Outcome:
    """The result of a run. seconds: of training · command: seconds of the whole command, if it was not interrupted, else 0 ·
    scores: test → metric → value · error: why scores are missing."""

    run: Run
    parameters: int = 0
    seconds: float = 0.0
    command: float = 0.0
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""

    def document(self) -> dict[str, Any]:
        about = {"system": self.run.name, "recipe": self.run.recipe, "set": list(self.run.sets)}
        figures = {"parameters": self.parameters, "seconds": self.seconds, "command": self.command, "scores": self.scores}
        return about | figures | {"error": self.error}


def sweep(runs: Sequence[Run], options: argparse.Namespace, prepare: int = 1) -> list[Outcome]:
    """Fills the shared cache for the first `prepare` runs, then trains and scores all runs."""
    for run in runs[:prepare]:
        prepare_data(run.config())
    return Sweep(options.out, at_once=options.at_once, minutes=options.minutes)(runs)


class Sweep:
    """Trains and scores runs in `out`, `at_once` of them at a time, for at most `minutes`.

    out/NAME: the run · out/logs: the output of each process · out/scores, out/texts: one file per run and test.
    """

    def __init__(self, out: Path, *, at_once: int = 4, minutes: float = 0.0) -> None:
        self.out, self.at_once = out, at_once
        self.processes = Processes(out / "logs", at_once=at_once, until=deadline(minutes))

    def __call__(self, runs: Sequence[Run]) -> list[Outcome]:
        for folder in ("scores", "texts"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.at_once) as workers:
            try:
                return list(workers.map(self._train_and_score, runs))
            except KeyboardInterrupt:
                self.processes.stop()
                raise

    def _train_and_score(self, run: Run) -> Outcome:
        outcome = Outcome(run)
        try:
            outcome.command = self._train(run)
            outcome.parameters = open_run(self.out / run.name).model.count_parameters()
            outcome.seconds = training_seconds(self.out / run.name)
            for test, pairs in run.tests.items():
                outcome.scores[test] = self._evaluate(run, test, pairs)
            for test, file in run.contrasts.items():
                outcome.scores[test] = self._contrast(run, test, file)
        except (Failure, Stopped, WeftError, OSError) as error:
            outcome.error = str(error)
        message = outcome.error or f"done, {outcome.seconds:.0f} s of training · {_describe(outcome.scores)}"
        print(f"[{time.strftime('%H:%M:%S')}] {run.name}: {message}", flush=True)
        return outcome

    def _train(self, run: Run) -> float:
        """Trains, and returns how long the whole command took; 0 if it was interrupted on the way."""
        file, folder, began = self.out / "scores" / f"{run.name}.seconds", self.out / run.name, time.monotonic()
        new = not folder.exists()
        train(run.training, folder, self.processes, f"{run.name}.train")
        if new:
            file.write_text(f"{time.monotonic() - began:.1f}\n")
        return float(file.read_text()) if file.exists() else 0.0

    def _evaluate(self, run: Run, test: str, pairs: str) -> dict[str, float]:
        file = self.out / "scores" / f"{run.name}.{test}.json"
        if not file.exists():
            text = str(self.out / "texts" / f"{run.name}.{test}.txt")
            words = ["evaluate", str(self.out / run.name), "--data", pairs, "--json", "-o", text, *run.decoding(test)]
            file.write_text(self.processes(f"{run.name}.{test}", words), "utf-8")
        found = json.loads(file.read_text("utf-8"))
        if "metrics" not in found:  # the task compares no predictions with references
            return next(iter(found["scores"].values()))
        return {name: metric["value"] for name, metric in found["metrics"].items()}

    def _contrast(self, run: Run, test: str, pairs: str) -> dict[str, float]:
        """The accuracy on contrastive pairs, and that of each group."""
        file = self.out / "scores" / f"{run.name}.{test}.json"
        if not file.exists():
            words = ["evaluate", str(self.out / run.name), "--contrastive", pairs, "--json"]
            file.write_text(self.processes(f"{run.name}.{test}", words), "utf-8")
        found = json.loads(file.read_text("utf-8"))
        return {"accuracy": found["accuracy"]} | {name: each["accuracy"] for name, each in found.get("groups", {}).items()}


def count_parameters(config: Config, sizes: Sizes | None = None) -> int:
    """Counts the parameters of the model in `config`, by default with the configured vocabulary size."""
    vocabulary = config.data.vocabulary
    sizes = sizes or Sizes(vocabulary, vocabulary, config.data.shared_vocabulary)
    with torch.device("meta"):
        model: Model = build_model(config.model, sizes, where="model")
    return model.count_parameters()


def prepare_data(config: Config) -> None:
    """Trains the tokenizers and fills the shared cache, so that runs that start together can use it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            build("weft.tasks:TASKS", config.task, TaskContext(config, Path(folder)), where="task").prepare()
        except WeftError as error:
            sys.exit(str(error))


BEGAN = time.monotonic()
"""When the script was started. It may sweep several times, in stages that build on each other."""


def deadline(minutes: float) -> float:
    """The time (of time.monotonic) `minutes` after the script was started; 0 means no limit."""
    return BEGAN + 60 * minutes if minutes else float("inf")


def scale_steps(recipe: str, sets: Sequence[str], scale: float) -> str:
    """The setting that multiplies the training steps of a recipe by `scale`."""
    return f"train.steps={max(1, round(load_config(recipe, sets).train.steps * scale))}"


def frugal_settings(out: Path) -> tuple[str, ...]:
    """Settings of every run: one cache, and one checkpoint kept."""
    return (f"data.cache={out / 'cache'}", "train.keep_last=1", "train.tensorboard=false")


def common_settings(out: Path) -> tuple[str, ...]:
    """The same with padded rows, so that every model gets the same batches."""
    return (*frugal_settings(out), "train.packed=false")


def about() -> str:
    """Date, device and versions, for the line above a table."""
    machine = describe_machine()
    versions = (f"{name} {machine[key]}" for name, key in (("Python", "python"), ("torch", "torch"), ("weft", "weft")))
    return " · ".join([machine["date"], machine["device"], *versions])


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def score_cell(outcome: Outcome, test: str, metric: str, digits: int = 2) -> str:
    """A score for a table; a dash if it is missing."""
    value = outcome.scores.get(test, {}).get(metric)
    return "–" if value is None else f"{value:.{digits}f}"


def report(out: Path, name: str, table: str, outcomes: Sequence[Outcome]) -> bool:
    """Prints a table and writes it to out/NAME.md, and all figures to out/NAME.json. Returns whether any run failed."""
    failed = "".join(f"\n{each.run.name}: {each.error}\n" for each in outcomes if each.error)
    table = f"{about()}\n\n{table}"
    (out / f"{name}.md").write_text(table + failed, "utf-8")
    document = {"about": about(), "runs": [each.document() for each in outcomes]}
    (out / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"\n{table}{failed}\nwritten to {out / name}.md and .json")
    return bool(failed)


def add_options(parser: argparse.ArgumentParser, at_once: int) -> None:
    """Adds the options that every sweep has."""
    place = Path("runs") / Path(sys.argv[0]).stem
    parser.add_argument("--out", type=Path, default=place, help=f"folder for runs and results (default {place})")
    parser.add_argument("--at-once", type=int, default=at_once, help=f"runs in parallel (default {at_once})")
    parser.add_argument("--minutes", type=float, default=0, help="time limit of the script; the same command continues later")
    parser.add_argument("--only", default="", help="names of systems, separated by commas")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="factor for all step counts, to try the script")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of weft train, for all runs")


def select(systems: Mapping[str, Any], only: str) -> list[str]:
    """The names in `only` (all if it is empty), in the order of the table."""
    wanted = only.split(",") if only else list(systems)
    unknown = [name for name in wanted if name not in systems]
    if unknown:
        sys.exit(f"unknown system {', '.join(unknown)}; choose from {', '.join(systems)}")
    return [name for name in systems if name in wanted]


def training_seconds(folder: Path) -> float:
    """The training time of a run, from the last record of its log that has one."""
    return max((record["seconds"] for record in records(folder) if "seconds" in record), default=0.0)


def _describe(scores: Mapping[str, Mapping[str, float]]) -> str:
    return " · ".join(f"{test}: {', '.join(f'{key} {some[key]:.2f}' for key in [*some][:2])}" for test, some in scores.items())
