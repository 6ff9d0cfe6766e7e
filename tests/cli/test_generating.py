"""`weft generate` and what the other commands say to a language model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft import cli

LINE = "to be or not to be\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small language model that knows one line."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text(LINE * 200)
    settings = {
        **{"model.dim": 32, "model.heads": 2, "model.feedforward": 64, "model.decoder_layers": 2, "model.dropout": 0.0},
        **{"task.segment": 32, "task.memory": 32, "train.steps": 200, "train.batch_tokens": 512, "train.tensorboard": "false"},
        **{"train.device": "cpu", "train.threads": 1, "train.schedule": "{kind: cosine, rate: 0.01, warmup: 15}"},
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    text = str(folder / "text.txt")
    assert cli.run(["train", "lm-tiny", "--data", text, "--valid", text, "--out", str(folder / "run"), *sets]) == 0
    return folder / "run"


def test_going_on_with_a_text(weft: tiny.Shell, run: Path) -> None:
    wanted = (LINE * 4)[:60]
    assert weft("generate", run, "to be or", "--tokens", "52", "--beam", "1") == wanted + "\n"
    assert weft("generate", run, "to be or", "--tokens", "52", "--beam", "2") == wanted + "\n"
    assert weft("generate", run, "--tokens", "52", "--beam", "1", stdin="to be or") == wanted + "\n"
    assert weft("generate", run, "-", "--tokens", "52", "--temperature", "0", stdin="to be or") == wanted + "\n"
    assert weft("generate", run, "to be or", "--tokens", "52", "--top-k", "1") == wanted + "\n"
    rounded = ["--set", "decode.precision=int8", "--device", "cpu"]
    assert weft("generate", run, "to be or", "--tokens", "52", "--beam", "1", *rounded) == wanted + "\n"
    assert weft("generate", run, "--tokens", "19", "--beam", "1").strip() == LINE.strip()


def test_drawing_texts(weft: tiny.Shell, run: Path) -> None:
    bold = ["generate", run, "to be", "--tokens", "40", "--temperature", "5"]
    assert weft(*bold, "--seed", "1") == weft(*bold, "--seed", "1") != weft(*bold, "--seed", "2")
    assert weft(*bold, "--count", "3").count("\n---\n") == 2
    found = [json.loads(line) for line in weft(*bold, "--count", "2", "--json").splitlines()]
    assert [each["prompt"] for each in found] == ["to be", "to be"]
    assert found[0]["text"] != found[1]["text"]
    assert all(each["score"] < 0 for each in found)


def test_a_text_is_written_to_a_file(weft: tiny.Shell, run: Path, tmp_path: Path) -> None:
    arguments = ["generate", run, "to be or", "--tokens", "52", "--beam", "1"]
    assert weft(*arguments, "-o", tmp_path / "out.txt.gz") == ""
    assert gzip.decompress((tmp_path / "out.txt.gz").read_bytes()).decode() == weft(*arguments)


def test_scoring_a_text(weft: tiny.Shell, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "same.txt").write_text(LINE * 100)
    (tmp_path / "other.txt").write_text("be or to not\n" * 20)
    same, other = (
        json.loads(weft("evaluate", run, "--data", tmp_path / name, "--json"))["scores"][str(run)]
        for name in ("same.txt", "other.txt")
    )
    assert set(same) == {"loss", "perplexity", "bits_per_character", "bits_per_byte"}
    assert same["bits_per_character"] < 0.3 < other["bits_per_character"]
    table = weft("evaluate", run, "--data", tmp_path / "same.txt", "--against", run, "--set", "task.stride=4")
    assert "bits per character" in table


def test_what_is_said_after_training(weft: tiny.Shell, run: Path, tmp_path: Path) -> None:
    weft("train", run / "config.yaml", "--out", tmp_path / "again", "--set", "train.steps=1")
    assert "weft generate" in weft.err and "--data TEXT" in weft.err
    weft("train", "--resume", tmp_path / "again", "--set", "train.steps=2")


def test_how_a_text_is_read_is_explained_on_a_page(weft: tiny.Shell, run: Path, tmp_path: Path) -> None:
    weft("explain", run, "a text", "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<h2>a text" in page and "perplexity" in page and "layer 1, head 1" in page


def test_what_a_language_model_cannot_do(weft: tiny.Shell, run: Path, reverse_run: Path, tmp_path: Path) -> None:
    weft.fails("explain", run, " ", "-o", tmp_path / "page.html", says=["nothing to explain in an empty text"])
    weft.fails("generate", reverse_run, "a", says=["its task, translation, is not language_model"])
    weft.fails("generate", tmp_path / "missing", "a", says=["there is no such run folder"])
    weft.fails("generate", run, "a", "--top-p", "2", says=["decode.top_p"])
    weft.fails("generate", run, stdin=b"\xff\xff", says=["standard input, line 1", "not valid UTF-8"])
    weft.fails("evaluate", run, "--data", tmp_path / "missing.txt", says=["there is no such file"])
    weft("generate", run, "a", "--tokens", "0", status=2)


def test_predict_continues_each_line(weft: tiny.Shell, run: Path) -> None:
    sets = ["--set", "decode.search=greedy", "decode.max_length=5"]
    both = weft("predict", run, "--json", *sets, stdin="a b\nc\n").splitlines()
    documents = [json.loads(line) for line in both]
    assert [each["prompt"] for each in documents] == ["a b", "c"]
    assert json.loads(weft("predict", run, "--json", *sets, stdin="c\n")) == documents[1]
    assert weft("generate", run, "c", "--tokens", "5", "--beam", "1").rstrip("\n") == "c" + documents[1]["text"].rstrip("\n")
