"""Several trainings side by side on one device, each then scored: what the sweeps of this folder have in common.

A run is `weft train` and `weft evaluate` as a user would type them, in processes of their own. What is complete in the folder
of results is not done again, what was interrupted goes on, and one that fails does not stop the others.
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

from weft.bench.machine import about as facts
from weft.compare.processes import Failure, Processes, Stopped
from weft.compare.trainings import Training, records, train
from weft.config.registry import build
from weft.config.sections import Config
from weft.data.tokenizer import load_tokenizers
from weft.errors import WeftError
from weft.models.base import Model, Sizes
from weft.tasks.base import Setting


@dataclass(frozen=True)
class Run:
    """One training: a recipe with changes, on `data`. tests: name → pairs it is scored on, by a beam of `beam`."""

    name: str
    recipe: str
    data: str
    sets: tuple[str, ...] = ()
    tests: Mapping[str, str] = field(default_factory=dict)
    beam: int = 5

    @property
    def training(self) -> Training:
        return Training(self.recipe, (self.data,), (), self.sets)

    def config(self) -> Config:
        return self.training.config()


@dataclass
class Outcome:
    """What became of a run. scores: of each test its metrics by name · error: why there are none, or not all."""

    run: Run
    parameters: int = 0
    seconds: float = 0.0
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""

    def document(self) -> dict[str, Any]:
        about = {"system": self.run.name, "recipe": self.run.recipe, "set": list(self.run.sets)}
        return about | {"parameters": self.parameters, "seconds": self.seconds, "scores": self.scores, "error": self.error}


class Sweep:
    """Trains and scores runs in `out`, `at_once` of them at a time, for at most `minutes`.

    out/NAME: the run · out/logs: what each process said · out/scores, out/texts: of each run and test.
    """

    def __init__(self, out: Path, *, at_once: int = 4, minutes: float = 0.0) -> None:
        self.out, self.at_once = out, at_once
        until = time.monotonic() + 60 * minutes if minutes else float("inf")
        self.processes = Processes(out / "logs", at_once=at_once, until=until)

    def __call__(self, runs: Sequence[Run]) -> list[Outcome]:
        for folder in ("scores", "texts"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.at_once) as workers:
            try:
                return list(workers.map(self._whole, runs))
            except KeyboardInterrupt:
                self.processes.stop()
                raise

    def _whole(self, run: Run) -> Outcome:
        outcome = Outcome(run)
        try:
            config = run.config()
            train(run.training, self.out / run.name, self.processes, f"{run.name}.train")
            source, target = load_tokenizers(self.out / run.name, config.data.tokenizer)
            outcome.parameters = count_parameters(config, Sizes(source.size, target.size, source is target))
            outcome.seconds = _seconds(self.out / run.name)
            for test, pairs in run.tests.items():
                outcome.scores[test] = self._evaluate(run, test, pairs)
        except (Failure, Stopped, WeftError, OSError) as error:
            outcome.error = str(error)
        said = outcome.error or f"done, {outcome.seconds:.0f} s of training · {_describe(outcome.scores)}"
        print(f"[{time.strftime('%H:%M:%S')}] {run.name}: {said}", flush=True)
        return outcome

    def _evaluate(self, run: Run, test: str, pairs: str) -> dict[str, float]:
        file = self.out / "scores" / f"{run.name}.{test}.json"
        if not file.exists():
            text = str(self.out / "texts" / f"{run.name}.{test}.txt")
            words = ["evaluate", str(self.out / run.name), "--data", pairs, "--beam", str(run.beam), "--json", "-o", text]
            said = self.processes(f"{run.name}.{test}", words)
            file.write_text(said, "utf-8")
        found = json.loads(file.read_text("utf-8"))["metrics"]
        return {name: metric["value"] for name, metric in found.items()}


def count_parameters(config: Config, sizes: Sizes | None = None) -> int:
    """Of the model that `config` describes, by default with vocabularies as large as it asks for."""
    most = config.data.vocabulary
    sizes = sizes or Sizes(most, most, config.data.shared_vocabulary)
    with torch.device("meta"):
        model: Model = build("weft.models:MODELS", config.model, sizes, where="model")
    return model.count_parameters()


def warm(config: Config) -> None:
    """Trains the tokenizers and tokenises the data into the shared cache, so that runs begun together find it all there."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            build("weft.tasks:TASKS", config.task, Setting(config, Path(folder)), where="task").prepare()
        except WeftError as error:
            sys.exit(str(error))


def common(out: Path) -> tuple[str, ...]:
    """Settings of every run: one cache, one checkpoint kept, and padded rows, so that a batch is the same for every model."""
    return (f"data.cache={out / 'cache'}", "train.packed=false", "train.keep_last=1", "train.tensorboard=false")


def about() -> str:
    """Date, device and versions, for the line above a table."""
    found = facts()
    versions = (f"{name} {found[key]}" for name, key in (("Python", "python"), ("torch", "torch"), ("weft", "weft")))
    return " · ".join([found["date"], found["device"], *versions])


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def shown(outcome: Outcome, test: str, metric: str) -> str:
    """A score for a table; a dash where there is none."""
    value = outcome.scores.get(test, {}).get(metric)
    return "–" if value is None else f"{value:.2f}"


def write(out: Path, name: str, table: str, outcomes: Sequence[Outcome]) -> None:
    """Prints a table, and leaves it beside all figures: out/NAME.md and out/NAME.json."""
    failed = "".join(f"\n{each.run.name}: {each.error}\n" for each in outcomes if each.error)
    (out / f"{name}.md").write_text(table + failed, "utf-8")
    document = {"about": about(), "runs": [each.document() for each in outcomes]}
    (out / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"\n{table}{failed}\nwritten to {out / name}.md and .json")


def add_options(parser: argparse.ArgumentParser, at_once: int) -> None:
    """The options of every sweep."""
    place = Path("runs") / Path(sys.argv[0]).stem
    parser.add_argument("--out", type=Path, default=place, help=f"folder for runs and results (default {place})")
    parser.add_argument("--at-once", type=int, default=at_once, help=f"runs side by side (default {at_once})")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; the same command goes on later")
    parser.add_argument("--only", default="", help="names of systems, joined by commas")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="factor on all steps, to try the script")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of weft train, for all")


def chosen(systems: Mapping[str, Any], only: str) -> list[str]:
    """The names asked for, in the order of the table."""
    wanted = only.split(",") if only else list(systems)
    unknown = [name for name in wanted if name not in systems]
    if unknown:
        sys.exit(f"there is no system {', '.join(unknown)}; there are {', '.join(systems)}")
    return [name for name in systems if name in wanted]


def _seconds(folder: Path) -> float:
    """How long a run was trained, by the last line of its log that says so."""
    return max((record["seconds"] for record in records(folder) if "seconds" in record), default=0.0)


def _describe(scores: Mapping[str, Mapping[str, float]]) -> str:
    return " · ".join(f"{test}: BLEU {found['BLEU']:.2f}, exact {found['exact']:.2f}" for test, found in scores.items())
