"""Searches settings of a recipe: trains it again and again under one budget, with values that optuna proposes.

Each trial is a training as `weft compare` runs them, in OUT/runs. The study is OUT/study.journal: a search that was interrupted
continues its trial where that stopped, and then proposes what it would have proposed without the interruption.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bench.compare.plan import Comparison, Entry, check, runs_of, training
from weft.bench.compare.sweep import Sweep
from weft.bench.compare.training_jobs import Processes, Stopped
from weft.bench.speed_report import COMPUTATION
from weft.data.json_text import read_json
from weft.errors import ConfigError, Interrupted, RunError
from weft.explain.figures import can_draw, empty_figure, save_figure, style_axes
from weft.file_access import replace_file
from weft.runs.open_run import Report, silent
from weft.runs.run_folder import RunLock, complete, records
from weft.tasks.base import Measure, build_task, find_measure
from weft.version import install

Array = NDArray[Any]

NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})(?::(log|{NUMBER}))?")
WHOLE = re.compile(r"-?\d+")

GROUPS, FEWEST = 3, 8
"""Groups of a number's values whose scores are compared, and the fewest trials for that."""

STUDY = "weft"
JOURNAL, SETTINGS, RESULTS, TABLE, PICTURE = "study.journal", "search.json", "results.json", "trials.csv", "importance.png"

RANDOM = 8
"""Trials with random values before optuna learns from their scores."""


@dataclass(frozen=True)
class Dimension:
    """A setting to search: choices as they are written in --set, or a range of numbers.

    log: whether small and large values are equally likely · step: the distance of values, if only some are tried
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False
    step: float | None = None

    def propose(self, trial: Any) -> str:
        """A value of an optuna trial, as --set takes it."""
        if self.choices:
            return str(trial.suggest_categorical(self.key, list(self.choices)))
        if self.whole:
            return str(trial.suggest_int(self.key, int(self.low), int(self.high), step=int(self.step or 1), log=self.log))
        return f"{trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log):.6g}"

    def corner(self, place: int) -> str:
        """The first (0) or the last (-1) value, as --set takes it."""
        return self.choices[place] if self.choices else f"{(self.low, self.high)[place]:.6g}"


def parse_dimension(text: str) -> Dimension:
    """Parses KEY=LOW..HIGH, KEY=LOW..HIGH:log, KEY=LOW..HIGH:STEP, or KEY=A|B|C."""
    key, equals, space = (part.strip() for part in text.partition("="))
    if not key or not equals or not space:
        raise ConfigError(f"--set-space {text}: write KEY=LOW..HIGH, KEY=LOW..HIGH:log, KEY=LOW..HIGH:STEP or KEY=A|B|C")
    if not (match := RANGE.fullmatch(space)):
        choices = tuple(choice.strip() for choice in space.split("|"))
        if len(set(choices)) < 2 or "" in choices:
            raise ConfigError(f"--set-space {text}: there is nothing to choose from; write KEY=LOW..HIGH or KEY=A|B|C")
        return Dimension(key, choices)
    low, high, how = match.groups()
    whole = all(WHOLE.fullmatch(part) for part in (low, high, *([how] if how and how != "log" else [])))
    log, step = how == "log", float(how) if how and how != "log" else None
    if float(low) >= float(high) or (log and float(low) <= 0) or (step is not None and step <= 0):
        raise ConfigError(f"--set-space {text}: the range goes from a lower to a higher value, above 0 if it is logarithmic")
    return Dimension(key, (), float(low), float(high), whole, log, step)


@dataclass(frozen=True)
class Search:
    """The settings of a search.

    plan: the recipe, its data, the budget of each trial, and the folder · by: the score to improve
    """

    plan: Comparison
    space: tuple[Dimension, ...]
    trials: int = 20
    seed: int = 1
    by: str = ""

    @property
    def base(self) -> Entry:
        (entry,) = self.plan.entries
        return entry

    def entry(self, values: Sequence[str]) -> Entry:
        """The recipe with proposed values."""
        sets = (f"{dimension.key}={value}" for dimension, value in zip(self.space, values, strict=True))
        return Entry(self.base.recipe, (*self.base.sets, *sets), ", ".join(values))

    def document(self) -> dict[str, Any]:
        """Everything that must stay as it is when a search continues."""
        space = {dimension.key: repr(dimension) for dimension in self.space}
        plan = {name: value for name, value in self.plan.document().items() if name not in ("at_once", "lengths", "sentences")}
        return {"recipe": self.base.spec, "space": space, "seed": self.seed, "by": self.by, **plan}

    def measure(self) -> Measure:
        """The score to improve: `by`, or the one by which trained models of the task are compared."""
        task = build_task(training(self.plan, self.base).config(), self.plan.out)
        return find_measure(task, self.by) if self.by else task.headline


def run_search(search: Search, report: Report = silent, show: Report = silent) -> dict[str, Any]:
    """Runs the trials that are missing. Returns the document of results.json."""
    optuna, out, measure = _optuna(), search.plan.out, _check(search, report)
    out.mkdir(parents=True, exist_ok=True)
    with RunLock(out):
        _check_same(search)
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / JOURNAL)))
        direction = "maximize" if measure.higher_is_better else "minimize"
        study = optuna.create_study(study_name=STUDY, storage=storage, direction=direction, load_if_exists=True)
        try:
            _run_trials(optuna, study, search, measure, report, show)
        finally:
            document = write_results(optuna, study, search, measure)  # also what an interrupted search has found
    return document


def _run_trials(optuna: ModuleType, study: Any, search: Search, measure: Measure, report: Report, show: Report) -> None:
    states = optuna.trial.TrialState
    while True:
        trials = study.get_trials(deepcopy=False)
        running = [each for each in trials if each.state == states.RUNNING]
        if not running and len(trials) >= search.trials:
            return
        # A sampler for each trial: what it proposes depends on the trials before, not on when the search was resumed.
        study.sampler = optuna.samplers.TPESampler(seed=search.seed + len(trials), n_startup_trials=RANDOM)
        number, values = _continued(running[0]) if running else _proposed(study, search.space)
        score, problem = _train(search, values, measure, report, show)
        if math.isnan(score):
            study.tell(number, state=states.FAIL)
            report(f"trial {number + 1} of {search.trials} failed: {problem}")
        else:
            study.tell(number, score)
            report(f"trial {number + 1} of {search.trials}: {measure.title} {score:.4g} with {_shown(search.space, values)}")


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"weft search needs the package optuna: {install('search')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna  # type: ignore[no-any-return]


def _check(search: Search, report: Report) -> Measure:
    """The score to improve. Raises ConfigError if the search is impossible."""
    if not search.space:
        raise ConfigError("name at least one setting to search, such as --set-space model.dropout=0..0.4")
    keys = [dimension.key for dimension in search.space]
    if repeated := {key for key in keys if keys.count(key) > 1}:
        raise ConfigError(f"--set-space {min(repeated)}: this setting occurs twice")
    corners = [[each.corner(place) for each in search.space] for place in (0, -1)]
    for values in corners:  # errors show before anything is trained
        for warning in check(_plan(search, values)):
            report(f"note: {warning}")
    return search.measure()


def _plan(search: Search, values: Sequence[str]) -> Comparison:
    """The comparison of one entry that trains a trial."""
    plan = search.plan
    return Comparison((search.entry(values),), plan.out, plan.budget, plan.data, plan.valid, plan.test, plan.sets)


def _check_same(search: Search) -> None:
    """Saves the settings of a new search. Raises ConfigError if the folder holds a search with others."""
    file, wanted = search.plan.out / SETTINGS, json.loads(json.dumps(search.document()))
    if not file.exists():
        replace_file(file, json.dumps(wanted, indent=1, ensure_ascii=False) + "\n")
        return
    before = read_json(file, "restore it, or choose another --out")
    if different := sorted(key for key in {*before, *wanted} if before.get(key) != wanted.get(key)):
        raise ConfigError(
            f"{search.plan.out} holds a search with another {', '.join(different)}; repeat its command to continue it (only "
            "--trials may change), or choose another --out"
        )


def _proposed(study: Any, space: Sequence[Dimension]) -> tuple[int, list[str]]:
    trial = study.ask()
    values = [dimension.propose(trial) for dimension in space]
    trial.set_user_attr("values", values)
    return trial.number, values


def _continued(trial: Any) -> tuple[int, list[str]]:
    """The number and the values of a trial that was interrupted. One that was killed before it had any fails."""
    return trial.number, list(trial.user_attrs.get("values", []))


def _train(search: Search, values: Sequence[str], measure: Measure, report: Report, show: Report) -> tuple[float, str]:
    """The score of a trial; not a number if it failed, with the reason."""
    if len(values) != len(search.space):
        return math.nan, "it was stopped before it began"
    plan = _plan(search, values)
    sweep = Sweep(plan, show, show)
    (run,) = runs_of(plan, plan.entries[0])
    try:
        sweep.train(run, Processes(sweep.logs))
    except Stopped:
        raise Interrupted("stopped; run the same command again to continue") from None
    if problem := sweep.errors.get(run.name):
        return math.nan, problem
    score = records(run.folder)[-1].get(measure.key) if complete(run.folder) else None
    if score is None:
        return math.nan, f"{measure.title} was not measured"
    return (score, "") if math.isfinite(score) else (math.nan, f"{measure.title} is not finite")


def _shown(space: Sequence[Dimension], values: Sequence[str]) -> str:
    return " ".join(f"{dimension.key}={value}" for dimension, value in zip(space, values, strict=True))


def write_results(optuna: ModuleType, study: Any, search: Search, measure: Measure) -> dict[str, Any]:
    """Writes the results so far as JSON, as a table and as a picture. Returns the document."""
    out, states = search.plan.out, optuna.trial.TrialState
    trials = [
        {"number": each.number + 1, "state": each.state.name.lower()}
        | {"score": each.value if each.state == states.COMPLETE else None}
        | {key.key: value for key, value in zip(search.space, each.user_attrs.get("values", []), strict=False)}
        for each in study.get_trials(deepcopy=False)
    ]
    done = [each for each in trials if each["score"] is not None]
    best = (max if measure.higher_is_better else min)(done, key=lambda each: each["score"]) if done else None
    document: dict[str, Any] = {
        "settings": search.document(),
        "score": {"key": measure.key, "title": measure.title, "higher_is_better": measure.higher_is_better},
        "trials": trials,
        "best": best,
        "command": _command(search, best) if best else "",
        "importance": importance(search.space, done),
    }
    replace_file(out / RESULTS, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    table = io.StringIO()
    writer = csv.DictWriter(table, ["number", "state", "score", *(each.key for each in search.space)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(trials)
    replace_file(out / TABLE, table.getvalue())
    if done and can_draw():
        save_figure(draw_importance(document), out / PICTURE)
    return document


def importance(space: Sequence[Dimension], trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The importance of each setting, adding up to 1: the share of the variance of the trials' ranks that its values explain.

    Numbers are cut into up to `GROUPS` groups of values. What as many groups explain by chance is subtracted (epsilon squared,
    Kelley 1935). Ranks keep a diverged trial from deciding everything. Empty with too few trials, or if nothing explains them.
    """
    ranks = _ranks(np.array([each["score"] for each in trials], float))
    total = float(((ranks - ranks.mean()) ** 2).sum()) if len(ranks) else 0.0
    if len(ranks) < FEWEST or not total:
        return {}
    found = {}
    for each in space:
        groups = _groups(each, [str(trial[each.key]) for trial in trials])
        inner = sum(float(((ranks[groups == one] - ranks[groups == one].mean()) ** 2).sum()) for one in set(groups))
        count = len(set(groups))
        free = len(ranks) - count
        found[each.key] = max(0.0, (total - inner - (count - 1) * inner / free) / total) if free else 0.0
    whole = sum(found.values())
    return {key: share / whole for key, share in found.items()} if whole else {}


def _ranks(values: Array) -> Array:
    """The rank of each value; equal ones have the same."""
    return np.unique(values, return_inverse=True)[1].astype(float)


def _groups(dimension: Dimension, values: Sequence[str]) -> Array:
    """The group of each trial: its choice, or the part of the range that its number lies in, with about as many in each."""
    if dimension.choices:
        return np.unique(np.array(values), return_inverse=True)[1]
    numbers = np.array(values, float)
    bounds = np.unique(np.quantile(numbers, np.arange(1, GROUPS) / GROUPS))
    return np.searchsorted(bounds, numbers)


def _command(search: Search, best: Mapping[str, Any]) -> str:
    """The command that trains the recipe with the best values."""
    sets = [*search.plan.sets, *search.base.sets, *(f"{each.key}={best[each.key]}" for each in search.space)]
    given = (("--data", search.plan.data), ("--valid", search.plan.valid))
    data = [word for flag, files in given for file in files for word in (flag, file)]
    return shlex.join(["weft", "train", search.base.recipe, *data, "--set", *sets])


def draw_importance(document: Mapping[str, Any]) -> Any:
    """A figure: the importance of each setting, and the scores of the trials with the best one so far."""
    figure = empty_figure(10.0, 3.8)
    bars, course = figure.subplots(1, 2)
    parts = sorted(document["importance"].items(), key=lambda item: item[1])
    bars.barh([key for key, _ in parts], [100 * share for _, share in parts], color=COMPUTATION, height=0.6)
    bars.set_title("importance for the score (%)" if parts else "importance: too few trials", fontsize=10, loc="left")
    style_axes(bars, "x")
    scored = [(each["number"], each["score"]) for each in document["trials"] if each["score"] is not None]
    pick = max if document["score"]["higher_is_better"] else min
    best = [pick(score for _, score in scored[: place + 1]) for place in range(len(scored))]
    numbers = [number for number, _ in scored]
    course.plot(numbers, [score for _, score in scored], ".", color="#999999", label="trial")
    course.step(numbers, best, where="post", color=COMPUTATION, label="best so far")
    course.set_title(f"{document['score']['title']} by trial", fontsize=10, loc="left")
    course.legend(fontsize=8, frameon=False)
    style_axes(course)
    return figure


def best_or_raise(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The best trial. Raises RunError if all have failed."""
    if document["best"] is None:
        raise RunError("all trials failed; see the folder logs for the reasons")
    return dict(document["best"])
