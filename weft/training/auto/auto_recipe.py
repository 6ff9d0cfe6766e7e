"""The recipe `auto`, and `--time`: completes the configuration of a new run once its folder is there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.config.corpus_entries import names
from weft.config.overrides import parse_override
from weft.config.sections import Config
from weft.data.formats import open_pairs
from weft.errors import ConfigError
from weft.runs.open_run import Report
from weft.training.auto.choose_settings import (
    ENOUGH_PASSES,
    SHAPES,
    TOKENS_PER_WEIGHT,
    VALIDATIONS,
    SettingsDraft,
    Shape,
    TrainingFacts,
    choose_data,
    choose_model,
    choose_steps,
    choose_training,
    first_shape,
)
from weft.training.auto.speed_probe import Speed, probe, probe_seconds
from weft.training.distributed import World
from weft.training.log import PlainLines
from weft.training.prepare_run import lower_to_steps

UNITS = {"h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float | None:
    """The seconds of "90s", "20m", "1.5h" or "1h30m"; None if the text is none of these or zero."""
    number = r"(?:(\d+(?:\.\d+)?){})?"
    match = re.fullmatch("".join(number.format(unit) for unit in UNITS), text.strip())
    if not match:
        return None
    return sum(float(part) * unit for part, unit in zip(match.groups(), UNITS.values(), strict=True) if part) or None


AUTO = "auto"
"""The recipe whose sizes are chosen."""

LOADING, ENDING, MARGIN = 4.0, 3.0, 0.03
"""Seconds before a command can look at the clock, seconds after training, and the share of a time that is kept free."""

PROBED_SENTENCES, VALIDATING = 50, 0.1
"""Sentences that are decoded to measure a validation, and the share of a time that validations may take."""

FEWEST_VALIDATIONS, FEWEST_STEPS = 4, 50
"""The fewest that are planned: the speed may be measured at a bad moment, and the hard stop ends training in time anyway."""


def seconds_of(text: str | float | None) -> float | None:
    """The value of `--time` in seconds. Raises ConfigError if it is not a time."""
    if text is None:
        return None
    seconds = float(text) if isinstance(text, int | float) else parse_duration(text)
    if not seconds or seconds <= 0:
        raise ConfigError(f"--time {text}: write a time such as 90s, 20m or 1h30m")
    return seconds


class TimeBudget:
    """The rest of a time that began before this program was loaded."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic() - LOADING

    def left(self) -> float:
        """Seconds that training may take from now on, with a margin for what comes after it."""
        return self.seconds * (1 - MARGIN) - ENDING - (time.monotonic() - self._began)


Choose = Callable[[Config, Path, World], Config]
"""Completes the configuration of a new run, given its folder and the processes that will train it."""


def chooser(auto: bool, sets: Sequence[str], seconds: float | None, report: Report) -> Choose | None:
    """The function that completes the configuration: for `auto`, for a time, or None if there is nothing to choose."""
    fixed = {".".join(parse_override(text).path) for text in sets}
    clock = None if seconds is None else TimeBudget(seconds)
    if not auto and clock is None:
        return None

    def choose(config: Config, out: Path, world: World) -> Config:
        choice = SettingsDraft(config, fixed)
        if auto:
            _choose(choice, out, world, clock)
        elif clock is not None:
            _limit(choice, out, world, clock)
        log = PlainLines(out / "train.log", 0)
        for topic, reason in choice.reasons.items():
            line = f"{topic + ':':<12}{reason}"
            report(line)
            log.note(line)
        return choice.config

    return choose


def _choose(choice: SettingsDraft, out: Path, world: World, clock: TimeBudget | None) -> None:
    """Chooses everything by the rules, and for a time also how much of it can be done."""
    facts = choose_data(choice, out, world.device, world.size)
    shape, why = first_shape(facts)
    _take(choice, facts, shape, why, capped=clock is None)
    if clock is None:
        return
    speed = _speed(choice, out, world, clock, facts.validation)
    taken = _affordable(facts, shape, speed, clock, choice) if not choice.is_fixed("model") else shape
    if taken is not shape:
        larger = taken.weights > shape.weights
        _take(choice, facts, taken, "the largest for this time" if larger else "smaller, to suit the time", capped=False)
        speed = _speed(choice, out, world, clock, facts.validation)
    _fill_time(choice, facts, speed, clock)


def _take(choice: SettingsDraft, facts: TrainingFacts, shape: Shape, why: str, *, capped: bool) -> None:
    choose_model(choice, facts, shape, why)
    choose_training(choice, facts, shape, capped=capped)


def _speed(choice: SettingsDraft, out: Path, world: World, clock: TimeBudget, validation: int) -> Speed:
    """Steps per second of all processes together, and the seconds of a validation. validation: how many pairs there are."""
    config = choice.config
    # A model that has learnt nothing finds no end, so its texts are cut at lengths that are usual later.
    few = {"train.validate_sentences": PROBED_SENTENCES, "decode.max_ratio": 1.0, "train.compile": False}
    measured = probe(config.replaced(few), probe_seconds(clock.seconds), out)
    times = max(1.0, min(config.train.validate_sentences or validation, validation) / PROBED_SENTENCES)
    return Speed(measured.startup, measured.steps_a_second * world.size, measured.validation * times)


def _affordable(facts: TrainingFacts, shape: Shape, speed: Speed, clock: TimeBudget, choice: SettingsDraft) -> Shape:
    """The largest shape, up to that of the table, that the time lets learn enough; the smallest if there is none."""
    train = choice.config.train
    tokens = speed.steps_a_second * train.batch_tokens * train.accumulate * max(1.0, clock.left()) * (1 - VALIDATING)
    most = SHAPES[facts.row.shape].weights
    shapes = sorted((each for each in SHAPES.values() if each.weights <= most), key=lambda each: -each.weights)
    for each in shapes:
        enough = min(ENOUGH_PASSES * facts.pass_tokens, TOKENS_PER_WEIGHT * each.weights)
        if tokens * shape.weights / each.weights >= enough:
            return each
    return shapes[-1]


def _fill_time(choice: SettingsDraft, facts: TrainingFacts, speed: Speed, clock: TimeBudget) -> None:
    """Sets the steps that fit, at most as many as before, and training's hard stop."""
    left = max(1.0, clock.left() - speed.validation)
    validations = max(FEWEST_VALIDATIONS, min(VALIDATIONS, int(VALIDATING * left / max(speed.validation, 1e-3))))
    fits = max(FEWEST_STEPS, speed.planned(max(1.0, left - validations * speed.validation)))
    why = f"{speed.steps_a_second:.2g} steps per second here"
    choose_steps(choice, facts, min(choice.config.train.steps, fits), validations, why)
    choice.put({"train.seconds": round(left, 1)})


def _limit(choice: SettingsDraft, out: Path, world: World, clock: TimeBudget) -> None:
    """Lowers the steps of a recipe to what fits into the time."""
    pairs = names(choice.config.data.valid) if choice.config.task["kind"] == "translation" else []
    validation = choice.config.data.hold_out or sum(1 for spec in pairs for _ in open_pairs(spec))
    speed = _speed(choice, out, world, clock, validation)
    train = choice.config.train
    left = max(1.0, clock.left() - speed.validation)
    validations = train.steps // train.validate_every if train.validate_every else 0
    fits = speed.planned(max(1.0, left - validations * speed.validation))
    choice.put({"train.steps": min(train.steps, fits), "train.seconds": round(left, 1)})
    choice.config = lower_to_steps(choice.config)
    steps = choice.config.train.steps
    choice.reasons["training"] = f"{steps:,} steps fit into the time, at {speed.steps_a_second:.2g} steps per second"
