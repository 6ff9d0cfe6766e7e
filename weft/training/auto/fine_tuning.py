"""Settings for a run that starts from another one, by the amount of its data and by how far it is from the old data.

Near the old data, the settings of the first training would undo what it has learnt: its peak learning rate, and the many steps
after it. Far from it, there is much to learn and little to keep, and a low rate would hardly get there. The distance is the
loss of the old model on the new data above that on its own validation data. Whatever the user has set stays.
"""

import json
import tempfile
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from weft.config.corpus_entries import weighed
from weft.config.sections import Config
from weft.data.formats import Pairs, open_pairs
from weft.data.tokenizers.added_tokens import load_extended
from weft.errors import RunError
from weft.runs.open_run import open_run, run_config
from weft.runs.run_folder import records
from weft.tasks.base import build_task
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.seq2seq_task import Seq2SeqTask
from weft.training.auto.choose_settings import EMA_SHARE, LONGEST_EMA, Lengths, SettingsDraft, held_out, lengths

PASSES, FEWEST_STEPS = 12, 60
"""Passes over near data, and the fewest steps; never more steps than the first training had."""

FAR_PASSES, FAR_STEPS = 40, 300
"""The same for far data."""

NEAR, FAR = 0.3, 2.0
"""Data is near if a token of it costs up to NEAR nats more than one of the old validation data, and far from FAR nats on."""

MEASURED = 300
"""New pairs whose loss is measured."""

RATE, LEAST_RATE, MANY = 0.3, 0.03, 30_000
"""The peak learning rate for near data as a share of that of the first training: RATE with MANY pairs or more, fewer in
proportion to the root of their number, at least LEAST_RATE. Far data has the whole rate, as have adapters, which are new."""

WARMUP, VALIDATIONS, PATIENCE = 0.1, 10, 4
"""Share of the steps that warm up, number of validations, and how many without improvement end training."""

SHARE = 0.25
"""The share of the first training's steps where the size of the data is unknown."""


def choose_fine_tuning(choice: SettingsDraft) -> None:
    """Chooses rate, length, validations and validation data, unless the user has set them."""
    config = choice.config
    base = run_config(Path(str(config.start.run)))
    task = build_task(config, Path())
    train, count, measured, excess = config.train, 0, None, None
    if isinstance(task, CorpusTask) and task.data_format.open is open_pairs:
        pairs = [task.data_format.open(name) for name in config.data.files]
        count = sum(1 for _ in chain.from_iterable(pairs))
        measured = _lengths(choice, pairs, count)
        excess = excess_loss(config, count) if measured is not None and isinstance(task, Seq2SeqTask) else None
    tagged = any(corpus.tag for corpus in weighed(config.data.train))  # held-out pairs have no tags
    if count and not config.data.validates and not tagged:
        choice.put({"data.hold_out": held_out(count)})
        count -= choice.config.data.hold_out
    steps, far = round(SHARE * base.train.steps), distance(excess)
    if measured is not None:
        passes = PASSES + far * (FAR_PASSES - PASSES)
        steps = round(passes * count * measured.mean / (train.batch_tokens * train.accumulate))
    fewest = round(FEWEST_STEPS + far * (FAR_STEPS - FEWEST_STEPS))
    choice.put({"train.steps": max(1, min(base.train.steps, max(fewest, steps)))})
    _follow(choice, rate_share(count) ** (1 - far))
    schedule, train = choice.config.train.schedule, choice.config.train
    rate = next((f", peak learning rate {schedule[name]:g}" for name in ("rate", "scale") if name in schedule), "")
    size = f" on {count:,} pairs" if count else ""
    if excess is not None:
        size += f", whose tokens cost {max(0.0, excess):.2f} nats more than those of the old validation data"
    choice.reasons["tuning"] = (
        f"{train.steps:,} steps{size}{rate} (in the first training {base.train.steps:,} and {_peak(base.train.schedule)}); "
        f"validated every {train.validate_every:,} steps and at the start, which stays if nothing is better"
    )


def distance(excess: float | None) -> float:
    """The distance of new data, from 0 to 1, by its excess loss in nats per token. Unknown data is treated as near."""
    return 0.0 if excess is None else min(1.0, max(0.0, (excess - NEAR) / (FAR - NEAR)))


def excess_loss(config: Config, count: int) -> float | None:
    """The loss of the old model on some of `count` new pairs above that on its validation data; None if that is not known."""
    run = Path(str(config.start.run))
    known = [line["loss"] for line in records(run) if line["event"] in ("validation", "summary") and "loss" in line]
    before = run_config(run)
    if not known or before.task["kind"] != config.task["kind"]:
        return None
    tags = {corpus.tag for corpus in weighed(before.data.train)}  # the old model has no others
    with tempfile.TemporaryDirectory() as folder:
        parts: list[dict[str, Any]] = []
        for number, corpus in enumerate(weighed(config.data.train)):
            every = islice(chain.from_iterable(map(open_pairs, corpus.files)), 0, None, max(1, count // MEASURED))
            file = Path(folder, f"{number}.jsonl")
            some = [{"source": source, "target": target} for source, target in islice(every, MEASURED)]
            file.write_text("".join(f"{json.dumps(pair)}\n" for pair in some), "utf-8")
            parts += [{"files": [str(file)], "tag": corpus.tag if corpus.tag in tags else None}] if some else []
        data = {"data.train": parts, "data.valid": parts, "data.hold_out": 0, "data.cache": folder}
        plain = {"train.validate_bleu": False, "train.best_by": "loss", "data.teacher": None, "train.metrics": []}
        trained = open_run(run, device=config.train.device)
        task = build_task(trained.config.replaced({**data, **plain}), run)
        task.prepare()
        assert isinstance(task, CorpusTask)
        with torch.no_grad():
            loss, _ = task.mean_loss(trained.model.eval())
    return loss - float(known[-1])


def rate_share(pairs: int) -> float:
    """The learning rate for a number of near pairs, as a share of that of the first training. 0: unknown, treated as few."""
    return max(LEAST_RATE, RATE * min(1.0, pairs / MANY) ** 0.5)


def _follow(choice: SettingsDraft, share: float) -> None:
    """Chooses what follows from the number of steps. share: of the first training's learning rate."""
    train, lora = choice.config.train, choice.config.model["lora"]
    factor = 1.0 if lora is not None else share
    peaks = {f"train.schedule.{name}": factor * train.schedule[name] for name in ("rate", "scale") if name in train.schedule}
    warmup = {"train.schedule.warmup": round(WARMUP * train.steps)} if "warmup" in train.schedule else {}
    every = max(1, train.steps // VALIDATIONS)
    average = round(1 - 1 / max(10.0, min(LONGEST_EMA, EMA_SHARE * train.steps)), 4)
    choice.put({**peaks, **warmup, "train.validate_every": every, "train.save_every": every, "train.average_last": 0})
    choice.put({"train.patience": PATIENCE, "train.keep_best": True, "train.ema": average if train.ema else 0.0})


def _peak(schedule: dict[str, object]) -> str:
    return f"{schedule.get('rate', schedule.get('scale', '?'))}"


def _lengths(choice: SettingsDraft, pairs: Sequence[Pairs], count: int) -> Lengths | None:
    """The lengths of the new pairs in tokens of the first run; None if it has no tokenizers of texts."""
    if not count:
        return None
    try:
        return lengths(pairs, count, *load_extended(Path(str(choice.config.start.run)), choice.config.data.tokenizer))
    except RunError:
        return None
