"""The files of a run that show its results: no row twice after any resume, no text that breaks a line, nothing slower."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import pictures, small_task
from weft.tasks.base import Sample
from weft.training import result_files
from weft.training.log import Log, open_log
from weft.training.result_files import ResultFiles, curves, read_samples, result_rows, thinned

TEXTS = [Sample("a\nb", "", " step 7"), Sample("3 source: x", "y", "step 9\nz")]


@pytest.fixture(autouse=True)
def _drawn() -> Iterator[None]:
    with pictures.drawn():
        yield


def write(log: Log, *steps: int) -> None:
    for step in steps:
        log.train(step, loss=5.0 - step, lr=0.001, tokens_per_second=100.0 * step, seconds=float(step), seconds_left=1.0)
        if step % 2 == 0:
            log.samples(step, TEXTS)
            log.validation(step, {"loss": 9.0 - step, "bleu": 1.5 * step})


def opened(run: Path, step: int = 0) -> Log:
    log = open_log(run, 9, tensorboard=False, terminal=False)
    log.begin(step)
    return log


def rows(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "results.csv").open()))


def test_a_row_has_the_training_since_the_row_before(tmp_path: Path) -> None:
    write(opened(tmp_path), 1, 2, 3, 4)
    first, second = rows(tmp_path)
    assert first == {
        "step": "2",
        "seconds": "2",
        "lr": "0.001",
        "train_loss": "3.5",
        "train_tokens_per_second": "150",
        "valid_loss": "7",
        "valid_bleu": "3",
    }
    assert (second["step"], second["train_loss"], second["train_tokens_per_second"]) == ("4", "1.5", "350")


@pytest.mark.parametrize("step", [0, 2, 3, 4])
def test_a_resume_from_an_older_checkpoint_leaves_no_row_twice(step: int, tmp_path: Path) -> None:
    write(opened(tmp_path), 1, 2, 3, 4)
    whole, texts = (tmp_path / "results.csv").read_text(), (tmp_path / "samples.txt").read_text()
    log = opened(tmp_path, step)
    assert [int(row["step"]) for row in rows(tmp_path)] == [each for each in (2, 4) if each <= step]
    write(log, *range(step + 1, 5))
    assert (tmp_path / "results.csv").read_text() == whole
    assert (tmp_path / "samples.txt").read_text() == texts


def test_texts_of_several_lines_stay_in_their_block(tmp_path: Path) -> None:
    write(opened(tmp_path), 2, 4)
    one_line = [Sample("a⏎b", "", " step 7"), Sample("3 source: x", "y", "step 9⏎z")]
    assert read_samples(tmp_path) == [(2, one_line), (4, one_line)]
    assert read_samples(tmp_path / "nothing") == []


def test_a_line_that_was_cut_off_by_a_crash_is_no_sample(tmp_path: Path) -> None:
    write(opened(tmp_path), 2)
    file = tmp_path / "samples.txt"
    file.write_text(file.read_text() + "step 4\n\n  1 source:    a\n    refer")
    assert [(step, len(found)) for step, found in read_samples(tmp_path)] == [(2, 2), (4, 0)]
    write(opened(tmp_path, 2), 3, 4)
    assert [(step, len(found)) for step, found in read_samples(tmp_path)] == [(2, 2), (4, 2)]


def test_values_that_are_no_numbers_leave_gaps(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = [
        {"event": "validation", "step": 1, "loss": 3.0},
        {"event": "train", "step": 2, "loss": None, "lr": 0.1, "tokens_per_second": 1.0, "seconds": 1.0},
        {"event": "validation", "step": 2, "loss": None, "bleu": 1.0},
    ]
    first, second = result_rows(found)
    assert first["seconds"] is None and second["train_loss"] is None
    assert curves(found)["loss"] == {"valid": [(1, 3.0)]}
    result_files.draw_results(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_the_panels_of_the_picture_have_one_axis_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = result_files.empty_figure(4, 4, 50, None)
    monkeypatch.setattr(result_files, "empty_figure", lambda *size: figure)
    train = {"event": "train", "loss": 4.0, "lr": 0.1, "tokens_per_second": 1.0}
    found = [{**train, "step": 5}, {**train, "step": 40}, {"event": "validation", "step": 30, "loss": 3.0, "bleu": 1.0}]
    result_files.draw_results(found, tmp_path / "picture.png", "words")
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "step", "step"]
    assert figure.axes[3].get_title("left") == "words per second"


def test_all_words_and_numbers_lie_within_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = result_files.empty_figure(10, 6, 100, None)
    monkeypatch.setattr(result_files, "empty_figure", lambda *size: figure)
    train = {"event": "train", "loss": 0.00123, "lr": 0.00031, "tokens_per_second": 1000000.0}
    found = [{**train, "step": 5}, {**train, "step": 400_000, "lr": 0.00033, "tokens_per_second": 2345678.0, "loss": 0.00187}]
    result_files.draw_results(found, tmp_path / "picture.png")
    drawn, (titles, ticks) = figure.get_tightbbox(), zip(*map(_title_and_ticks, figure.axes), strict=True)
    assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= 10 and drawn.y1 <= 6
    assert not any(title.overlaps(axes.bbox) for title in titles[2:] for axes in figure.axes[:2])
    assert not any(number.overlaps(axes.bbox) for number in ticks[1] + ticks[3] for axes in (figure.axes[0], figure.axes[2]))


def _title_and_ticks(axes: Any) -> tuple[Any, list[Any]]:
    """The places of the title and of the numbers beside an axis."""
    return axes._left_title.get_window_extent(), [label.get_window_extent() for label in axes.get_yticklabels()]


def test_long_curves_are_drawn_as_means() -> None:
    points = [(float(x), 2.0 * x) for x in range(1000)]
    few = thinned(points, 10)
    assert len(few) == 10 and few[0] == (49.5, 99.0) and thinned(points) == points


def test_drawing_takes_at_most_a_percent_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, drawn = [0.0], list[float]()

    def draw(*_: Any) -> None:
        drawn.append(now[0])
        now[0] += 0.5

    monkeypatch.setattr(result_files, "draw_results", draw)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    (tmp_path / "log.jsonl").write_text('{"event": "validation", "step": 1, "loss": 1.0}\n')
    sink = ResultFiles(tmp_path)
    for _ in range(200):
        now[0] += 1.0
        sink.record({"event": "validation"})
    assert drawn == [1.0, 51.5, 102.0, 152.5]
    sink.record({"event": "summary"})
    assert len(drawn) == 4, "nothing has changed since the last picture"
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event": "validation", "step": 2, "loss": 0.5}\n')
    sink.record({"event": "summary"})
    assert len(drawn) == 5, "the last picture shows the whole run"


def test_a_run_without_matplotlib_has_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    write(opened(tmp_path), 2)
    assert rows(tmp_path) and read_samples(tmp_path) and not (tmp_path / "results.png").exists()


def test_the_files_change_no_bit_of_the_weights(tmp_path: Path) -> None:
    _, plain = small_task.train(tmp_path / "plain")
    log = open_log(tmp_path / "watched", 9, tensorboard=False, terminal=False)
    _, watched = small_task.train(tmp_path / "watched", log=log)
    assert len(rows(tmp_path / "watched")) == 5
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))


def test_a_run_that_goes_back_to_an_older_checkpoint_repeats_its_rows(tmp_path: Path) -> None:
    def train(**options: Any) -> None:
        small_task.train(tmp_path, log=open_log(tmp_path, 9, tensorboard=False, terminal=False), keep_last=9, **options)

    train(steps=9)
    timeless = [{**row, "seconds": "", "train_tokens_per_second": ""} for row in rows(tmp_path)]
    for folder in (tmp_path / "checkpoints").glob("step-*"):
        if json.loads((folder / "state.json").read_text())["progress"]["update"] > 4:
            shutil.rmtree(folder)
    train(steps=9, resume=True)
    assert [{**row, "seconds": "", "train_tokens_per_second": ""} for row in rows(tmp_path)] == timeless
