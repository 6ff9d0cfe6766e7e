"""A teacher translates training data: line for line, resumable, and once for all students."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.data.formats import open_pairs
from weft.errors import DataError
from weft.runs import sharded_prediction
from weft.runs.distillation_and_backtranslation import Texts, translate_corpus, translation_work
from weft.runs.translator import Translator, load
from weft.tasks.corpus_task import DISTILLED
from weft.training import train_run

SOURCES = ["a b c", "d e f g", "", "b", "c a b d e.  A b c. G f e!", "g f", "e e e"]


@pytest.fixture
def data(tmp_path: Path) -> str:
    (tmp_path / "x.src").write_text("".join(f"{line}\n" for line in SOURCES))
    (tmp_path / "x.tgt").write_text("t\n" * len(SOURCES))
    return f"{tmp_path / 'x.src'},{tmp_path / 'x.tgt'}"


def expected(run: Path) -> list[str]:
    return [each.text for each in load(run, device="cpu").translate(SOURCES, beam=3)]


def test_the_lines_are_those_of_translate(weft: tiny.Shell, reverse_run: Path, data: str, tmp_path: Path) -> None:
    weft("distill", reverse_run, "--data", data, "--out", tmp_path / "x.out", "--beam", "3", "--device", "cpu")
    assert (tmp_path / "x.out").read_text().splitlines() == expected(reverse_run)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.out", "x.src", "x.tgt"]


def test_an_interrupted_distillation_continues(
    reverse_run: Path, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, pairs, told = tmp_path / "x.jsonl", [open_pairs(data)], list[str]()
    monkeypatch.setattr(sharded_prediction, "SHARD", 2)

    class Stop(Exception):
        pass

    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done == 4:
            raise Stop

    work = translation_work([reverse_run], Texts(pairs), out, device="cpu", options={"beam": 3})
    with pytest.raises(Stop):
        sharded_prediction.predict_corpus(work, advance=advance)
    assert not out.exists()
    translate_corpus([reverse_run], Texts(pairs), out, device="cpu", options={"beam": 3}, report=told.append)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["source"] for each in lines] == SOURCES
    assert [each["target"] for each in lines] == expected(reverse_run)
    assert any("continuing after 2 of 7 lines" in message for message in told)


def test_training_with_a_teacher_distils_once(
    reverse_run: Path, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**tiny.SETTINGS, "train.steps": 1, "data.cache": str(tmp_path / "cache")}
    train_run.train("transformer-tiny", data=data, out=tmp_path / "one", teacher=reverse_run, set=settings)
    lines = [json.loads(line) for line in (tmp_path / "one" / DISTILLED).read_text().splitlines()]
    teacher: Translator = load(reverse_run, device="cpu")
    assert [each["target"] for each in lines] == [each.text for each in teacher.translate(SOURCES)]

    monkeypatch.setattr(sharded_prediction, "load_trained", lambda *_, **__: pytest.fail("the translations are in the cache"))
    train_run.train("transformer-tiny", data=data, out=tmp_path / "two", teacher=reverse_run, set=settings)
    assert (tmp_path / "two" / DISTILLED).read_text() == (tmp_path / "one" / DISTILLED).read_text()


def test_only_translation_has_a_teacher(weft: tiny.Shell, reverse_run: Path, data: str, tmp_path: Path) -> None:
    weft.fails(
        *("train", "classifier-bytes", "--data", data, "--out", tmp_path / "x", "--teacher", reverse_run),
        says=["data.teacher", "remove it"],
    )


def test_back_translations_are_sources_of_the_true_text(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    mono = tmp_path / "mono.txt"
    mono.write_text("".join(f"{line}\n" for line in SOURCES))
    common = ("backtranslate", reverse_run, "--data", mono, "--beam", "3", "--device", "cpu")
    weft(*common, "--out", tmp_path / "x.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert lines == [{"source": source, "target": target} for source, target in zip(expected(reverse_run), SOURCES)]
    shards = []
    for number in (1, 2, 3):
        weft(*common, "--out", tmp_path / f"{number}.txt", "--shard", f"{number}/3")
        shards.append((tmp_path / f"{number}.txt").read_text().splitlines())
    assert [shards[line % 3][line // 3] for line in range(len(SOURCES))] == expected(reverse_run)
    weft.fails(*common, "--out", tmp_path / "y", "--shard", "4/3", says=["--shard 4/3", "K/N"])


def test_translations_never_overwrite_what_they_are_made_of(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "mono.txt"
    text.write_text("a b\n")
    for out, says in (
        (text, "would overwrite the text"),
        (tmp_path / "x.tsv", "ends in .jsonl for pairs"),
        (tmp_path / "x.JSONL", "ends in .jsonl for pairs"),
        (tmp_path, "it is a folder"),
    ):
        weft.fails("backtranslate", reverse_run, "--data", text, "--out", out, says=[says])
    weft.fails("backtranslate", reverse_run, "--data", tmp_path / "a.tsv", "--out", tmp_path / "x.jsonl", says=["plain text"])
    assert text.read_text() == "a b\n" and [path.name for path in tmp_path.iterdir()] == ["mono.txt"]


def test_two_processes_never_write_different_translations_into_one_file(reverse_run: Path, data: str, tmp_path: Path) -> None:
    out, texts = tmp_path / "x.jsonl", Texts([open_pairs(data)])
    other = sharded_prediction.ShardFolder(translation_work([reverse_run], texts, out, options={"beam": 3}))
    other.open(False, print)
    with other.writing(0, wait=False), pytest.raises(DataError, match="another process is writing other translations"):
        translate_corpus([reverse_run], texts, out)
