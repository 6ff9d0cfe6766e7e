"""Files and folders that commands make: whole or not at all, whoever is killed and whoever is first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.helpers import tiny
from weft.errors import RunError
from weft.runs import packed_run
from weft.runs.run_folder import create_folder, records
from weft.runs.weight_files import replacing
from weft.training.checkpoint import publish


def test_what_a_killed_command_has_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".tmp-out").mkdir()
    (tmp_path / ".tmp-out" / "half").write_text("")
    with replacing(tmp_path / "out", new=True) as aside:
        aside.mkdir()
        (aside / "whole").write_text("whole")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "whole"]


@pytest.mark.parametrize("folder", [True, False])
def test_what_another_process_has_made_meanwhile_stays(folder: bool, tmp_path: Path) -> None:
    def make(path: Path, text: str) -> None:
        if folder:
            path.mkdir()
        (path / "file" if folder else path).write_text(text)

    def race() -> None:
        with replacing(out, new=True) as aside:
            make(aside, "mine")
            make(out, "theirs")

    out = tmp_path / "out"
    with pytest.raises(RunError, match="out: another process has just made it"):
        race()
    assert (out / "file" if folder else out).read_text() == "theirs"
    assert os.listdir(tmp_path) == ["out"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with replacing(tmp_path / "out", new=True) as aside:
        aside.mkdir()
        (aside / "file").write_text("")
    assert os.listdir(tmp_path / "out") == ["file"]


def test_a_packed_run_that_another_process_unpacks_meanwhile_is_not_taken_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny.train(tmp_path / "run", settings={"train.steps": 1})
    packed_run.pack_run(tmp_path / "run", tmp_path / "run.weft")
    theirs: list[Path] = []
    extract = packed_run._extract

    def late(file: Path, archive: object, aside: Path) -> None:
        if not theirs:
            theirs.append(aside)
            theirs.append(packed_run.unpacked(file))
            (theirs[1] / "theirs").write_text("")
        extract(file, archive, aside)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_run, "_extract", late)
    assert packed_run.unpacked(tmp_path / "run.weft") == theirs[1]
    assert (theirs[1] / "theirs").exists() and not theirs[0].exists()


@pytest.mark.parametrize("links", [True, False])
def test_weights_are_kept_once_if_publishing_was_killed(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"a": torch.zeros(2)}, {"weights": "best", "step": "1"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda old, new: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            publish(tmp_path, {"a": torch.ones(2)}, {"weights": "average", "step": "1"}, by="average")
    kept = tmp_path / "model.best-1.safetensors"
    if not links:  # as on a file system that has none
        content = kept.read_bytes()
        kept.unlink()
        kept.write_bytes(content)
    publish(tmp_path, {"a": torch.ones(2)}, {"weights": "average", "step": "1"}, by="average")
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["model.best-1.safetensors", "model.safetensors"]


def test_a_process_killed_while_it_wrote_its_first_file_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / ".tmp-run.json.0a1b2c3d").write_text("{")
    create_folder(tmp_path)
    (tmp_path / "notes").write_text("")
    with pytest.raises(RunError, match="not empty"):
        create_folder(tmp_path)


@pytest.mark.parametrize("command", ["average", "merge"])
def test_a_run_that_a_command_makes_of_another_is_whole_or_not_there(
    command: str, tmp_path: Path, weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.train(tmp_path / "run", settings={"train.steps": 2})
    if command == "merge":
        lora = {key: value for key, value in tiny.SETTINGS.items() if key.startswith("train.")}
        import weft as library

        data = tiny.generated("reverse", 40)
        library.train(
            start=tmp_path / "run", data=data, out=tmp_path / "lora", set={**lora, "train.steps": 1, "model.lora.rank": 2}
        )
    words = [command, tmp_path / ("run" if command == "average" else "lora"), "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr("weft.training.checkpoint.publish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        weft(*words, status=130)
    assert not [*(tmp_path / "out").iterdir()] and not list(tmp_path.glob(".tmp-*"))
    weft(*words)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_zeros_and_cut_lines_in_a_log_are_left_out(tmp_path: Path) -> None:
    """What a power cut may leave of lines that were not synced."""
    (tmp_path / "log.jsonl").write_bytes(b'{"event": "train", "step": 1}\n\0\0\0\0}\n\xff{"event"}\n{"event": "tr')
    assert records(tmp_path) == [{"event": "train", "step": 1}]
