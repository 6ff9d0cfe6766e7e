"""The log: valid JSON without duplicate steps, plain lines for people, a live line on a terminal."""

import io
import json
import math
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from weft.training.log import LiveLine, Log, open_log
from weft.training.log_text import duration


def lines(run: Path) -> list[dict[str, object]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (run / "log.jsonl").read_text().splitlines()]


def write(log: Log, *steps: int, loss: float = 2.5) -> None:
    for step in steps:
        log.train(step, loss=loss, lr=0.001, tokens_per_second=1234.5, grad_norm=0.5, seconds=1.0, seconds_left=3723.0)
        log.validation(step, {"loss": 2.25, "bleu": 31.5})


def test_records_become_json_lines_and_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(tmp_path, 100, tensorboard=False, terminal=False)
    log.begin(0)
    write(log, 50)
    log.note("a sentence")
    log.summary({"weights": "best"})
    log.close()
    train, validation, summary = lines(tmp_path)
    assert train["event"] == "train" and train["step"] == 50 and train["loss"] == 2.5
    assert validation == {"event": "validation", "step": 50, "loss": 2.25, "bleu": 31.5}
    assert summary["weights"] == "best"
    wanted = "step 50/100 · loss 2.5000 · lr 1.00e-03 · 1,234 tokens/s · 1:02:03 left\n"
    wanted += "validation at step 50: loss 2.25 · bleu 31.5\n"
    assert (tmp_path / "train.log").read_text().startswith(f"{wanted}a sentence\n")
    assert capsys.readouterr().err.startswith(wanted)


@pytest.mark.parametrize("unit", ["tokens", "texts"])
def test_the_speed_has_the_unit_of_the_task(unit: str, tmp_path: Path) -> None:
    log = open_log(tmp_path, 100, unit=unit, tensorboard=False, terminal=False)
    write(log, 50)
    assert f" · 1,234 {unit}/s · " in (tmp_path / "train.log").read_text()


def test_no_step_is_logged_twice_after_resuming(tmp_path: Path) -> None:
    first = open_log(tmp_path, 9, tensorboard=False, terminal=False)
    first.begin(0)
    write(first, 1, 2, 3, 4)
    first.summary({"weights": "best"})
    with open(tmp_path / "log.jsonl", "a") as out:
        out.write('{"event": "train", "st')  # the process was killed in the middle of a line
    second = open_log(tmp_path, 9, tensorboard=False, terminal=False)
    second.begin(2)
    write(second, 3, 4, 5)
    assert [line["step"] for line in lines(tmp_path) if line["event"] == "train"] == [1, 2, 3, 4, 5]
    assert [line["step"] for line in lines(tmp_path) if line["event"] == "validation"] == [1, 2, 3, 4, 5]
    assert "resuming after step 2" in (tmp_path / "train.log").read_text()


def test_non_finite_numbers_are_null_in_json(tmp_path: Path) -> None:
    log = open_log(tmp_path, 9, tensorboard=False, terminal=False)
    log.begin(0)
    write(log, 1, loss=math.nan)
    assert lines(tmp_path)[0]["loss"] is None


def test_the_live_line_shows_the_last_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(tmp_path, 100, tensorboard=False, terminal=True)
    log.begin(0)
    write(log, 50, 51)
    log.close()
    shown = capsys.readouterr().err
    assert "validation at step 50" in shown
    assert "step 51/100" in shown


def test_tensorboard_events_are_written_where_the_package_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = open_log(tmp_path, 9, terminal=False)
    log.begin(0)
    write(log, 1)
    log.close()
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_a_missing_tensorboard_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = open_log(tmp_path, 9, terminal=False)
    log.begin(0)
    write(log, 1)
    log.close()
    assert len(lines(tmp_path)) == 2


def test_only_the_first_process_writes_a_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, 9, first=False)
    log.begin(0)
    write(log, 1)
    log.close()
    assert not list(tmp_path.iterdir())


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 59.9, 61, 3723)] == ["0:00", "0:59", "1:01", "1:02:03"]


def live(width: int, steps: int = 10_000) -> tuple[LiveLine, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=width, highlight=False)
    return LiveLine(steps, console=console), shown


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_live_line_moves_at_every_step_and_fits(width: int) -> None:
    line, shown = live(width)
    line.begin(0)
    seen = []
    for step in range(1, 6):
        line.step(step)
        line._live.refresh()
        seen.append(line.line(width))
    assert len(set(seen)) == 5, "no log line was due, and it moved nevertheless"
    write(Log([line]), 5)
    line.step(6)
    line._live.refresh()
    full = line.line(width)
    line.close()
    assert full.startswith("step 6/10,000") and len(full) <= width
    assert ("1,234 tokens/s" in full) == (width >= 80)
    assert ("bleu 31.5" in full and "lr 1.0e-03" in full) == (width == 200)
    for step in range(1, 7):
        assert f"step {step}/10,000" in shown.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    drawn = [each for each in re.split(r"[\r\n]", plain) if each.startswith("step")]
    assert len(drawn) >= 6 and max(map(len, drawn)) <= width


def test_the_live_line_says_what_training_is_busy_with() -> None:
    line, _ = live(80)
    line.begin(0)
    assert line.line(80) == "loading the model and its state"
    line.phase("compiling the model")
    assert line.line(80) == "compiling the model"
    line.step(1)
    assert line.line(80) == "step 1/10,000"
    line.phase("validating")
    assert line.line(80) == "step 1/10,000 · validating"
    line.step(2)
    assert "validating" not in line.line(80)
    line.close()


def test_without_a_terminal_there_are_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(tmp_path, 100, tensorboard=False)
    log.begin(0)
    log.phase("validating")
    log.step(1)
    write(log, 2)
    log.close()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", capsys.readouterr().err)


def test_a_summary_has_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(tmp_path, 100, unit="texts", tensorboard=False, terminal=False)
    log.begin(0)
    write(log, 1)
    log.summary({"step": 1, "seconds": 754.321, "peak_memory": 382918656, "loss": 0.1294470028})
    said = capsys.readouterr().err
    assert "1,234 texts/s" in said
    assert "time: 12:34 minutes" in said and "peak memory: 383 MB" in said and "loss: 0.1294\n" in said
    assert lines(tmp_path)[-1]["seconds"] == 754.321
