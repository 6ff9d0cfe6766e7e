"""What the page reads: logs line by line also while they are replaced, states of runs here and elsewhere, differences."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.watching import write_run, write_steps
from weft.errors import RunError
from weft.file_access import replace_file
from weft.runs.run_folder import RunLock, log_record
from weft.training.log import open_log
from weft.training.result_files import thinned
from weft.watch import growing_curves, run_reader
from weft.watch.growing_curves import POINTS, GrowingCurve, GrowingCurves
from weft.watch.run_reader import FRESH, RunLog, RunReader, training_process


def test_only_new_lines_of_a_log_are_read(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    log = RunLog(file)
    assert log.read() == []
    file.write_text('{"event": "train", "step": 1}\n{"event": "tr')
    assert [each["step"] for each in log.read()] == [1], "half a line is none yet"
    with open(file, "a") as out:
        out.write('ain", "step": 2}\nnonsense\n')
    assert [each["step"] for each in log.read()] == [1, 2]
    first = log.records[0]
    assert log.read()[0] is first, "nothing is read twice"


def test_a_log_that_a_resume_replaces_is_read_anew(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    reader = RunReader(tmp_path)
    assert [each["step"] for each in reader.records(tmp_path / "a") if each["event"] == "train"] == [1, 2, 3, 4]
    resumed = open_log(tmp_path / "a", 8, tensorboard=False, terminal=False)
    resumed.begin(2)
    write_steps(resumed, range(3, 7))
    assert [each["step"] for each in reader.records(tmp_path / "a") if each["event"] == "train"] == [1, 2, 3, 4, 5, 6]


def test_runs_are_found_at_any_depth_and_named_by_their_path(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "search/runs/b")
    write_run(tmp_path / ".watch/c")
    (tmp_path / "a/checkpoints").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(RunReader(tmp_path).folders()) == ["a", "search/runs/b"]
    assert list(RunReader(tmp_path / "a").folders()) == ["a"], "a run itself can be watched"
    for wrong in ("../a", "/etc", "b", ""):
        with pytest.raises(RunError, match="there is no run"):
            RunReader(tmp_path).folder_of(wrong)


def states(folder: Path) -> dict[str, str]:
    return {each.name: each.state for each in RunReader(folder).states()}


def test_a_run_trains_here_elsewhere_or_not_at_all(tmp_path: Path) -> None:
    for name in ("here", "elsewhere", "stopped"):
        write_run(tmp_path / name)
    write_run(tmp_path / "finished", finished=True)
    for name in ("stopped", "finished", "here"):
        old = time.time() - 2 * FRESH
        os.utime(tmp_path / name / "log.jsonl", (old, old))
    with RunLock(tmp_path / "here"):
        assert states(tmp_path) == {name: name for name in ("elsewhere", "finished", "stopped")} | {"here": "training"}
        assert training_process(tmp_path / "here") == os.getpid()
    assert states(tmp_path)["here"] == "stopped"
    write_run(tmp_path / "another")
    assert list(states(tmp_path))[:2] == ["another", "elsewhere"], "those that train keep their places, whichever logged last"
    (tmp_path / "here/run.lock").write_text("1\n")  # the number of another process by now
    assert states(tmp_path)["here"] == "stopped"


def test_a_state_has_the_newest_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    (state,) = RunReader(tmp_path).states()
    assert (state.step, state.steps, state.loss, state.speed, state.left) == (4, 8, 1.25, 1000.0, 4.0)
    assert state.unit == "tokens"
    assert state.scores == {"loss": 1.5, "bleu": 40.0} and (state.task, state.model) == ("translation", "transformer")


def test_details_and_curves_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    reader = RunReader(tmp_path)
    details = reader.details("a")
    assert [each["step"] for each in details["samples"]] == [2, 4]
    assert details["samples"][1]["texts"][0]["output"] == "ein Hund 4"
    assert details["notes"] == ["model:      Transformer, as suits the data"] and details["settings"]["train.steps"] == "8"
    assert reader.curves("a")["score"] == {"bleu": [(2, 20.0), (4, 40.0)]}
    json.dumps(details)


def test_curves_follow_a_log_that_grows_or_is_replaced(tmp_path: Path) -> None:
    log = write_run(tmp_path / "a", 3)
    reader = RunReader(tmp_path)
    first = reader.curves("a")
    assert reader.curves("a") == first
    write_steps(log, range(4, 5))
    assert len(reader.curves("a")["loss"]["train"]) == 4 == len(first["loss"]["train"]) + 1
    before = reader.curves("a")["loss"]["train"]
    file = tmp_path / "a" / "log.jsonl"
    replace_file(file, file.read_text("utf-8").replace('"loss": 5.0', '"loss": 7.0'))
    after = reader.curves("a")["loss"]["train"]
    assert len(after) == len(before) and after != before


def test_pages_that_ask_at_once_read_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write_run(tmp_path / "a", 3)
    reader, whole = RunReader(tmp_path), len(RunReader(tmp_path).records(tmp_path / "a"))

    def slowly(line: bytes) -> dict[str, Any] | None:
        time.sleep(0.001)  # others go on
        return log_record(line)

    monkeypatch.setattr(run_reader, "log_record", slowly)
    with ThreadPoolExecutor(8) as pages:
        assert len({len(each) for each in pages.map(lambda _: list(reader.records(tmp_path / "a")), range(8))}) == 1
        write_steps(log, range(4, 5))
        list(pages.map(lambda _: reader.curves("a"), range(8)))
    assert len(reader.records(tmp_path / "a")) == whole + 2  # a step and a validation
    assert len(reader.curves("a")["loss"]["train"]) == 4


def test_a_growing_curve_is_thinned_like_a_whole_one() -> None:
    """At each length, also where groups become larger."""
    points = [(float(step), float(step * step % 97)) for step in range(3 * POINTS + 5)]
    growing = GrowingCurve()
    for end in range(0, len(points), 7):
        growing.points += points[len(growing.points) : end]
        assert growing.thinned() == thinned(points[:end], POINTS)


def test_new_lines_of_a_long_log_are_all_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"event": "train", "step": step, "loss": 1.0} for step in range(10 * POINTS)]
    growing, computed = GrowingCurves(), 0

    def counted(points: Any, most: int) -> Any:
        nonlocal computed
        computed += len(points)
        return thinned(points, most)

    monkeypatch.setattr(growing_curves, "thinned", counted)
    growing.after(records)
    first, computed = computed, 0
    records += [{"event": "train", "step": len(records), "loss": 1.0}]
    growing.after(records)
    assert first == 10 * POINTS and computed == len(records), "groups become larger once in as many lines as there are points"
    computed = 0
    records += [{"event": "train", "step": len(records), "loss": 1.0}]
    assert len(growing.after(records)["loss"]["train"]) <= POINTS and computed <= 2 * 11


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    lines = (f'{{"event": "train", "step": {step}, "loss": 1.0}}\n' for step in range(10 * POINTS))
    (tmp_path / "a/log.jsonl").write_text("".join(lines))
    assert len(RunReader(tmp_path).curves("a")["loss"]["train"]) == POINTS


def test_settings_that_differ_are_shown_with_those_that_one_lacks(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", settings={"train.clip": 2.0, "model.encoder_self": {"kind": "local", "window": 2}})
    found = {each["key"]: each["values"] for each in RunReader(tmp_path).differences(["a", "b"])}
    assert found["train.clip"] == ["1.0", "2.0"] and found["model.encoder_self.kind"] == ["full", "local"]
    assert found["model.encoder_self.window"] == ["", "2"] and "train.steps" not in found


def test_a_run_of_another_version_or_half_written_is_shown_as_far_as_possible(tmp_path: Path) -> None:
    for name, config in (("a", "train: {new_setting: 1, steps: 7}"), ("b", "train: ["), ("c", "- 1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(config)
        (tmp_path / name / "run.json").write_text("{}")
    found = {each.name: each.steps for each in RunReader(tmp_path).states()}
    assert found == {"a": 7, "b": 0, "c": 0}
    assert RunReader(tmp_path).details("b")["samples"] == []
