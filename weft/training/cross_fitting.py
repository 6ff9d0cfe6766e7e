"""Data for quality estimation: translations with labels, by models that have not seen their sources in training.

The pairs are divided into folds by a hash of their sources. For each fold a model is trained on all others, and translates it.
Each translation is labelled by its reference (`weft.tasks.quality.labels`).

    OUT.folds/1.train.jsonl …     the pairs that the first model is trained on
    OUT.folds/1.held.jsonl …      those that it translates, and 1.txt, its translations
    OUT.folds/run-1 …             the models
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from weft.data.formats import Pairs, open_pairs
from weft.data.validation_split import normal_form
from weft.errors import ConfigError, DataError
from weft.file_access import replace_file, replacing_file
from weft.runs.cross_entropy_filter import cross_entropies
from weft.runs.distillation_and_backtranslation import Texts as TranslatedTexts
from weft.runs.distillation_and_backtranslation import check_out, translate_corpus
from weft.runs.open_run import Report, silent
from weft.runs.run_folder import CONFIG, remember_plan
from weft.runs.translator import load
from weft.tasks.quality.labels import LONGEST, QualityLabel, label_translations, too_long
from weft.training.model_card import ended
from weft.training.train_run import train

TOGETHER = 4096
"""Translations that are labelled at a time."""


@dataclass(frozen=True)
class CrossFitting:
    """The material of the folds.

    recipe: of the models · data: training pairs · valid: validation pairs of all models · folds: at least two · sets: settings
    of the models · options: of the section decode, for the translations.
    """

    recipe: str
    data: Sequence[str]
    valid: Sequence[str]
    out: Path
    folds: int = 2
    sets: Sequence[str] = ()
    time: str | None = None
    options: dict[str, Any] | None = None
    device: str = "auto"

    @property
    def folder(self) -> Path:
        return self.out.with_name(f"{self.out.name}.folds")

    def check(self) -> None:
        """Raises an error if the folds cannot be made, or if the folder has those of other data."""
        if self.folds < 2:
            raise ConfigError("--folds: a model must not translate what it was trained on, so there are at least 2")
        check_quality_out(self.out, self.data)
        mine = {"recipe": self.recipe, "--data": [*self.data], "--valid": [*self.valid], "--folds": self.folds}
        mine |= {"--set": [*self.sets], "--time": self.time}
        remember_plan(self.folder, mine, "folds")


def make_quality_data(plan: CrossFitting, report: Report = silent) -> int:
    """Writes the labelled translations of all folds into plan.out and returns their number.

    The same call continues after an interruption.
    """
    plan.check()
    _write_folds(plan, report)
    made = []
    for number in range(1, plan.folds + 1):
        run, held = plan.folder / f"run-{number}", plan.folder / f"{number}.held.jsonl"
        if (run / CONFIG).exists() and not ended(run):
            train(out=run, resume=True, tell=report)
        elif not ended(run):
            data = str(plan.folder / f"{number}.train.jsonl")
            report(f"fold {number} of {plan.folds}: training {run}")
            train(plan.recipe, data=data, valid=plan.valid, out=run, set=plan.sets, time=plan.time, tell=report)
        labelled = plan.folder / f"{number}.labelled.jsonl"
        if not labelled.exists():
            label_corpus(run, [str(held)], labelled, device=plan.device, options=plan.options, report=report)
        made.append(labelled)
    replace_file(plan.out, "".join(file.read_text("utf-8") for file in made))
    return sum(1 for _ in plan.out.open("rb"))


def label_corpus(
    run: Path,
    data: Sequence[str],
    out: Path,
    *,
    device: str = "auto",
    options: dict[str, Any] | None = None,
    report: Report = silent,
) -> int:
    """Translates pairs that a run has not seen and writes the translations with their labels; returns their number."""
    check_quality_out(out, data)
    pairs = [open_pairs(spec) for spec in data]
    translated = out.with_name(f"{out.name}.txt")
    report(f"translating {', '.join(some.name for some in pairs)} with {run}")
    translate_corpus([run], TranslatedTexts(pairs), translated, device=device, options=options, report=report)
    predictor = load(run, device=device).translation_predictor("quality estimation")
    count = long = 0
    with replacing_file(out) as file, open(translated, encoding="utf-8") as lines:
        both = zip(chain.from_iterable(pairs), lines, strict=True)
        while some := list(islice(both, TOGETHER)):
            full = [(*pair, line.rstrip("\n")) for pair, line in some if all(map(str.strip, (*pair, line)))]
            kept = [each for each in full if not any(map(too_long, each[1:]))]
            long += len(full) - len(kept)
            sources, references, translations = (list(column) for column in zip(*kept)) if kept else ([], [], [])
            labels = label_translations(translations, references)
            entropies = cross_entropies(predictor, list(zip(sources, translations, strict=True)))
            for source, translation, label, entropy in zip(sources, translations, labels, entropies, strict=True):
                file.write(_record(source, translation, label, -entropy).encode())
            count += len(kept)
        if not count:
            what = f" of at most {LONGEST:,} words" if long else ""
            raise DataError(f"{', '.join(data)}: there is no pair{what} to translate")
    if long:
        report(f"left out, as they have more than {LONGEST:,} words: {long:,} of the pairs")
    translated.unlink()
    return count


def _record(source: str, translation: str, label: QualityLabel, log_probability: float) -> str:
    record = {
        "source": source,
        "translation": translation,
        "score": round(label.score, 3),
        "tags": label.joined,
        "log_probability": round(log_probability, 4),
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def check_quality_out(out: Path, data: Sequence[str]) -> None:
    """Raises an error if labelled translations of these files cannot be written into `out`."""
    if out.suffix != ".jsonl":
        raise DataError(f"{out}: labelled translations are JSON lines; choose a name that ends in .jsonl")
    check_out(out, data)


def fold_of(source: str, folds: int) -> int:
    """The fold of a source, from 0 on; sources that differ only in case and white space have the same one."""
    digest = hashlib.blake2b(normal_form(source).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) % folds


def _write_folds(plan: CrossFitting, report: Report) -> None:
    """Writes the pairs of each fold, unless they are there."""
    files = [plan.folder / f"{number}.{part}.jsonl" for number in range(1, plan.folds + 1) for part in ("train", "held")]
    if all(file.exists() for file in files):
        return
    counts = [0] * plan.folds
    with ExitStack() as stack:
        opened = {file: stack.enter_context(replacing_file(file)) for file in files}
        for source, target in chain.from_iterable(_pairs(plan.data)):
            mine = fold_of(source, plan.folds)
            counts[mine] += 1
            line = json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"
            for number in range(plan.folds):
                part = "held" if number == mine else "train"
                opened[plan.folder / f"{number + 1}.{part}.jsonl"].write(line.encode())
        if not all(counts):
            raise DataError(f"{', '.join(plan.data)}: too few pairs for {plan.folds} folds")
    report(f"{plan.folds} folds of {', '.join(f'{count:,}' for count in counts)} pairs")


def _pairs(data: Iterable[str]) -> Iterator[Pairs]:
    return (open_pairs(spec) for spec in data)
