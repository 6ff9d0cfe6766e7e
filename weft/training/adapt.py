"""Adaptation of a trained run to corrections of its translations: `weft adapt`.

An adapter (LoRA) is trained on the pairs of a translation memory, mixed with old training data, which keeps the model from
forgetting it. Every adaptation begins at the run itself and reads the whole memory, so nothing accumulates, and what was wrong
in the memory is gone as soon as it is corrected there. Corrections that are held out, and old validation data, are translated
before and after, so each adaptation says what it brings and what it costs.
"""

from __future__ import annotations

import json
import random
import shutil
import time as clock
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.config.corpus_entries import TrainingCorpus, grouped, weighed
from weft.config.sections import Config, override_texts
from weft.data.formats import open_pairs
from weft.errors import ConfigError, DataError
from weft.evaluation.metrics import make_metrics
from weft.runs.adapted_runs import ADAPTED, FACTS, complete_adapted, model_version, next_folder, numbered
from weft.runs.open_run import Report, silent
from weft.runs.run_folder import CHECKPOINTS, RunLock
from weft.runs.translator import Translator, load, memory_languages
from weft.runs.warm_start import started_config
from weft.tasks.translation.translation_memory import memory_pairs
from weft.training.auto.plan_for_time import seconds_of
from weft.training.train_run import train_run
from weft.training.training_request import TrainingRequest

Pair = tuple[str, str]

RANK, RATE, PASSES = 16, 2e-3, 12
"""Rank of the adapter, its highest learning rate, and how often each correction is read; see the results page."""

BATCH, FEWEST_STEPS = 1024, 40
"""Tokens of a batch, corrections and old data together, and the fewest steps."""

REPLAYED = 5_000
"""The most old pairs that are mixed in. Of them as many are read as corrections."""

HELD_OUT, ENOUGH, SCORED = 10, 100, 100
"""Every tenth correction is held out if there are ENOUGH of them, at most SCORED; SCORED old pairs are scored, too."""

VALIDATIONS = 5


@dataclass(frozen=True)
class Adaptation:
    """An adapted run and what is known about it.

    scores: BLEU of each test set before and after · corrections, old: pairs it was trained on
    """

    folder: Path
    version: str
    corrections: int
    old: int
    seconds: float
    scores: Mapping[str, tuple[float, float]]

    def facts(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**vars(self), "folder": self.folder.name, "scores": {name: [*pair] for name, pair in self.scores.items()}}


@dataclass(frozen=True)
class _Material:
    """The data of an adaptation: pairs to train on, by the tag of their sources, and those to score by their names."""

    corrections: Sequence[Pair]
    old: Mapping[str | None, Sequence[Pair]]
    scored: Mapping[str, Sequence[Pair]]


def adapt(
    run: str | Path,
    memory: str | Sequence[str],
    *,
    old: Sequence[str] = (),
    tag: str | None = None,
    time: str | float | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    device: str = "auto",
    tell: Report = silent,
) -> Adaptation:
    """Trains an adapter of `run` on the pairs of a translation memory, in the folder RUN/adapted/NUMBER.

    memory: files of any data format · old: data that is mixed in, by default that of `run`, if it is still there · tag: the tag
    of the corrections, if the run has several languages · time: the most that training may take · set: settings of training ·
    device: where it is trained and scored
    """
    run, began = Path(run), clock.monotonic()
    if not run.is_dir():
        raise ConfigError(f"{run}: only the folder of a run can be adapted; `weft unpack` makes one of a packed run")
    base = load(run, device=device)
    languages = memory_languages(base, **({"tag": tag} if tag else {}))
    corrections = read_corrections([memory] if isinstance(memory, str) else memory, languages)
    (run / ADAPTED).mkdir(exist_ok=True)
    with RunLock(run / ADAPTED):
        for folder in numbered(run):
            if not (folder / FACTS).is_file():
                shutil.rmtree(folder)  # of an adaptation that was interrupted
        out = next_folder(run)
        material = _material(base.config, corrections, old, tell)
        tell(f"{len(material.corrections):,} corrections, {sum(map(len, material.old.values())):,} old pairs")
        before = _scores(base, material.scored, tag)
        steps = _steps(base, material)
        del base
        request = _request(run, out, material, steps, tag, [f"train.device={device}", *override_texts(set)])
        train_run(replace(request, seconds=seconds_of(time)), out, report=tell)
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
        after = _scores(load(out, device=device), material.scored, tag)
        scores = {name: (before[name], after[name]) for name in before}
        sizes = len(material.corrections), sum(map(len, material.old.values()))
        made = Adaptation(out, model_version([out]), *sizes, round(clock.monotonic() - began, 1), scores)
        complete_adapted(out, made.facts())
    return made


def read_corrections(files: Sequence[str], languages: tuple[str | None, str | None]) -> list[Pair]:
    """The pairs of a translation memory. Of several with the same source, the last one counts."""
    found: dict[str, str] = {}
    for source, target in memory_pairs(files, languages):
        if source.strip() and target.strip():
            found.pop(source, None)
            found[source] = target
    return [(" ".join(source.split()), " ".join(target.split())) for source, target in found.items()]


def _material(config: Config, corrections: Sequence[Pair], old: Sequence[str], tell: Report) -> _Material:
    """The data of an adaptation, without what is held out."""
    held = corrections[HELD_OUT - 1 :: HELD_OUT][:SCORED] if len(corrections) >= ENOUGH else []
    hidden = {source for source, _ in held}
    training = [pair for pair in corrections if pair[0] not in hidden]
    corpora = [TrainingCorpus(files=[*old])] if old else weighed(config.data.train)
    count = min(REPLAYED, max(FEWEST_STEPS, len(training)))
    replayed = {each.tag: _some(each.files, count // len(corpora) + 1, tell) for each in corpora}
    scored = {"held-out corrections": held} if held else {}
    if validation := [_some(each.files, SCORED, tell) for each in grouped(config.data.valid, TrainingCorpus)][:1]:
        scored["old validation data"] = validation[0]
    return _Material(training, {key: some for key, some in replayed.items() if some}, {k: v for k, v in scored.items() if v})


def _some(files: Iterable[str], count: int, tell: Report) -> list[Pair]:
    """A random sample of the pairs in some files, in one pass (reservoir sampling); empty if they cannot be read."""
    chance, sample = random.Random(1), list[Pair]()
    try:
        for number, pair in enumerate(pair for name in files for pair in open_pairs(name)):
            if number < count:
                sample.append(pair)
            elif (place := chance.randrange(number + 1)) < count:
                sample[place] = pair
    except (DataError, OSError) as error:
        tell(f"old data cannot be read ({error}); without it the model forgets more, so name some with --old")
        return []
    return sample


def _scores(system: Translator, tests: Mapping[str, Sequence[Pair]], tag: str | None) -> dict[str, float]:
    """The BLEU of each test set, by the search of the run."""
    scores, options = dict[str, float](), dict[str, Any](tag=tag) if tag else {}
    for name, pairs in tests.items():
        references = [target for _, target in pairs]
        texts = [each.text for each in system.stream([source for source, _ in pairs], **options)]
        metric = next(each for each in system.metrics(references) + make_metrics(["bleu"]) if each.key() == "bleu")
        scores[name] = round(metric.score(metric.count(texts, references)).value, 2)
    return scores


def _steps(base: Translator, material: _Material) -> int:
    """The steps in which each correction is read PASSES times."""
    tokens = sum(
        max(len(base.source.encode(source)), len(base.target.encode(target))) + 1 for source, target in material.corrections
    )
    share = 0.5 if material.old else 1.0
    return max(FEWEST_STEPS, round(PASSES * tokens / (share * BATCH)))


def _request(run: Path, out: Path, material: _Material, steps: int, tag: str | None, sets: Sequence[str]) -> TrainingRequest:
    """The training of an adapter. Its data are copied beside it, so that the memory may change."""
    folder = out.parent / f"{out.name}-data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def write(name: str, pairs: Sequence[Pair]) -> str:
        lines = (json.dumps({"source": source, "target": target}, ensure_ascii=False) for source, target in pairs)
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return str(folder / f"{name}.jsonl")

    tagged: dict[str, Any] = {"tag": tag} if tag else {}
    train: list[dict[str, Any]] = [{"files": write("corrections", material.corrections), "weight": 1, **tagged}]
    for number, (label, pairs) in enumerate(material.old.items(), start=1):
        mixed = {"files": write(f"old-{number}", pairs), "weight": 1 / len(material.old)}
        train.append(mixed | ({"tag": label} if label else {}))
    held = material.scored.get("held-out corrections", ())
    valid = [{"files": write("held-out", held), **tagged}] if held else []
    every = max(1, steps // VALIDATIONS)
    chosen: dict[str, Any] = {
        "model.lora": {"rank": RANK, "alpha": 2 * RANK},
        "data.hold_out": 0,
        "train.steps": steps,
        "train.schedule": {"kind": "slanted_triangular", "rate": RATE},
        "train.batch_tokens": BATCH,
        "train.accumulate": 1,
        "train.ema": 0.0,
        "train.average_last": 0,
        "train.keep_best": True,
        "train.validate_every": every if held else 0,
        "train.validate_bleu": False,
        "train.best_by": "loss",
        "train.save_every": every,
        "train.keep_last": 1,
        "train.patience": 0,
        "train.log_every": every,
        "train.compile": False,
        "train.shard": False,
        "train.trackers": [],
        "train.tensorboard": False,
    }
    texts = [*override_texts(chosen), *sets]
    config = started_config(run, None, texts, new_data=True, new_valid=True).with_data(train, valid).absolute()
    return TrainingRequest(config, False, texts)
