"""What a resumed run accepts, what it refuses, and what becomes of published weights and of relative paths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.config.sections import DataSection, TrainSection, load_config
from weft.data.formats import open_pairs
from weft.errors import ConfigError
from weft.runs.weight_files import read_metadata
from weft.training.checkpoint import HISTORY
from weft.training.resumption import FIXED, INEXACT, reason


@pytest.fixture
def copied(reverse_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reverse_run, tmp_path / "run"))


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("model.heads=4", "model.heads 2 → 4"),
        ("model.activation=gelu", "model.activation relu → gelu"),
        ("model.encoder_self=linear", "model.encoder_self full → linear"),
        ("data.tokenizer=characters", "data.tokenizer words → characters"),
        ("data.vocabulary=50", "data.vocabulary 30 → 50"),
        ("data.max_length=20", "data.max_length 256 → 20"),
        ("train.seed=7", "train.seed 1 → 7"),
        ("train.packed=true", "train.packed false → true"),
        ("task={kind: classification}", "task translation → classification"),
    ],
)
def test_what_would_damage_the_run_is_refused_by_name(weft: tiny.Shell, copied: Path, setting: str, shown: str) -> None:
    before = (copied / "config.yaml").read_bytes()
    weft.fails("train", "--resume", copied, "--set", setting, says=[f"{shown}: ", "train anew: weft train", "--out NEW --set"])
    assert (copied / "config.yaml").read_bytes() == before


def test_all_refusals_come_at_once_and_an_edited_configuration_is_no_way_around(weft: tiny.Shell, copied: Path) -> None:
    file = copied / "config.yaml"
    file.write_text(file.read_text().replace("heads: 2", "heads: 4"))
    said = weft.fails("train", "--resume", copied, "--set", "data.vocabulary=50", "train.steps=500")
    assert "model.heads 2 → 4" in said and "data.vocabulary 30 → 50" in said
    assert "train.steps" not in said


def test_what_may_change_is_said_and_saved(weft: tiny.Shell, copied: Path) -> None:
    sets = ["train.steps=402", "train.log_every=1", "model.dropout=0.25", "decode.beam=3", "train.batch_tokens=700"]
    weft("train", "--resume", copied, "--set", *sets)
    for change in ("train.steps 400 → 402", "train.log_every 50 → 1", "model.dropout 0.0 → 0.25", "decode.search.width 1 → 3"):
        assert change in weft.err
    assert "train.batch_tokens: batches are cut differently" in weft.err
    assert "train.steps 400 → 402" in (copied / "train.log").read_text()
    for file in (copied / "config.yaml", copied / "checkpoints" / "config.yaml"):
        config = load_config(file)
        assert (config.train.steps, config.model["dropout"], config.decode.search["width"]) == (402, 0.25, 3)
    weft("train", "--resume", copied)
    assert "resuming with" not in weft.err


def test_the_table_names_settings_that_exist() -> None:
    for path in (*FIXED, *INEXACT):
        section, _, key = path.partition(".")
        if section in ("data", "train"):
            assert key.split(".")[0] in (DataSection if section == "data" else TrainSection).model_fields, path
    assert reason("model.encoder_self.window") and reason("data.tokenizer.kind")
    assert not (reason("train.optimizer.decay") or reason("model.dropout") or reason("task.label_smoothing"))


def test_averages_survive_resuming_and_are_kept_when_training_goes_on(weft: tiny.Shell, copied: Path) -> None:
    trained = (copied / "model.safetensors").read_bytes()
    out = weft("average", copied, "--last", "3")
    averaged = (copied / "model.safetensors").read_bytes()
    assert "steps 200, 300, 400" in out and averaged != trained
    first = next(copied.glob("model.*-*.safetensors"))
    assert first.read_bytes() == trained and str(first) in out

    weft("train", "--resume", copied)
    assert "the average of steps 200, 300, 400, published by `weft average`: they stay" in weft.err
    assert "done: step 400, average weights" in weft.err
    assert (copied / "model.safetensors").read_bytes() == averaged

    weft("train", "--resume", copied, "--set", "train.steps=401")
    assert "training will publish over them" in weft.err
    kept = copied / "model.average-400.safetensors"
    assert kept.read_bytes() == averaged and kept.name in weft.err
    assert read_metadata(copied / "model.safetensors")["by"] == "train"
    history = [json.loads(line) for line in (copied / HISTORY).read_text().splitlines()]
    assert [line["by"] for line in history[-2:]] == ["average", "train"]
    assert history[-2]["averaged"] == "200,300,400" and history[-1]["kept"] == kept.name


def test_averaging_more_checkpoints_than_there_are_is_an_error(weft: tiny.Shell, copied: Path) -> None:
    before = (copied / "model.safetensors").read_bytes()
    weft.fails("average", copied, "--last", "9", says=["--last 9: there are only 4 checkpoints (steps 100, 200, 300, 400)"])
    assert (copied / "model.safetensors").read_bytes() == before
    assert "steps 100, 200, 300, 400" in weft("average", copied)  # by default up to five


def write_pairs(folder: Path, count: int = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pairs = list(open_pairs(tiny.generated("reverse", count)))
    for side, name in enumerate(("a.src", "a.trg")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    (folder / "a.tsv").write_text("".join(f"1\t{source}\t{target}\n" for source, target in pairs))


def test_runs_with_relative_data_continue_from_any_folder(
    weft: tiny.Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    few = tiny.sets({"train.steps": 1})
    weft("train", "transformer-tiny", "--data", "data/a.src,data/a.trg", "--valid", "data/a.tsv#2,3", "--out", "run", *few)
    data = load_config("run/config.yaml").data
    assert data.train == [f"{tmp_path}/data/a.src,{tmp_path}/data/a.trg"] and data.valid == [f"{tmp_path}/data/a.tsv#2,3"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    weft("train", "--resume", "../run", "--set", "train.steps=2")
    weft("shortlist", "../run")

    (tmp_path / "data").rename(tmp_path / "moved")
    said = [f"{tmp_path}/data/a.src", "If it has moved", "--data FILES"]
    weft.fails("train", "--resume", "../run", "--set", "train.steps=3", says=said)
    moved = ["--data", "../moved/a.src,../moved/a.trg", "--valid", "../moved/a.tsv#2,3"]
    weft("train", "--resume", "../run", *moved, "--set", "train.steps=3")
    assert "resuming with data.train" in weft.err and "done: step 3" in weft.err
    assert "the training data has changed" not in weft.err  # the same data in another place
    with (tmp_path / "moved" / "a.src").open("a") as source, (tmp_path / "moved" / "a.trg").open("a") as target:
        source.write("a b\n")
        target.write("b a\n")
    weft("train", "--resume", "../run", "--set", "train.steps=4")
    assert "data.train: the training data has changed since the last step" in weft.err


def test_paths_in_a_file_belong_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pairs(tmp_path / "project")
    file = tmp_path / "project" / "mine.yaml"
    generated, hub = "generated:dates?count=10", "hf:some/set@train#en,de"
    file.write_text(f"data:\n  train: ['a.src,a.trg', 'a.tsv#2,3', '{generated}', '{hub}', 'gone.tsv']\n")
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "project"
    expected = [f"{there}/a.src,{there}/a.trg", f"{there}/a.tsv#2,3", generated, hub, "gone.tsv"]
    assert load_config(file).data.train == expected
    write_pairs(tmp_path)
    (there / "a.tsv").unlink()  # else, as before, to the current folder
    assert load_config(file).absolute().data.train[1] == f"{tmp_path}/a.tsv#2,3"
    assert load_config(file, ["data.train=[b.tsv]"]).absolute().data.train == [f"{tmp_path}/b.tsv"]
    file.write_text("data:\n  train: 3\n")
    with pytest.raises(ConfigError, match=r"data\.train"):
        load_config(file)


def test_the_page_has_every_setting_that_is_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text("utf-8")
    refused = " ".join(line.split("|")[1] for line in page.splitlines() if "| refused |" in line)
    for path in FIXED:
        assert f"`{path.rpartition('.')[2]}" in refused or path in refused, path
    for path in INEXACT:
        assert f"`{path}` | may change, noted" in page
