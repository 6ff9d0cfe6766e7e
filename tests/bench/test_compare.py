"""The parts of a comparison: entries, budgets, growth, processes and results."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from weft.bench.compare import training_jobs
from weft.bench.compare.measure_run import Measurements, exponent, measure_growth
from weft.bench.compare.plan import (
    Comparison,
    ComparisonRun,
    Entry,
    check,
    labelled,
    parse_budget,
    parse_entry,
    slot_entries,
    split,
    training,
)
from weft.bench.compare.results import collect, interval, mean_with_interval, pooled_spread, rank, ranks, terminal_table
from weft.bench.compare.training_jobs import Failure, Job, Processes, Stopped, work
from weft.config.registry import build
from weft.config.sections import Config
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.tasks.base import TaskContext
from weft.training.auto.speed_probe import Speed, steps_per_second


def test_an_entry_is_a_recipe_with_changes_after_commas(tmp_path: Path) -> None:
    assert parse_entry("transformer-tiny") == Entry("transformer-tiny")
    assert parse_entry("a,model.dim=8,label=small,train.clip=0") == Entry("a", ("model.dim=8", "train.clip=0"), "small")
    nested = "a,model.encoder_self={kind: local, window: 8},data.train=['x,y']"
    assert parse_entry(nested).sets == ("model.encoder_self={kind: local, window: 8}", "data.train=['x,y']")
    file = tmp_path / "with,comma.yaml"
    file.write_text("")
    assert parse_entry(str(file)) == Entry(str(file))
    for wrong in ("a,b", "a,=8", ",a.b=1", "a,label=", "a,label=x,label=y"):
        with pytest.raises(ConfigError, match=re.escape(wrong)):
            parse_entry(wrong)


def test_commas_in_brackets_and_quotes_do_not_split() -> None:
    assert split("a,{b: [1, 2], c: d},'e,f',g") == ["a", "{b: [1, 2], c: d}", "'e,f'", "g"]


def test_labels_distinguish_entries() -> None:
    def labels(*texts: str) -> list[str]:
        return [entry.label for entry in labelled([parse_entry(text) for text in texts])]

    assert labels("a,model.encoder_self=full", "a,model.encoder_self={kind: local, window: 8}") == [
        "encoder_self=full",
        "encoder_self=local window=8",
    ]
    assert labels("a", "b,model.dim=8") == ["a", "b dim=8"]
    assert labels("a,model.x=1", "a,task.x=1") == ["a,model.x=1", "a,task.x=1"]
    with pytest.raises(ConfigError, match="occurs 2 times"):
        labels("a", "a")


def test_names_of_folders_depend_on_what_an_entry_is_and_not_on_its_label() -> None:
    one = Entry("a", ("model.x={kind: local, window: 8}",), "near")
    assert one.name == Entry("a", one.sets, "other").name
    assert one.name != Entry("a", ("model.x={kind: local, window: 9}",)).name
    assert re.fullmatch(r"[\w.=-]+", one.name)
    assert Entry("dir/a.yaml").name != Entry("a").name


def test_a_slot_is_filled_with_each_kind() -> None:
    said: list[str] = []
    base = [Entry("transformer-tiny", ("model.dim=32",))]
    found = slot_entries(base, "model.encoder_self", "full,{kind: local, window: 8}", said.append)
    assert [entry.label for entry in found] == ["full", "local window=8"]
    assert found[1].sets == ("model.dim=32", "model.encoder_self={kind: local, window: 8}")
    every = [entry.label for entry in slot_entries(base, "model.decoder_self", "all", said.append)]
    assert {"full", "local", "linear"} <= set(every) and not {"fnet", "linformer"} & set(every)
    assert any(text.startswith("leaving out fnet: ") for text in said)
    with pytest.raises(ConfigError, match=r"did you mean 'model\.encoder_self'"):
        slot_entries(base, "model.encoder_slef", "all", said.append)


@pytest.mark.parametrize(
    ("text", "steps", "seconds"),
    [("10m", 0, 600), ("90s", 0, 90), ("1.5h", 0, 5400), ("500-steps", 500, 0), ("20k-steps", 20_000, 0), ("1 step", 1, 0)],
)
def test_budgets(text: str, steps: int, seconds: float) -> None:
    found = parse_budget(text)
    assert (found.steps, found.seconds) == (steps, seconds)


@pytest.mark.parametrize("text", ["", "10", "0s", "0-steps", "ten minutes", "-5m", "5 d"])
def test_an_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="20k-steps"):
        parse_budget(text)


def test_intervals_are_student_s() -> None:
    low, high = interval([1.0, 2.0, 3.0]) or (0, 0)
    assert (low, high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    many = [float(number % 5) for number in range(60)]
    low, high = interval(many) or (0, 0)
    deviation = (sum((value - 2) ** 2 for value in many) / 59) ** 0.5
    assert high - low == pytest.approx(2 * 2.001 * deviation / 60**0.5, rel=1e-3)  # t of 59 degrees is 2.001
    assert interval([1.0]) is None
    assert mean_with_interval([None, None]) is None
    assert mean_with_interval([4.0, None]) == {"mean": 4.0, "low": None, "high": None, "values": [4.0]}


def test_exponents_are_those_of_power_laws() -> None:
    assert exponent([64, 128, 512], [3 * length**1.5 for length in (64, 128, 512)]) == pytest.approx(1.5)
    assert exponent([64], [1.0]) is None


def growth_of(kind: str, lengths: list[int], **model: Any) -> Any:
    slots = {"encoder_self": kind, "decoder_self": kind, "cross": kind}
    spec = {"kind": "transformer", "dim": 16, "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 1}
    config = Config(model={**spec, **slots, **model})
    task = build("weft.tasks:TASKS", config.task, TaskContext(config, Path()))
    sizes = Sizes(20, 20, True)
    return measure_growth(
        task.build(config.model, sizes), task, sizes, lengths, torch.autocast("cpu", torch.bfloat16, enabled=False)
    )


def test_memory_of_full_attention_grows_faster_than_that_of_linear() -> None:
    # Short enough for full attention to store its matrix on a CPU.
    full, linear = (growth_of(kind, [128, 32, 64]) for kind in ("full", "linear"))
    assert full.lengths == linear.lengths == [32, 64, 128]
    assert linear.memory == pytest.approx(1, abs=0.1)
    assert full.memory > 1.3
    assert len(full.seconds) == 3 and full.time is not None
    assert full.bytes == growth_of("full", [32, 64, 128]).bytes, "what is kept does not depend on chance"


def test_model_weights_do_not_count_as_growing_memory() -> None:
    assert growth_of("linear", [16, 32], feedforward=4096).memory == pytest.approx(1, abs=0.1)


def test_growth_is_measured_up_to_the_maximum_length() -> None:
    found = growth_of("full", [16, 32, 64], position="learned", max_length=32)
    assert found.lengths == [16, 32]


def test_the_speed_is_that_of_the_second_half() -> None:
    def line(step: int, seconds: float) -> dict[str, Any]:
        return {"step": step, "seconds": seconds}

    found = steps_per_second([line(5, 4.0), line(10, 5.0), line(15, 6.0), line(20, 7.0)])
    assert found == Speed(3.0, 5.0)
    assert found.planned(13.0) == 50
    assert found.planned(1.0) == 1
    assert steps_per_second([line(4, 2.0)]) == Speed(0.0, 2.0)
    held_up = [line(step, 0.5 * step + 9 * (step > 7)) for step in range(1, 10)]
    assert steps_per_second(held_up).steps_a_second == pytest.approx(2.0)


def test_a_command_that_fails_says_why_and_one_that_is_stopped_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    processes = Processes(tmp_path / "logs")
    with pytest.raises(Failure, match=r"No module named weft\.nonsense"):
        processes("one", [], module="weft.nonsense")
    threading.Timer(0.5, processes.stop).start()
    with pytest.raises(Stopped, match="interrupted"):
        processes("two", [], module="sleeper")
    with pytest.raises(Stopped, match="not started"):
        processes("three", [])
    with pytest.raises(Stopped, match="not started"):
        Processes(tmp_path, until=time.monotonic())("four", [])


def test_a_worker_that_dies_fails_its_job_and_the_rest_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(str(tmp_path / f"{name}.json"), name, {}) for name in "abcd"]
    jobs[0].save(parameters=1)

    def do(folder: Path, wanted: Measurements) -> dict[str, Any]:
        if folder.name == "c":
            raise ValueError("not good")
        return {"parameters": 2}

    class Killed(Processes):
        """The process dies during job b and completes the others."""

        def __call__(self, name: str, words: Any, module: str = "weft") -> str:
            if not jobs[1].file.exists():
                raise Failure("killed")
            training_jobs.main(words[0])
            return ""

    monkeypatch.setattr("weft.bench.compare.measure_run.measure", do)
    work("measure", jobs, Killed(tmp_path))
    assert [job.error() for job in jobs] == ["", "killed", "not good", ""]
    assert [job.load() and job.load()["parameters"] for job in jobs] == [1, None, None, 2]  # type: ignore[index]
    other = Job(jobs[0].result, "a", {"maps": True})
    assert other.load() is None, "what was measured under other options does not count"


def test_steps_are_equal_for_all_entries_unless_the_user_changes_it() -> None:
    entry = Entry("transformer-tiny", ("train.clip=3",))

    def batches(budget: str, *sets: str) -> Any:
        train = training(Comparison((entry,), Path("x"), parse_budget(budget), sets=sets), entry).config().train
        assert (train.validate_every, train.clip) == (0, 3)
        return train.packed, train.rounded

    assert (batches("5-steps"), batches("5s")) == ((False, False), ("auto", "auto"))
    assert batches("5-steps", "train.packed=true") == (True, False)


def trained(folder: Path, speeds: list[float], **scores: float) -> None:
    """The log of a complete run."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = [
        {"event": "train", "step": 5 * number, "seconds": float(number), "tokens_per_second": speed}
        for number, speed in enumerate(speeds, 1)
    ]
    end = {"event": "summary", "step": 20, "stopped": "steps", "weights": "last", "run": "x", "seconds": 99.0, "peak_memory": 7}
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, {**end, **scores}]))


def collected(tmp_path: Path, *, test: bool, key: str = "bleu", higher: bool = True, at_once: int = 1) -> dict[str, Any]:
    """Two entries with two seeds each, the first better on the validation data, the second on the test data; a third failed."""
    entries = [Entry("a", label="one"), Entry("b", label="two"), Entry("c", label="bad")]
    asked = Comparison(
        tuple(entries), tmp_path, parse_budget("20-steps"), test=("x,y",) if test else (), repeat=2, at_once=at_once
    )
    runs = [ComparisonRun(entry, seed, seed - 1, tmp_path / f"{entry.name}.{seed}") for entry in entries for seed in (1, 2)]
    jobs = {}
    for run, valid, tested in zip(runs, (30, 32, 10, 12, 99, 99), (1.0, 2.0, 5.0, 6.0, 9.0, 9.0), strict=True):
        trained(run.folder, [1.0, 10.0, 30.0, 20.0], bleu=valid, loss=valid / 10)
        job = jobs[run.name] = Job(str(tmp_path / "measures" / f"{run.name}.json"), str(run.folder), {})
        headline = {"key": key, "title": key, "higher_is_better": higher}
        first = {"views": [], "decoding": {"per_second": 3.0}, "growth": None, "steps_a_second": 2.0} if run.seed == 1 else {}
        job.save(parameters=8, counts="target tokens", headline=headline, test={"bleu": tested} if test else {}, **first)
    errors = {run.name: "failed" for run in runs[4:]}
    return collect(asked, runs, errors, {name: job for name, job in jobs.items() if name not in errors})


def test_results_are_ranked_by_the_score_that_counts(tmp_path: Path) -> None:
    def order(name: str, **options: Any) -> list[str]:
        return [row["label"] for row in collected(tmp_path / name, **options)["entries"]]

    assert order("valid", test=False) == ["one", "two", "bad"]
    assert order("test", test=True) == ["two", "one", "bad"]
    assert order("loss", test=False, key="loss", higher=False) == ["two", "one", "bad"]
    missing = collected(tmp_path / "missing", test=False, key="chrf")
    assert missing["headline"]["key"] == "loss" and missing["entries"][0]["label"] == "two"


def test_the_speed_of_parallel_trainings_is_measured_alone(tmp_path: Path) -> None:
    one, *_ = collected(tmp_path, test=False, at_once=2)["entries"]
    assert one["speed"]["values"] == [2 * (10 + 30 + 20) / 15], "2 steps a second, of (10 + 30 + 20) / 15 each"


def test_results_are_over_seeds_and_leave_out_what_failed(tmp_path: Path) -> None:
    one, _, bad = collected(tmp_path, test=False)["entries"]
    assert one["quality"]["values"] == [30, 32] and one["quality"]["mean"] == 31 and one["quality"]["low"] < 30
    assert one["speed"]["mean"] == 20, "the median without the first"
    assert one["seconds"]["mean"] == 4, "the last validation is not training"
    assert (one["memory"]["mean"], one["parameters"], one["decoding"]) == (7, 8, 3.0)
    assert bad["quality"] is None and bad["speed"] is None and bad["error"] == "failed"


def test_ranks_are_those_that_noise_allows() -> None:
    """Three entries of two seeds with a pooled deviation of 1: with 3 degrees of freedom, differences below 3.18 are noise."""
    stats = [mean_with_interval([mean - 0.5**0.5, mean + 0.5**0.5]) for mean in (10.0, 8.0, 6.0)]
    found = [each for each in stats if each]
    assert pooled_spread(found) == pytest.approx((1, 3))
    assert ranks(found, higher_is_better=True) == [(1, 2), (1, 3), (2, 3)]
    assert ranks(found, higher_is_better=False) == [(2, 3), (1, 3), (1, 2)]
    single = [{"mean": 1.0, "values": [1.0]}]
    assert ranks(single, higher_is_better=True) is None
    # A single training next to others is less certain.
    assert ranks([*found, {"mean": 10.1, "values": [10.1]}], higher_is_better=True)[3] == (1, 3)  # type: ignore[index]


def test_scores_near_a_floor_are_marked_and_not_ranked() -> None:
    rows = [{"label": str(mean), "quality": mean_with_interval([mean - 0.1, mean + 0.1])} for mean in (30.0, 0.9, 0.06)]
    rank(rows, higher_is_better=True, floors={"copying the input": 1.0, "the same answer to every input": 0.2})
    assert [row["rank"] for row in rows] == [[1, 1], None, None]
    assert [row["near_floor"] for row in rows] == [False, True, True]
    rates = [{"label": str(mean), "quality": mean_with_interval([mean - 0.1, mean + 0.1])} for mean in (20.0, 99.0)]
    rank(rates, higher_is_better=False, floors={"copying the input": 100.0})
    assert [row["near_floor"] for row in rates] == [False, True]


def test_a_warm_up_is_shortened_as_in_training(tmp_path: Path) -> None:
    data = {"data": ("a.tsv",), "valid": ("b.tsv",)}
    entries = tuple(labelled([parse_entry("transformer-tiny,train.schedule.warmup=500")]))
    (note,) = check(Comparison(entries, tmp_path, parse_budget("40-steps"), **data))
    assert note.endswith("train.schedule.warmup: 20, because train.steps is 40")
    entries = tuple(labelled([parse_entry("transformer-tiny,train.schedule.warmup=30")]))
    (note,) = check(Comparison(entries, tmp_path, parse_budget("40-steps"), **data))
    assert "30 of 40 steps are warm-up" in note
    assert check(Comparison(entries, tmp_path, parse_budget("1s"), **data)) == []


def test_words_of_the_table_are_not_broken_at_80_columns() -> None:
    def row(label: str, mean: float) -> dict[str, Any]:
        some = {"mean": mean, "low": None, "high": None, "values": [mean]}
        sizes = {"parameters": {**some, "mean": 350_000}, "speed": {**some, "mean": 1369.0}, "memory": {**some, "mean": 5e8}}
        return {"label": label, "error": "", "quality": some, "near_floor": True, **sizes, "runs": []}

    document = {
        "headline": {"title": "BLEU", "key": "bleu", "higher_is_better": True, "data": "valid"},
        "counts": "target tokens",
        "settings": {"at_once": 1, "budget": "20s", "lengths": []},
        "about": {"device": "CPU"},
        "entries": [
            row(label, 0.15) | {"decoding": 17.7, "growth": None, "seconds": None, "steps": None, "scores": {}}
            for label in ("rnn-luong", "transformer-tiny")
        ],
    }
    console = Console(width=80, file=io.StringIO())
    console.print(terminal_table(document, 80))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("transformer-tiny", "0.15 (near floor)", "tokens/s", "decoded/s", "parameters"):
        assert f" {word} " in shown, shown
    assert all(len(line) <= 80 for line in shown.splitlines())
