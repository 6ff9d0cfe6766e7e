"""The recipe `auto`, and `--time`: completes the configuration of a new run once its folder is there."""

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from weft.config.overrides import parse_override
from weft.config.sections import Config
from weft.errors import ConfigError
from weft.runs.open_run import Report
from weft.training.auto.choose_settings import (
    CPU_SENTENCES,
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
from weft.training.auto.noisy_data import clean_noisy_data
from weft.training.auto.speed_probe import PROBED_PAIRS, Speed, fastest_threads, probe, probe_seconds
from weft.training.distributed import World
from weft.training.log import PlainLines
from weft.training.log_text import duration, rough_time
from weft.training.memory import resolve_batch_tokens
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

VALIDATING, ENOUGH_SENTENCES = 0.1, 50
"""The share of a time that validations may take, and the fewest sentences that one decodes if it would take longer."""

LOSSES, EXPECTED = 2, 0.2
"""The time of a validation as a multiple of that of its decoded sentences, and the largest share of a time that one is expected
to take before the first shows it."""

OVER, ENOUGH_TIMES = 0.1, 5
"""A time is over if less than this share is left when the data is read. What to give then, as a multiple of what that took."""

THREADS, PREPARED = 0.02, 0.3
"""Shares of a time: for measuring threads, and after which no second speed is measured."""

UPDATE, LEAST_BATCH = 0.01, 512
"""The largest share of a time that an update may take on a CPU, and the fewest tokens of the smaller batch it gets then."""

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
    auto: bool, sets: Sequence[str], clock: TimeBudget | None, report: Report, *, fine_tune: bool = False, clean: bool = True
) -> Choose:
    """The function that completes the configuration: the batch that fits, if train.batch_tokens is auto; what `auto` chooses,
    what suits a run that is fine-tuned with its own settings, and what a time allows. clean: auto cleans noisy data.
    """
    fixed = {".".join(parse_override(text).path) for text in sets}

    def choose(config: Config, out: Path, world: World) -> Config:
        config = resolve_batch_tokens(config, world.device, report, chosen=auto)
        if not auto and not fine_tune and clock is None:
            return config
        choice = SettingsDraft(config, fixed)
        if auto:
            report("reading the training data and learning its vocabulary")
            if clean:
                clean_noisy_data(choice, out, clock, report)
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
    facts = choose_data(choice, out, world.device, world.size)
    if clock is not None:
        _check_left(clock)
    shape, why = first_shape(facts)
    _take(choice, facts, shape, why, capped=clock is None)
    busy = hasattr(os, "getloadavg") and os.getloadavg()[0] >= BUSY * (os.cpu_count() or 1)
    if facts.cpu and not choice.config.train.threads and (busy or clock is not None):
        _choose_threads(choice, shape, math.inf if clock is None else THREADS * clock.seconds)
    if clock is None:
        return
    report("measuring how fast this machine trains")
    speed = _speed(choice, out, world, clock, facts.validation)
    taken = _affordable(facts, shape, speed, clock, choice) if not choice.is_fixed("model") else shape
    if taken is not shape:
        larger = taken.weights > shape.weights
        _take(choice, facts, taken, "the largest for this time" if larger else "smaller, to suit the time", capped=False)
        if clock.left() > (1 - PREPARED) * clock.seconds:
            speed = _speed(choice, out, world, clock, facts.validation)
        else:
            ratio = taken.weights / shape.weights
            speed = Speed(speed.startup, speed.steps_a_second / ratio, speed.validation * ratio)
    speed = _shorten_updates(choice, facts, speed, clock)
    _fill_time(choice, facts, speed, clock)
    _check_time(choice, facts, taken, speed, clock)


def _check_left(clock: TimeBudget) -> None:
    """Raises ConfigError if the time is over before anything could be trained."""
    if clock.left() > OVER * clock.seconds:
        return
    wanted = math.ceil(ENOUGH_TIMES * (clock.seconds - clock.left()) / 60)
    raise ConfigError(
        f"--time: {duration(clock.seconds)} are over before training begins: reading the data and learning its vocabulary took "
        f"as long on this machine, which may be busy; give --time {wanted}m or more"
    )


def _take(choice: SettingsDraft, facts: TrainingFacts, shape: Shape, why: str, *, capped: bool) -> None:
    choose_model(choice, facts, shape, why)
    choose_training(choice, facts, shape, capped=capped)


def _choose_threads(choice: SettingsDraft, shape: Shape, seconds: float) -> None:
    """Fewer threads than cores where they are faster: on a busy machine, threads wait for each other."""
    usual = torch.get_num_threads()
    fastest = fastest_threads(shape.dim, choice.config.train.batch_tokens, seconds)
    if fastest != usual and not choice.is_fixed("train.threads"):
        choice.put({"train.threads": fastest})
        torch.set_num_threads(fastest)
        choice.reasons["threads"] = f"{fastest}, which are faster here than {usual}: the machine is busy"


def _speed(choice: SettingsDraft, out: Path, world: World, clock: TimeBudget, validation: int) -> Speed:
    """Steps per second of all processes together, and the seconds of a validation. validation: how many pairs there are."""
    config = choice.config
    # A model that has learnt nothing finds no end, so its texts are cut at lengths that are usual later.
    few = {"train.validate_sentences": PROBED_PAIRS, "decode.max_ratio": 1.0, "train.compile": False}
    measured = probe(config.replaced(few), probe_seconds(clock.seconds), out)
    # Fewer sentences than pairs are decoded, but all pairs have a loss, which takes about as long.
    times = max(1.0, LOSSES * min(config.train.validate_sentences or validation, validation) / PROBED_PAIRS)
    return Speed(measured.startup, measured.steps_a_second * world.size, measured.validation * times)


def _affordable(facts: TrainingFacts, shape: Shape, speed: Speed, clock: TimeBudget, choice: SettingsDraft) -> Shape:
    """The largest shape, up to that of the table, that the time lets learn enough; the smallest if there is none.

    A GPU may take the larger one that the table has for a time.
    """
    tokens, update = tokens_a_second(choice, speed) * clock.left() * (1 - VALIDATING), tokens_an_update(choice)
    row = facts.row
    most = SHAPES[row.shape if facts.cpu else row.timed or row.shape].weights
    shapes = sorted((each for each in SHAPES.values() if each.weights <= most), key=lambda each: -each.weights)
    for each in shapes:
        if tokens * shape.weights / each.weights >= enough_tokens(facts.pass_tokens, each.weights, update):
            return each
    return shapes[-1]


def tokens_an_update(choice: SettingsDraft) -> int:
    return choice.config.train.batch_tokens * choice.config.train.accumulate


def tokens_a_second(choice: SettingsDraft, speed: Speed) -> float:
    return speed.steps_a_second * tokens_an_update(choice)


def _shorten_updates(choice: SettingsDraft, facts: TrainingFacts, speed: Speed, clock: TimeBudget) -> Speed:
    """A smaller batch, with a lower learning rate, where an update would take too much of the time; and its speed."""
    train, share = choice.config.train, UPDATE * clock.left() * speed.steps_a_second
    if not facts.cpu or share >= 1 or choice.is_fixed("train.batch_tokens"):
        return speed
    batch = max(LEAST_BATCH, 2 * facts.lengths.longest, round(share * train.batch_tokens))
    if batch >= train.batch_tokens:
        return speed
    ratio = train.batch_tokens / batch
    choice.put({"train.batch_tokens": batch, "train.schedule.rate": train.schedule["rate"] * ratio**-0.5})
    return Speed(speed.startup, speed.steps_a_second * ratio, speed.validation)


def _fill_time(choice: SettingsDraft, facts: TrainingFacts, speed: Speed, clock: TimeBudget) -> None:
    """Sets the time, and a schedule of about as many steps as fit. Steps that the user has set are the most."""
    left = clock.left()
    cheap = int(VALIDATING * left / max(speed.validation, 1e-3))
    validations, sentences = max(FEWEST_VALIDATIONS, min(VALIDATIONS, cheap)), 0
    if cheap < FEWEST_VALIDATIONS:
        sentences = max(ENOUGH_SENTENCES, CPU_SENTENCES * cheap // FEWEST_VALIDATIONS)
    clock.validation = min(speed.validation, EXPECTED * left)
    fits = max(FEWEST_STEPS, speed.planned(left - validations * speed.validation))
    why = f"as many as fit into {duration(clock.seconds)}, at {speed.steps_a_second:.2g} steps per second now"
    choice.put({"train.seconds": left, "train.budget": "steps" if choice.is_fixed("train.steps") else "time"})
    choose_steps(choice, facts, fits, validations, why)
    if sentences:
        choice.put({"train.validate_sentences": min(sentences, choice.config.train.validate_sentences)})


def _check_time(choice: SettingsDraft, facts: TrainingFacts, shape: Shape, speed: Speed, clock: TimeBudget) -> None:
    """Puts a warning first if the time is too short for a usable model, with a time that would do."""
    pace, enough = tokens_a_second(choice, speed), enough_tokens(facts.pass_tokens, shape.weights, tokens_an_update(choice))
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
