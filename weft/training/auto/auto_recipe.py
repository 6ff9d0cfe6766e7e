"""The recipe `auto`, and `--time`: completes the configuration of a new run once its folder is there."""

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from weft.config.sections import Config
from weft.config.yaml_document import parse_override
from weft.errors import ConfigError
from weft.runs.open_run import Report
from weft.training.auto.choose_settings import (
    SHAPES,
    VALIDATIONS,
    SettingsDraft,
    Shape,
    TrainingFacts,
    choose_data,
    choose_model,
    choose_steps,
    choose_training,
    enough_tokens,
    first_shape,
)
from weft.training.auto.fine_tuning import choose_fine_tuning
from weft.training.auto.speed_probe import Speed, fastest_threads, probe, probe_seconds
from weft.training.distributed import World
from weft.training.log import PlainLines
from weft.training.log_text import duration, rough_time
from weft.training.time_budget import TimeBudget

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

PROBED_SENTENCES, VALIDATING = 50, 0.1
"""Sentences that are decoded to measure a validation, and the share of a time that validations may take."""

FEWEST_VALIDATIONS, FEWEST_STEPS = 4, 50
"""The fewest that are planned: the speed may be measured at a bad moment, and training adapts to what it turns out to be."""

USABLE = 1 / 3
"""The share of what is enough for the smallest shape below which translations are not expected to be usable."""

BUSY = 0.5
"""A machine is busy if at least this share of its cores has work; then the number of threads is measured without --time too."""


def seconds_of(text: str | float | None) -> float | None:
    """The value of `--time` in seconds. Raises ConfigError if it is not a time."""
    if text is None:
        return None
    seconds = float(text) if isinstance(text, int | float) else parse_duration(text)
    if not seconds or seconds <= 0:
        raise ConfigError(f"--time {text}: write a time such as 90s, 20m or 1h30m")
    return seconds


Choose = Callable[[Config, Path, World], Config]
"""Completes the configuration of a new run, given its folder and the processes that will train it."""


def chooser(
    auto: bool, sets: Sequence[str], clock: TimeBudget | None, report: Report, *, fine_tune: bool = False
) -> Choose | None:
    """The function that completes the configuration: for `auto`, to fine-tune a run with its own settings, and for a time.

    None if there is nothing to choose.
    """
    fixed = {".".join(parse_override(text).path) for text in sets}
    if not auto and not fine_tune and clock is None:
        return None

    def choose(config: Config, out: Path, world: World) -> Config:
        choice = SettingsDraft(config, fixed)
        if auto:
            _choose(choice, out, world, clock, report)
        elif fine_tune:
            choose_fine_tuning(choice)
        if clock is not None and not auto:
            choice.put({"train.seconds": clock.left()})
            choice.reasons["training"] = (
                f"up to {choice.config.train.steps:,} steps, in at most {duration(clock.seconds)}; if the time is too short "
                "for them, the schedule is shortened to fit"
            )
        log = PlainLines(out / "train.log", 0)
        for topic, reason in choice.reasons.items():
            line = f"{topic + ':':<12}{reason}"
            report(line)
            log.note(line)
        return choice.config

    return choose


def _choose(choice: SettingsDraft, out: Path, world: World, clock: TimeBudget | None, report: Report) -> None:
    """Chooses everything by the rules, and for a time also how much of it can be done."""
    report("reading the training data and learning its vocabulary")
    facts = choose_data(choice, out, world.device, world.size)
    shape, why = first_shape(facts)
    _take(choice, facts, shape, why, capped=clock is None)
    busy = os.getloadavg()[0] >= BUSY * (os.cpu_count() or 1)
    if facts.cpu and not choice.config.train.threads and (busy or clock is not None):
        _choose_threads(choice, shape)
    if clock is None:
        return
    report("measuring how fast this machine trains")
    speed = _speed(choice, out, world, clock, facts.validation)
    taken = _affordable(facts, shape, speed, clock, choice) if not choice.is_fixed("model") else shape
    if taken is not shape:
        larger = taken.weights > shape.weights
        _take(choice, facts, taken, "the largest for this time" if larger else "smaller, to suit the time", capped=False)
        speed = _speed(choice, out, world, clock, facts.validation)
    _fill_time(choice, facts, speed, clock)
    _check_time(choice, facts, taken, speed, clock)


def _take(choice: SettingsDraft, facts: TrainingFacts, shape: Shape, why: str, *, capped: bool) -> None:
    choose_model(choice, facts, shape, why)
    choose_training(choice, facts, shape, capped=capped)


def _choose_threads(choice: SettingsDraft, shape: Shape) -> None:
    """Fewer threads than cores where they are faster: on a busy machine, threads wait for each other."""
    usual = torch.get_num_threads()
    fastest = fastest_threads(shape.dim, choice.config.train.batch_tokens)
    if fastest != usual and not choice.is_fixed("train.threads"):
        choice.put({"train.threads": fastest})
        torch.set_num_threads(fastest)
        choice.reasons["threads"] = f"{fastest}, which are faster here than {usual}: the machine is busy"


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
    tokens = tokens_a_second(choice, speed) * clock.left() * (1 - VALIDATING)
    most = SHAPES[facts.row.shape].weights
    shapes = sorted((each for each in SHAPES.values() if each.weights <= most), key=lambda each: -each.weights)
    for each in shapes:
        if tokens * shape.weights / each.weights >= enough_tokens(facts, each):
            return each
    return shapes[-1]


def tokens_a_second(choice: SettingsDraft, speed: Speed) -> float:
    return speed.steps_a_second * choice.config.train.batch_tokens * choice.config.train.accumulate


def _fill_time(choice: SettingsDraft, facts: TrainingFacts, speed: Speed, clock: TimeBudget) -> None:
    """Sets the time, and a schedule of about as many steps as fit. Steps that the user has set are the most."""
    left = clock.left()
    validations = max(FEWEST_VALIDATIONS, min(VALIDATIONS, int(VALIDATING * left / max(speed.validation, 1e-3))))
    fits = max(FEWEST_STEPS, speed.planned(left - validations * speed.validation))
    why = f"as many as fit into {duration(clock.seconds)}, at {speed.steps_a_second:.2g} steps per second now"
    choice.put({"train.seconds": left, "train.budget": "steps" if choice.is_fixed("train.steps") else "time"})
    choose_steps(choice, facts, fits, validations, why)


def _check_time(choice: SettingsDraft, facts: TrainingFacts, shape: Shape, speed: Speed, clock: TimeBudget) -> None:
    """Says first if the time is too short for a usable model, and what would do."""
    pace, enough = tokens_a_second(choice, speed), enough_tokens(facts, shape)
    seen = pace * max(0.0, clock.left() - speed.startup) * (1 - VALIDATING)
    if seen >= USABLE * enough:
        return
    wanted = clock.seconds - clock.left() + speed.startup + enough / (pace * (1 - VALIDATING))
    passes = seen / facts.pass_tokens
    warning = (
        f"{duration(clock.seconds)} are too short for a usable model here: it sees the data {passes:.1f} times; give about "
        f"{rough_time(wanted)} (--time {math.ceil(wanted / 60)}m)"
    )
    choice.reasons = {"time": warning, **choice.reasons}
