"""The page's server: what needs a key, what is refused, and a training from an uploaded file to a translation."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import weft
from tests.helpers import tiny
from tests.helpers.serving import wait_for
from tests.helpers.watching import KEY, Watching, watching, write_run
from weft.watch.processes import Processes, TrainingOrder, _gpu

READING = ("/api/runs", "/api/run?run=a", "/api/curves?run=a", "/api/differences?run=a&run=b")
CHANGES: dict[str, dict[str, Any]] = {
    "/api/stop": {"run": "a"},
    "/api/resume": {"run": "a"},
    "/api/check": {"data": "x.tsv"},
    "/api/train": {"name": "n", "data": "x.tsv"},
    "/api/try": {"run": "a", "text": "x"},
    "/api/compare": {"run": "a", "other": "b"},
    "/api/upload?name=x": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", settings={"train.clip": 2.0}, finished=True)
    return tmp_path


def test_without_keys_everything_can_be_read_and_nothing_changed(folder: Path) -> None:
    with watching(folder, control=False, keys=()) as shown, httpx.Client(base_url=shown.url, trust_env=False) as client:
        assert [client.get(path).status_code for path in READING] == [200] * len(READING)
        assert {each["name"] for each in client.get("/api/runs").json()["runs"]} == {"a", "b"}
        for path, body in CHANGES.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 403 and "--control" in answer.json()["error"], path
        assert client.get("/api/run", params={"run": "../a"}).status_code == 400
        page = client.get("/").text
        assert "http://" not in page and "https://" not in page, "the page loads nothing from elsewhere"
        assert client.get("/", headers={"Host": "foreign.example"}).status_code == 400
    assert sorted(each.name for each in folder.iterdir()) == ["a", "b"], "watching leaves no trace"


def test_with_keys_nothing_is_read_or_changed_without_one(folder: Path) -> None:
    with watching(folder) as shown, httpx.Client(base_url=shown.url, trust_env=False) as client:
        assert {client.get(path).status_code for path in READING} == {400}
        assert {client.post(path, json=body).status_code for path, body in CHANGES.items()} == {400}
        assert client.get("/api/runs", headers={"X-API-Key": "wrong"}).status_code == 403
        shown.get("/api/runs")
        foreign = {"X-API-Key": KEY, "Origin": "https://foreign.example"}
        assert client.post("/api/stop", json={"run": "a"}, headers=foreign).status_code == 403


def test_impossible_changes_say_why(folder: Path) -> None:
    with watching(folder) as shown:
        for path, body, message in (
            ("/api/stop", {"run": "a"}, "not trained by a process of this machine"),
            ("/api/stop", {"run": "c"}, "there is no run 'c'"),
            ("/api/train", {"name": "../x", "data": "x.tsv"}, "letters, digits"),
            ("/api/train", {"name": "a", "data": "x.tsv"}, "there is a run 'a' already"),
            ("/api/train", {"name": "x", "data": " "}, "name a file"),
            ("/api/train", {"name": "x", "data": "x.tsv", "recipe": "--out"}, "there is no recipe '--out'"),
            ("/api/train", {"name": "x", "data": "x.tsv", "time": "soon"}, "soon"),
            ("/api/check", {"data": "/nowhere.tsv"}, "nowhere.tsv"),
            ("/api/compare", {"run": "a", "other": "b"}, "no weights yet"),
        ):
            assert message in shown.post(path, 400, **body)["error"], path


def test_an_upload_gets_a_harmless_name_and_replaces_nothing(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    first, second = (processes.save_upload("../../a b.tsv", content) for content in (b"1", b"2"))
    assert [each.name for each in (first, second)] == ["a-b.tsv", "2-a-b.tsv"] and first.read_bytes() == b"1"
    assert first.parent == tmp_path / ".watch" / "uploads"
    assert processes.save_upload("..", b"").name == "data"


def test_uploads_of_one_name_at_the_same_time_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda path: False)  # as both see it before the other has written
    first, second = (processes.save_upload("a.tsv", content) for content in (b"1", b"2"))
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")


def test_an_order_is_a_command_that_no_value_can_turn_into_another_one(tmp_path: Path) -> None:
    words = TrainingOrder("x", "--resume", "auto", "5m", "-v").words(tmp_path)
    assert words == ["train", "auto", "--data=--resume", "--valid=-v", "--time=5m", f"--out={tmp_path}/x"]


def test_data_is_checked_as_on_the_command_line(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("a dog\tein Hund\n" * 3 + "\tleer\n")
    with watching(folder) as shown:
        found = shown.post("/api/check", data=str(file))
        assert found["pairs"] == 4 and found["counts"] == {"duplicate": 2, "empty": 1}
        assert found["counts"].keys() <= found["about"].keys()
        file.write_text("")
        assert shown.post("/api/check", 400, data=str(file))["error"]


def test_gpus_are_read_from_nvidia_smi() -> None:
    line = "NVIDIA H200, 87, 1024, 143771"
    assert _gpu(line) == {"name": "NVIDIA H200", "load": 87.0, "used": float(1 << 30), "total": 143771.0 * 2**20}
    assert _gpu("NVIDIA H200, [N/A], 1024, 143771") == {}


SLOW = """
import time
from weft.training.update_step import UpdateStep
inner = UpdateStep.backward
def backward(self, *arguments):
    time.sleep(0.2)
    return inner(self, *arguments)
UpdateStep.backward = backward
from weft.cli import main
main()
"""
"""weft, with steps that last long enough to be killed in."""


def state(shown: Watching, name: str) -> str:
    return next((each["state"] for each in shown.get("/api/runs")["runs"] if each["name"] == name), "")


def test_from_an_upload_to_a_translation_through_kills(tmp_path: Path) -> None:
    """A file is uploaded, trained on, stopped and resumed; page and trainer are killed in between."""
    runs, pairs = tmp_path / "runs", "".join(f"{n % 7} {n % 5} {n % 3}\t{n % 3} {n % 5} {n % 7}\n" for n in range(400))
    runs.mkdir()
    with watching(runs) as shown:
        answer = shown.client.post("/api/upload", params={"name": "pairs.tsv"}, content=pairs.encode())
        data = answer.json()["data"]
        assert shown.post("/api/check", data=data)["pairs"] == 400
        shown.post("/api/train", name="mine", data=data, recipe="transformer-tiny", time="300s")
        shown.post("/api/train", name="broken", data=str(tmp_path / "nothing.tsv"))
        wait_for(lambda: (runs / "mine/log.jsonl").exists() and state(shown, "mine") == "training", 12_000)
        wait_for(lambda: any(each["problem"] for each in shown.get("/api/runs")["starting"]), 6000)
        (failed,) = shown.get("/api/runs")["starting"]
        assert failed["name"] == "broken" and "nothing.tsv" in failed["problem"]
    with watching(runs) as shown:  # another page, as after a kill: the training has gone on
        assert state(shown, "mine") == "training"
        pid = int((runs / "mine/run.lock").read_text().split()[0])
        wait_for(lambda: '"train"' in (runs / "mine/log.jsonl").read_text(), 6000)
        shown.post("/api/stop", run="mine")
        wait_for(lambda: state(shown, "mine") != "training", 6000)
        assert any((runs / "mine/checkpoints").glob("step-*")), "it was asked to save"
        shown.post("/api/resume", run="mine")
        wait_for(lambda: state(shown, "mine") == "training", 6000)
        other = int((runs / "mine/run.lock").read_text().split()[0])
        assert other != pid
        os.kill(other, signal.SIGKILL)
        wait_for(lambda: state(shown, "mine") == "stopped", 1000)
        assert shown.post("/api/try", run="mine", text="6 4 2")["text"] is not None


class Page:
    """`weft watch` as a process of its own."""

    def __init__(self, runs: Path) -> None:
        command = [sys.executable, "-m", "weft", "watch", str(runs), "--control", "--api-key", KEY, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stderr is not None
        address = next(found[0] for line in self.process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        self.client = httpx.Client(base_url=address, timeout=60, trust_env=False, headers={"X-API-Key": KEY})

    def state(self, name: str) -> str:
        runs = self.client.get("/api/runs").json()["runs"]
        return next((each["state"] for each in runs if each["name"] == name), "")

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


def test_page_and_trainer_are_killed_one_by_one_and_together(tmp_path: Path) -> None:
    """Whoever is killed, the other goes on; and a run whose trainer was killed is resumed to the same weights."""
    data = {"train": tiny.generated("reverse", 2000), "valid": tiny.generated("reverse", 50, "valid")}
    sets = {**tiny.SETTINGS, "train.steps": 60, "train.save_every": 10, "train.log_every": 5, "train.validate_bleu": False}
    weft.train("transformer-tiny", data=data["train"], valid=data["valid"], out=tmp_path / "whole", set=sets)
    mine, log = tmp_path / "runs" / "mine", tmp_path / "runs" / "mine" / "log.jsonl"
    mine.parent.mkdir()
    options = [
        "--data",
        data["train"],
        "--valid",
        data["valid"],
        "--out",
        mine,
        "--set",
        *(f"{k}={v}" for k, v in sets.items()),
    ]
    slow = [sys.executable, "-c", SLOW, "train", "transformer-tiny", *map(str, options)]
    trainer = subprocess.Popen(slow, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    page = Page(mine.parent)
    try:
        wait_for(lambda: page.state("mine") == "training" and log.exists(), 12_000)
        page.kill()
        size = log.stat().st_size
        wait_for(lambda: log.stat().st_size > size, 6000)  # the trainer goes on
        page = Page(mine.parent)
        assert page.state("mine") == "training"
        wait_for(lambda: any((mine / "checkpoints").glob("step-*")), 6000)
        trainer.kill()
        page.kill()  # both
        trainer.wait()
        page = Page(mine.parent)
        assert page.state("mine") == "stopped"
        assert page.client.post("/api/resume", json={"run": "mine"}).status_code == 200
        wait_for(lambda: page.state("mine") == "finished", 12_000)
    finally:
        trainer.kill()
        page.kill()
    assert (mine / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_two_runs_are_compared_on_the_validation_data_with_a_test(tmp_path: Path) -> None:
    for name, steps in (("a", 30), ("b", 2)):
        tiny.train(tmp_path / name, settings={"train.steps": steps})
    with watching(tmp_path) as shown:
        found: dict[str, Any] = {}

        def done() -> bool:
            found.update(shown.post("/api/compare", run="a", other="b"))
            return found["state"] == "done"

        wait_for(done, 6000)
        assert found["inputs"] == 200 and len(found["rows"]) == 200 and len(found["rows"][0]["outputs"]) == 2
        assert {"delta", "p", "ci"} <= found["report"]["comparison"]["metrics"]["BLEU"].keys()
        assert shown.post("/api/compare", run="a", other="b")["state"] == "done", "the result is kept"


def test_the_command_refuses_to_show_data_to_others_without_keys(tmp_path: Path, weft: tiny.Shell) -> None:
    weft.fails("watch", tmp_path, "--host", "0.0.0.0", says=["--api-key"])
    weft.fails("watch", tmp_path / "nothing", says=["there is no such folder"])
