"""`weft train auto`: from pairs alone to a published model, resumed exactly and without choosing again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import weft as package
from tests.helpers import tiny
from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.runs.weight_files import read_metadata, read_tensors
from weft.training.auto import plan_for_time as auto

TOPICS = ["data:", "tokens:", "model:", "training:", "validation:"]
DATA = "generated:reverse?count=300&longest=6"
SETS = [
    *("--set", "model.dim=32", "model.heads=2", "model.feedforward=64", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("train.batch_tokens=256", "train.threads=1", "train.device=cpu", "train.precision=float32", "train.tensorboard=false"),
    *("train.validate_every=3", "train.save_every=3", "decode.max_length=8"),
]


def lines(err: str) -> list[str]:
    """The lines that say what was chosen."""
    return [line for line in err.splitlines() if line.split(" ")[0] in TOPICS]


@pytest.fixture
def run(weft: tiny.Shell, tmp_path: Path) -> Path:
    """A short run without a recipe and without validation data."""
    weft("train", "--data", DATA, "--out", tmp_path / "run", *SETS, "train.steps=8")
    return tmp_path / "run"


def test_auto_needs_data_only(run: Path, weft: tiny.Shell) -> None:
    assert [line.split(" ")[0] for line in lines(weft.err)] == TOPICS
    config = load_config(run / "config.yaml")
    assert (config.model["dim"], config.train.steps, config.train.validate_every) == (32, 8, 3)
    assert config.data.hold_out == 25 == len(list(open_pairs(str(run / "held-out.jsonl"))))
    assert read_metadata(run / "model.safetensors")["weights"] == "ema", "25 pairs are too few to choose weights by"
    weft("evaluate", run, "--data", run / "held-out.jsonl", "--device", "cpu", "--json")
    assert "BLEU" in json.loads(weft.out)["metrics"]


def test_resuming_is_exact_and_chooses_nothing(
    run: Path, weft: tiny.Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    weft("train", "auto", "--data", DATA, "--out", other, *SETS, "train.steps=8", "train.seconds=0.0001")
    assert json.loads((other / "log.jsonl").read_text().splitlines()[-1])["stopped"] == "time"

    def refuse(*given: object) -> None:
        raise AssertionError("a resumed run must not choose")

    monkeypatch.setattr(auto, "_choose", refuse)
    weft("train", "--resume", other, "--set", "train.seconds=0")
    assert not lines(weft.err)
    assert load_config(other / "config.yaml") == load_config(run / "config.yaml")
    assert (other / "held-out.jsonl").read_bytes() == (run / "held-out.jsonl").read_bytes()
    first, second = (read_tensors(folder / "checkpoints" / "step-00000008" / "model.safetensors") for folder in (run, other))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_time_limits_the_whole_command(weft: tiny.Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed is measured with the real model on the real data. No time is asserted here."""
    monkeypatch.setattr(auto, "probe_seconds", lambda seconds: 0.2)
    weft(
        "train", "auto", "--data", DATA, "--out", tmp_path / "run", "--time", "30m", *SETS, "train.patience=1", "train.ema=0.0"
    )
    config = load_config(tmp_path / "run" / "config.yaml")
    assert 0 < config.train.seconds < 30 * 60 and config.train.steps > 1
    assert "steps per second now" in weft.err


def test_training_stops_when_it_no_longer_helps(weft: tiny.Shell, tmp_path: Path) -> None:
    """With a learning rate of almost nothing, no validation is better than the first."""
    slow = ("train.schedule.rate=1.0e-12", "train.patience=2", "train.keep_best=true", "train.steps=300", "train.ema=0.0")
    weft("train", "auto", "--data", DATA, "--out", tmp_path / "run", *SETS, *slow)
    summary = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert (summary["stopped"], summary["step"], summary["weights"]) == ("patience", 9, "best")


def test_auto_from_python_with_one_file(tmp_path: Path) -> None:
    pairs = [f"{source}\t{target}\n" for source, target in open_pairs(DATA)]
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    said: list[str] = []
    settings = dict(text.split("=", 1) for text in SETS[1:])
    result = package.train(
        data=str(tmp_path / "pairs.tsv"), out=tmp_path / "run", set={**settings, "train.steps": "2"}, tell=said.append
    )
    assert result.update == 2 and len(lines("\n".join(said))) == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train"], "give --data alone"),
        (["train", "auto", "--out", "x"], "there is no training data"),
        (["train", "auto", "--data", DATA, "--time", "soon"], "write a time such as 90s, 20m or 1h30m"),
        (["train", "auto", "--data", "text.txt"], "is not a known data format"),
    ],
)
def test_wrong_calls_are_explained(
    words: list[str], says: str, weft: tiny.Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weft.fails(*words, says=[says])
    assert not list(tmp_path.glob("*/run.lock")), "a run that could not start leaves nothing behind"


def test_a_resumed_run_gets_more_time(run: Path, weft: tiny.Shell, tmp_path: Path) -> None:
    more = shutil.copytree(run, tmp_path / "more")
    weft("train", "--resume", more, "--time", "3s")
    train = load_config(more / "config.yaml").train
    assert train.budget == "time" and train.seconds > 1
    assert "the schedule is stretched over" in (more / "train.log").read_text()
