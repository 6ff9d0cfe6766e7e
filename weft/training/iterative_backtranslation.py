"""Iterative back-translation (Hoang et al. 2018): models of both directions improve each other in rounds.

Round 0 trains a model of each direction on the pairs. In every later round, the best model of one direction translates the text
of its source language, and the model of the other direction is trained anew on the pairs and these translations.

    forward-0 backward-0 …    the runs, and in later rounds the pairs they were trained on, forward-1.jsonl …
    plan.json                 what the rounds train on
    rounds.json               the validation scores of all runs
    forward backward          links to the best run of each direction
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from weft.data.formats import swapped
from weft.data.text_lines import check_file
from weft.errors import ConfigError
from weft.file_access import ASIDE, replace_file
from weft.runs.distillation_and_backtranslation import Texts, translate_corpus
from weft.runs.open_run import Report, run_config, silent
from weft.runs.run_folder import CONFIG, records, remember_plan
from weft.tasks.base import Measure, build_task, find_measure
from weft.tasks.language_modeling.data import LineFile
from weft.training.model_card import ended
from weft.training.train_run import train

SCORES = "rounds.json"
TAG = "bt"
"""The tag of sources that a model has written (Caswell et al. 2019)."""

OTHER = {"forward": "backward", "backward": "forward"}


@dataclass(frozen=True)
class BacktranslationData:
    """The data that the rounds train on.

    mono: for each direction the text of its target language, which the other direction translates; a direction without any is
    trained once.
    """

    recipe: str
    data: Sequence[str]
    valid: Sequence[str]
    mono: Mapping[str, Sequence[str]]
    rounds: int
    out: Path
    sets: Sequence[str] = ()

    def check(self) -> None:
        """Raises an error if the rounds could not end, or if OUT has those of another plan."""
        if not self.valid:
            raise ConfigError("rounds are compared by their validation scores: give --valid FILES")
        if not any(self.mono.values()):
            raise ConfigError("there is no text to translate back: give --target-text FILE, --source-text FILE or both")
        if self.rounds > 1 and not all(self.mono.values()):
            raise ConfigError(
                "--rounds: with text of one language only, a second round would repeat the first; give both texts"
            )

        for name in (*self.data, *self.valid):
            if name.lstrip().startswith("{"):
                raise ConfigError(f"{name}: rounds read pairs without weights and tags; name files without braces")
            swapped(name)
        for name in chain(*self.mono.values()):
            check_file(name)
        self._remember()

    def _remember(self) -> None:
        """Saves what the runs in OUT are trained on. A plan may only get further rounds."""
        mine = {"recipe": self.recipe, "--data": [*self.data], "--valid": [*self.valid], "--set": [*self.sets]}
        mine |= {name: [*self.mono.get(key, ())] for name, key in (("--target-text", "forward"), ("--source-text", "backward"))}
        remember_plan(self.out, mine, "rounds")

    def pairs(self, direction: str) -> tuple[list[str], list[str]]:
        """The names of training and validation pairs in this direction."""
        turn = swapped if direction == "backward" else str
        return [*map(turn, self.data)], [*map(turn, self.valid)]


def iterate_backtranslation(plan: BacktranslationData, report: Report = silent) -> dict[str, Path]:
    """Trains all rounds and returns the best run of each direction. The same call continues after an interruption."""
    plan.check()
    best: dict[str, tuple[Path, float]] = {}
    scores: list[dict[str, Any]] = []
    for number in range(plan.rounds + 1):
        teachers = {direction: run for direction, (run, _) in best.items()}
        for direction in OTHER:
            if number and not plan.mono.get(direction):
                continue
            run = _train(plan, direction, number, teachers, report)
            measure, found = _score(run)
            if direction not in best or measure.better(found[measure.key], best[direction][1]):
                best[direction] = run, found[measure.key]
            scores.append({"round": number, "direction": direction, "run": run.name, **found})
            replace_file(plan.out / SCORES, json.dumps(scores, indent=1) + "\n")
            report(
                f"round {number}, {direction}: {measure.title} {found[measure.key]:.4g}; best so far: {best[direction][0].name}"
            )
    for direction, (run, _) in best.items():
        _link(plan.out / direction, run)
    return {direction: run for direction, (run, _) in best.items()}


def _train(plan: BacktranslationData, direction: str, number: int, teachers: Mapping[str, Path], report: Report) -> Path:
    """The finished run of a direction in a round."""
    run = plan.out / f"{direction}-{number}"
    if ended(run):
        return run
    if (run / CONFIG).exists():
        train(out=run, resume=True, tell=report)
        return run
    data, valid = plan.pairs(direction)
    corpora: list[Any] = list(data)
    if number:
        made = plan.out / f"{direction}-{number}.jsonl"
        if not made.exists():
            teacher, texts = teachers[OTHER[direction]], [LineFile(name) for name in plan.mono[direction]]
            report(f"round {number}: {teacher.name} translates {', '.join(text.name for text in texts)}")
            device = run_config(teacher).train.device
            translate_corpus([teacher], Texts(texts, back=True), made, device=device, report=report)
        corpora.append({"files": str(made), "tag": TAG})
    train(plan.recipe, data=corpora, valid=valid, out=run, set=plan.sets, tell=report)
    return run


def _score(run: Path) -> tuple[Measure, dict[str, float]]:
    """The measure that compares the runs, and the validation scores of a finished one.

    They are compared by train.best_by, or by BLEU if that is the loss: each run has its own tokens, so losses per token differ.
    """
    config = run_config(run)
    by = "bleu" if config.train.best_by == "loss" else config.train.best_by
    measure = find_measure(build_task(config, run), by)
    found = {key: value for key, value in records(run)[-1].items() if isinstance(value, float) and key != "seconds"}
    if measure.key not in found:
        raise ConfigError(
            "rounds are compared by BLEU, because their losses are those of different tokens: set train.validate_bleu"
        )
    return measure, found


def _link(link: Path, run: Path) -> None:
    aside = link.with_name(f"{ASIDE}{secrets.token_hex(4)}-{link.name}")
    aside.symlink_to(run.name)
    os.replace(aside, link)
