"""The rules of `auto`, and what it chooses from data, device and time. No test here trains a model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.config.sections import Config, load_config
from weft.data.formats import open_pairs
from weft.errors import ConfigError
from weft.training.auto import choose_settings as choice
from weft.training.auto import choose_settings as rules
from weft.training.auto import plan_for_time as auto
from weft.training.auto import speed_probe
from weft.training.auto.choose_settings import survey
from weft.training.auto.plan_for_time import chooser, parse_duration, seconds_of
from weft.training.auto.speed_probe import Speed
from weft.training.distributed import World
from weft.training.time_budget import TimeBudget


class Clock(TimeBudget):
    """A time of which eight seconds have passed."""

    def left(self) -> float:
        return self.seconds - 8


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of threads does not depend on what else this machine does."""
    monkeypatch.setattr(auto.os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)


CPU = World(0, 1, torch.device("cpu"))
WORDS = ["the", "a", "one", "dog", "cat", "man", "boat", "house", "sees", "likes", "paints", "red", "blue", "old", "small"]
HAN = "春风夏雨秋月冬雪山水花鸟天地人和日星云海松竹梅兰"


def write(folder: Path, count: int, han: bool = False) -> str:
    """A file of different pairs, of words or of Chinese characters."""
    lines = []
    for number in range(count):
        picks = [(number * 7 + place * (number + 3)) % 1009 for place in range(7)]
        words = [HAN[pick % len(HAN)] if han else f"{WORDS[pick % len(WORDS)]}{pick % 37}" for pick in picks]
        join = "" if han else " "
        lines.append(f"{join.join(words)}{join}{number}\t{join.join(reversed(words))}{join}{number}\n")
    file = folder / f"{count}{'h' if han else 'w'}.tsv"
    file.write_text("".join(lines))
    return str(file)


def chosen(
    folder: Path, data: str, *sets: str, seconds: float | None = None, world: World = CPU, valid: str = ""
) -> tuple[Config, list[str]]:
    """The configuration that `auto` chooses and what it says."""
    said: list[str] = []
    run = folder / "run"
    run.mkdir(exist_ok=True)
    given = ["data.cache=" + str(folder / "cache"), *sets]
    config = load_config("auto", given).replaced({"data.train": [data], "data.valid": [valid] if valid else []})
    choose = chooser(True, given, Clock(seconds) if seconds else None, said.append)
    assert choose is not None
    return choose(config, run, world), [line for line in said if ":  " in line or line.startswith("validation: ")]


def test_the_table_grows_with_the_data() -> None:
    assert [row.pairs for row in rules.TABLE] == sorted({row.pairs for row in rules.TABLE})
    for less, more in pairwise(rules.TABLE):
        assert less.vocabulary <= more.vocabulary
        assert rules.SHAPES[less.shape].weights <= rules.SHAPES[more.shape].weights
        assert less.dropout >= more.dropout and less.label_smoothing >= more.label_smoothing
        assert less.passes >= more.passes
    assert [row.batch_tokens for row in rules.TABLE[1:]] == sorted(row.batch_tokens for row in rules.TABLE[1:])
    for small, large in pairwise(rules.SHAPES.values()):
        assert small.weights < large.weights and small.rate >= large.rate
    assert all(shape.dim % shape.heads == 0 for shape in rules.SHAPES.values())


def test_the_nearest_row_applies() -> None:
    assert [rules.row_for(pairs).pairs for pairs in (1, 500, 1_200, 1_300, 20_000, 29_000, 10**9)] == [
        *(500, 500, 500, 3_000, 29_000, 29_000),
        rules.TABLE[-1].pairs,
    ]


def test_the_number_of_held_out_pairs_depends_on_the_data() -> None:
    assert [rules.held_out(pairs) for pairs in (5, 100, 500, 3_000, 12_000, 29_000, 10**7)] == [
        *(1, 10, 25, 150, 600, 1_000, 1_000)
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1.5h", 5400), ("1h1m1s", 3661), ("", None), ("20", None), ("0m", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


def test_a_time_that_is_none_is_refused() -> None:
    assert seconds_of(None) is None and seconds_of(90) == seconds_of("90s") == 90
    for wrong in ("soon", "20", "-5m", 0, -1.0):
        with pytest.raises(ConfigError, match="write a time such as"):
            seconds_of(wrong)


def test_five_lines_say_what_was_chosen_and_it_is_in_the_configuration(tmp_path: Path) -> None:
    config, said = chosen(tmp_path, write(tmp_path, 600))
    assert [line.split(":")[0] for line in said] == ["data", "tokens", "model", "training", "validation"]
    assert "570 pairs" in said[0] and "30 pairs are held out for validation (seed 1)" in said[0]
    assert "as suits about 500 pairs" in said[1]
    row, shape = rules.TABLE[0], rules.SHAPES["tiny"]
    assert (config.data.vocabulary, config.data.hold_out) == (row.vocabulary, 30)
    assert (config.model["dim"], config.model["decoder_layers"]) == (shape.dim, shape.layers)
    assert f"{config.train.steps:,} steps" in said[3] and f"every {config.train.validate_every} steps" in said[4]
    assert config.train.best_by == "chrf2"
    assert (tmp_path / "run" / "train.log").read_text().splitlines() == said


def test_large_data_is_filtered_and_the_user_may_say_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, 600)
    assert not chosen(tmp_path, data)[0].data.drop_duplicates
    monkeypatch.setattr(rules, "FILTERED", 570)
    config, said = chosen(tmp_path, data)
    assert config.data.drop_duplicates and config.data.max_ratio == rules.UNEVEN
    assert "filters:    left out are those that occurred before and those with more than 6 times" in said[1]
    config, said = chosen(tmp_path, data, "data.drop_duplicates=false", "data.max_ratio=null")
    assert not config.data.drop_duplicates and config.data.max_ratio is None and "none, as set" in said[1]


def shape_for(pairs: int, device: str, steps_a_second: float) -> rules.Shape:
    """The shape that an hour on a device of this speed allows for so many pairs of 20 tokens."""
    data = rules.DataSurvey(pairs, (10, 10), (60, 60), (False, False), 100)
    facts = rules.TrainingFacts(data, rules.Lengths(20, 60), 1_000, rules.row_for(pairs), torch.device(device))
    draft = rules.SettingsDraft(load_config("auto").replaced({"train.batch_tokens": 25_000}))
    return auto._affordable(facts, rules.SHAPES["base"], Speed(0.0, steps_a_second, 0.0), Clock(3600), draft)


def test_only_large_data_and_much_time_on_a_gpu_allow_the_big_model() -> None:
    fast, slow = 20.0, 2.0
    assert shape_for(1_000_000, "cuda", fast) == shape_for(10**8, "cuda", fast) == rules.SHAPES["big"]
    others = [(1_000_000, "cuda", slow), (162_000, "cuda", fast), (1_000_000, "cpu", fast)]
    assert [shape_for(*each) for each in others] == 3 * [rules.SHAPES["base"]]


def test_few_validation_pairs_neither_choose_the_weights_nor_stop_training(tmp_path: Path) -> None:
    config, said = chosen(tmp_path, write(tmp_path, 600), valid=write(tmp_path, rules.FEWEST_TO_CHOOSE - 1))
    assert not config.train.keep_best and not config.train.patience and "the last weights are published" in said[4]
    config, said = chosen(tmp_path, write(tmp_path, 600), valid=write(tmp_path, rules.FEWEST_TO_CHOOSE))
    assert config.train.keep_best and config.train.patience and "the best by chrf2 is published" in said[4]


def test_settings_of_the_user_win(tmp_path: Path) -> None:
    sets = ("model.dim=64", "train.steps=77", "train.schedule.rate=0.01", "data.vocabulary=500", "data.hold_out=9")
    config, _ = chosen(tmp_path, write(tmp_path, 600), *sets, "task.label_smoothing=0.0", "train.patience=2")
    assert (config.model["dim"], config.model["heads"]) == (64, 4)
    assert (config.train.steps, config.train.schedule["rate"], config.data.vocabulary, config.data.hold_out) == (
        77,
        0.01,
        500,
        9,
    )
    assert config.task["label_smoothing"] == 0 and config.train.patience == 2
    assert config.train.schedule["warmup"] == round(rules.WARMUP * 77), "the rest follows from what was set"


def test_another_model_keeps_its_own_options(tmp_path: Path) -> None:
    config, said = chosen(tmp_path, write(tmp_path, 300), "model={kind: rnn, dim: 32}")
    assert (config.model["kind"], config.model["dim"]) == ("rnn", 32)
    assert said[2] == "model:      rnn, as set"


def test_validation_data_that_is_given_is_used(tmp_path: Path) -> None:
    config, said = chosen(tmp_path, write(tmp_path, 600), valid=write(tmp_path, 40))
    assert config.data.hold_out == 0 and config.train.validate_sentences == 40
    assert "held out" not in said[0] and not (tmp_path / "run" / "held-out.jsonl").exists()


def test_text_without_spaces_is_split_into_characters(tmp_path: Path) -> None:
    data = write(tmp_path, 400, han=True)
    assert survey([open_pairs(data)]).unspaced == (True, True)
    config, said = chosen(tmp_path, data)
    assert config.data.tokenizer["kind"] == "characters" and config.data.vocabulary == 260 + len(HAN) + 10
    assert "neither side separates words by spaces" in said[1] and "characters on average" in said[0]


def test_one_side_without_spaces_gets_room_for_its_characters(tmp_path: Path) -> None:
    file = tmp_path / "mixed.tsv"
    file.write_text("".join(f"word number {n}\t{HAN[n % len(HAN)]}{HAN[n // 7 % len(HAN)]}{n}\n" for n in range(400)))
    config, _ = chosen(tmp_path, str(file))
    assert config.data.tokenizer["kind"] == "bpe" and config.data.vocabulary > rules.TABLE[0].vocabulary


def test_long_texts_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "long.tsv"
    file.write_text("".join(f"{' '.join(WORDS * 20)} {n}\tshort {n}\n" for n in range(200)))
    config, _ = chosen(tmp_path, str(file))
    assert 300 < config.data.max_length <= rules.LONGEST and config.decode.max_length == config.data.max_length
    assert config.train.batch_tokens >= 600


def test_a_cpu_gets_less_to_do_than_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "modern", lambda device: True)
    facts = _facts(29_000, torch.device("cpu"))
    small, large = [choice.SettingsDraft(load_config("auto")) for _ in range(2)]
    for made, device in ((small, facts), (large, _facts(29_000, torch.device("cuda", 0)))):
        shape, why = choice.first_shape(device)
        choice.choose_model(made, device, shape, why)
        choice.choose_training(made, device, shape)
    assert small.config.model["dim"] < large.config.model["dim"] == 256
    assert small.config.model["dropout"] < large.config.model["dropout"]
    tokens = [made.config.train.steps * made.config.train.batch_tokens for made in (small, large)]
    assert tokens[0] == pytest.approx(rules.CPU_TOKENS, rel=0.01) and tokens[1] > 30e6
    assert large.config.train.precision == "bf16"


def _facts(pairs: int, device: torch.device) -> choice.TrainingFacts:
    data = choice.DataSurvey(pairs, (12.0, 12.0), (60.0, 60.0), (False, False), 80)
    return choice.TrainingFacts(data, choice.Lengths(16.0, 40), 500, rules.row_for(pairs), device)


def _timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, steps: float, *sets: str
) -> tuple[Config, list[str], list[int]]:
    """What is chosen for a time, if a width of 192 trains at `steps` per second; and the widths that were tried."""
    tried: list[int] = []

    def probe(config: Config, seconds: float, run: Path) -> Speed:
        tried.append(config.model["dim"])
        return Speed(1.0, steps * 192**2 / config.model["dim"] ** 2, validation=0.5)

    monkeypatch.setattr(auto, "probe", probe)
    monkeypatch.setattr(auto, "fastest_threads", lambda *given: torch.get_num_threads())
    config, said = chosen(folder, write(folder, 3_000), *sets, seconds=seconds)
    return config, said, tried


def test_a_time_is_the_length_of_training_and_the_steps_are_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, said, tried = _timed(tmp_path, monkeypatch, 100, 5.0)
    assert tried == [192]
    train, validations = config.train, config.train.steps / config.train.validate_every
    assert (train.seconds, train.budget, train.patience) == (92, "time", 0) and 0.6 * 5 * train.seconds < train.steps
    assert train.steps / 5 + validations * 0.5 * 3 < train.seconds
    assert "as many as fit into 1:40, at 5 steps per second now" in said[3]


def test_a_short_time_gets_a_smaller_model_and_a_long_one_that_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, said, tried = _timed(tmp_path, monkeypatch, 90, 1.0)
    assert tried == [192, 128] == [192, config.model["dim"]] and "smaller, to suit the time" in said[2]
    config, said, tried = _timed(tmp_path, monkeypatch, 20_000, 8.0)
    assert config.model["dim"] == rules.SHAPES[rules.row_for(3_000).shape].dim == 256


def test_few_pairs_get_a_model_that_a_time_allows_enough_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many passes over few short pairs are few updates."""
    config, _, _ = _timed(tmp_path, monkeypatch, 200, 4.0)
    train = config.train
    assert train.batch_tokens == rules.CPU_BATCH and config.model["dim"] == 192
    assert train.steps >= rules.ENOUGH_UPDATES
    monkeypatch.setattr(rules, "ENOUGH_UPDATES", 1)
    config, _, _ = _timed(tmp_path, monkeypatch, 200, 4.0)
    assert config.model["dim"] == 256


def test_updates_that_would_take_much_of_the_time_become_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, _, _ = _timed(tmp_path, monkeypatch, 100, 8.0)
    config, _, _ = _timed(tmp_path, monkeypatch, 100, 0.2)  # 2.3 seconds per update with the smallest model
    assert auto.LEAST_BATCH <= config.train.batch_tokens < 0.5 * usual.train.batch_tokens == 0.5 * rules.CPU_BATCH
    assert config.train.schedule["rate"] < 0.8 * rules.SHAPES["mini"].rate
    set, _, _ = _timed(tmp_path, monkeypatch, 100, 0.2, "train.batch_tokens=3000")
    assert set.train.batch_tokens == 3000


def test_speed_is_measured_once_if_that_took_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "left", lambda clock: 0.6 * clock.seconds)
    config, _, tried = _timed(tmp_path, monkeypatch, 90, 1.0)
    assert tried == [192] and config.model["dim"] == 128


def test_a_time_that_is_over_when_the_data_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "left", lambda clock: 1.0)
    with pytest.raises(ConfigError, match=r"--time: 1:30 are over before training begins.* give --time 8m or more"):
        _timed(tmp_path, monkeypatch, 90, 1.0)


def test_a_number_of_steps_that_was_set_stays_with_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _, _ = _timed(tmp_path, monkeypatch, 300, 8.0, "train.steps=12")
    assert config.train.steps == 12 and config.train.seconds > 0 and config.train.budget == "steps"


def test_a_time_limits_a_fixed_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "probe", lambda *given: pytest.fail("nothing needs to be measured"))
    said: list[str] = []
    choose = chooser(False, [], Clock(120.0), said.append)
    assert choose is not None
    recipe = load_config("transformer-tiny")
    assert choose(recipe, tmp_path, CPU) == recipe.replaced({"train.seconds": 112.0})
    (line,) = said
    assert line.startswith(f"training:   up to {recipe.train.steps:,} steps, in at most 2:00")


def test_there_is_nothing_to_choose_without_auto_and_time() -> None:
    assert chooser(False, ["train.steps=5"], None, print) is None


@pytest.mark.parametrize(
    ("sets", "data", "says"),
    [
        (["task=classification"], "a.tsv", "auto chooses for pairs of texts"),
        ([], "", "there is no training data: give --data"),
    ],
)
def test_what_auto_cannot_do_is_said(sets: list[str], data: str, says: str, tmp_path: Path) -> None:
    choose: Any = chooser(True, sets, None, print)
    config = load_config("auto", sets).replaced({"data.train": [data] if data else []})
    with pytest.raises(ConfigError, match=says):
        choose(config, tmp_path, CPU)


def test_validation_can_be_switched_off(tmp_path: Path) -> None:
    config, said = chosen(tmp_path, write(tmp_path, 300), "data.hold_out=0", "train.validate_bleu=false")
    assert config.data.hold_out == 0 and config.train.best_by == "loss"
    assert said[-1] == "validation: none, as set; the last weights are published"


def test_of_many_pairs_some_are_looked_at_and_all_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.training.auto.choose_settings.EVERY", 10)
    monkeypatch.setattr("weft.training.auto.choose_settings.STRIDE", 5)
    found = survey([open_pairs(write(tmp_path, 300))])
    assert found.pairs == 300 and found.words == (8.0, 8.0)


def test_a_speed_that_was_measured_at_a_bad_moment_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _, _ = _timed(tmp_path, monkeypatch, 60, 0.001)
    assert config.train.steps == auto.FEWEST_STEPS and config.train.budget == "time"


def test_a_time_that_is_too_short_is_said_first_with_one_that_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, said, _ = _timed(tmp_path, monkeypatch, 60, 0.2)
    assert said[0].startswith("time:       1:00 are too short for a usable model here: it sees the data 2.")
    minutes = int(said[0].rpartition("--time ")[2].removesuffix("m)"))
    _, said, _ = _timed(tmp_path, monkeypatch, 60 * minutes, 0.2)
    assert said[0].startswith("data:")


@pytest.mark.parametrize(("device", "speeds"), [("cuda", 100.0), ("cpu", 0.5)])
def test_a_gpu_that_was_still_loading_its_kernels_is_measured_again(
    device: str, speeds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [[{"step": 5, "seconds": 10.0}], [{"step": 5 * n, "seconds": 0.05 * n} for n in range(1, 9)]]

    def train(*given: Any) -> SimpleNamespace:
        return SimpleNamespace(lines=lines.pop(0), validation=1.0)

    monkeypatch.setattr(speed_probe, "_train", train)
    monkeypatch.setattr(speed_probe, "choose_device", lambda name: torch.device(device))
    monkeypatch.setattr(speed_probe, "PROBED_BATCH", 1)
    assert speed_probe.probe(load_config("transformer-tiny"), 2.0).steps_a_second == pytest.approx(speeds)


def test_threads_are_those_that_are_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.get_num_threads()
    set_threads: list[int] = []
    monkeypatch.setattr(auto, "probe", lambda *given: Speed(1.0, 4.0, validation=0.5))
    monkeypatch.setattr(auto, "fastest_threads", lambda *given: usual + 1)
    monkeypatch.setattr(auto.torch, "set_num_threads", set_threads.append)
    config, said = chosen(tmp_path, write(tmp_path, 3_000), seconds=600)
    assert config.train.threads == usual + 1 and set_threads == [usual + 1]
    assert any(line.startswith(f"threads:    {usual + 1}, which are faster here than {usual}") for line in said)
    config, _ = chosen(tmp_path, write(tmp_path, 3_000), "train.threads=3", seconds=600)
    assert config.train.threads == 3


def test_a_busy_machine_measures_its_threads_without_a_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto.os, "getloadavg", lambda: (1e6, 0.0, 0.0), raising=False)
    monkeypatch.setattr(auto, "fastest_threads", lambda *given: torch.get_num_threads() + 1)
    monkeypatch.setattr(auto.torch, "set_num_threads", lambda count: None)
    assert chosen(tmp_path, write(tmp_path, 300))[0].train.threads == torch.get_num_threads() + 1


def test_one_thread_is_taken_if_more_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, now = [2], [0.0]

    def clock() -> float:
        now[0] += 6.0 if threads[-1] > 1 else 1.0  # two threads are six times slower
        return now[0]

    monkeypatch.setattr(speed_probe.torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(speed_probe.torch, "set_num_threads", threads.append)
    monkeypatch.setattr(speed_probe.time, "perf_counter", clock)
    assert speed_probe.fastest_threads(8, 16) == 1 and threads[-1] == 2
