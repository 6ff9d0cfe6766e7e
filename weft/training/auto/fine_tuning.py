"""Safe settings for a run that starts from another one, by the amount of its data.

The settings of the first training would undo what it has learnt: its peak learning rate, and the many steps after it. Whatever
the user has set stays.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from weft.config.corpus_entries import weighed
from weft.data.formats import Pairs, open_pairs
from weft.data.tokenizers.added_tokens import load_extended
from weft.errors import RunError
from weft.runs.open_run import build_task, run_config
from weft.tasks.corpus_task import CorpusTask
from weft.training.auto.choose_settings import EMA_SHARE, LONGEST_EMA, Lengths, SettingsDraft, held_out, lengths

PASSES, FEWEST_STEPS = 12, 60
"""How often the new data is read, and the fewest steps; never more steps than the first training had."""

RATE, LEAST_RATE, MANY = 0.3, 0.03, 30_000
"""The peak learning rate as a share of that of the first training: RATE with MANY pairs or more, fewer in proportion to the
root of their number, at least LEAST_RATE. Adapters are new weights and keep the whole rate."""

WARMUP, VALIDATIONS, PATIENCE = 0.1, 10, 4
"""Share of the steps that warm up, number of validations, and how many without improvement end training."""

SHARE = 0.25
"""The share of the first training's steps where the size of the data is unknown."""


def choose_fine_tuning(choice: SettingsDraft) -> None:
    """Chooses rate, length, validations and validation data, unless the user has set them."""
    config = choice.config
    base = run_config(Path(str(config.start.run)))
    task = build_task(config, Path())
    train, count, measured = config.train, 0, None
    if isinstance(task, CorpusTask) and task.data_format.open is open_pairs:
        pairs = [task.data_format.open(name) for name in config.data.files]
        count = sum(1 for _ in chain.from_iterable(pairs))
        measured = _lengths(choice, pairs, count)
    tagged = any(corpus.tag for corpus in weighed(config.data.train))  # held-out pairs have no tags
    if count and not config.data.validates and not tagged:
        choice.put({"data.hold_out": held_out(count)})
        count -= choice.config.data.hold_out
    steps = round(SHARE * base.train.steps)
    if measured is not None:
        steps = round(PASSES * count * measured.mean / (train.batch_tokens * train.accumulate))
    choice.put({"train.steps": max(1, min(base.train.steps, max(FEWEST_STEPS, steps)))})
    _follow(choice, rate_share(count))
    schedule, train = choice.config.train.schedule, choice.config.train
    rate = next((f", peak learning rate {schedule[name]:g}" for name in ("rate", "scale") if name in schedule), "")
    size = f" on {count:,} pairs" if count else ""
    choice.reasons["tuning"] = (
        f"{train.steps:,} steps{size}{rate} (in the first training {base.train.steps:,} and {_peak(base.train.schedule)}); "
        f"validated every {train.validate_every:,} steps and at the start, which stays if nothing is better"
    )


def rate_share(pairs: int) -> float:
    """The learning rate for a number of new pairs, as a share of that of the first training. 0: unknown, treated as few."""
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
