"""Iterative back-translation: both directions in rounds, continued after an interruption, the best of each by validation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from weft.config.sections import load_config
from weft.data.formats import open_pairs, swapped
from weft.errors import ConfigError, DataError
from weft.training import iterative_backtranslation as rounds
from weft.training.iterative_backtranslation import BacktranslationData, iterate_backtranslation

PAIRS = [(f"a b {word}", f"{word} b a") for word in "cdefgh"]


def plan(folder: Path, count: int = 1) -> BacktranslationData:
    for name, lines in {"x.src": [s for s, _ in PAIRS], "x.trg": [t for _, t in PAIRS], "more": ["d c a", "", "d b"]}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    settings = {**tiny.SETTINGS, "train.steps": 1, "train.schedule": "constant", "train.best_by": "bleu"}
    pairs, mono = (
        [f"{folder}/x.src,{folder}/x.trg"],
        {"forward": [f"{folder}/more"], "backward": [f"{folder}/more"] * (count - 1)},
    )
    sets = [f"{key}={value}" for key, value in settings.items()]
    return BacktranslationData("transformer-tiny", pairs, pairs, mono, count, folder / "out", sets)


def test_both_directions_train_on_what_the_other_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies before the third training, when the text is translated, and once more within it."""
    out, train, calls = tmp_path / "out", rounds.train, [0]

    def dying(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] in (3, 4):
            if calls[0] == 4:  # it has its configuration
                train(*arguments, **options)
                (out / "forward-1" / "log.jsonl").unlink()
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(rounds, "train", dying)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            iterate_backtranslation(plan(tmp_path))
    written = (out / "forward-1.jsonl").stat().st_mtime_ns
    best = iterate_backtranslation(plan(tmp_path))
    assert calls == [5] and (out / "forward-1.jsonl").stat().st_mtime_ns == written
    pairs = [json.loads(line) for line in (out / "forward-1.jsonl").read_text().splitlines()]
    assert [each["target"] for each in pairs] == ["d c a", "", "d b"]
    data = load_config(out / "forward-1" / "config.yaml").data
    assert data.train[0] == f"{tmp_path}/x.src,{tmp_path}/x.trg"
    assert data.train[1].files == [str(out / "forward-1.jsonl")] and data.train[1].tag == "bt"  # type: ignore[union-attr]
    assert load_config(out / "backward-0" / "config.yaml").data.train[0] == f"{tmp_path}/x.trg,{tmp_path}/x.src"
    scores = json.loads((out / "rounds.json").read_text())
    assert [each["run"] for each in scores] == ["forward-0", "backward-0", "forward-1"]
    assert all((out / direction).resolve() == run.resolve() for direction, run in best.items())
    monkeypatch.setattr(rounds, "train", lambda *_, **__: pytest.fail("everything was done"))
    assert iterate_backtranslation(plan(tmp_path)) == best


def test_the_best_run_so_far_is_the_teacher_and_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, dict[str, Path]]] = []
    values = {"forward-0": 5.0, "backward-0": 7.0, "forward-1": 9.0, "backward-1": 6.0, "forward-2": 8.0, "backward-2": 6.5}
    measure = rounds.Measure("bleu", "BLEU")

    def train(given: BacktranslationData, direction: str, number: int, teachers: dict[str, Path], tell: Any) -> Path:
        trained.append((f"{direction}-{number}", {name: run.name for name, run in teachers.items()}))  # type: ignore[misc]
        (given.out / f"{direction}-{number}").mkdir()
        return given.out / f"{direction}-{number}"

    monkeypatch.setattr(rounds, "_train", train)
    monkeypatch.setattr(rounds, "_score", lambda run: (measure, {"bleu": values[run.name]}))
    best = iterate_backtranslation(plan(tmp_path, 2))
    assert {name: run.name for name, run in best.items()} == {"forward": "forward-1", "backward": "backward-0"}
    assert trained[-1] == ("backward-2", {"forward": "forward-1", "backward": "backward-0"})


def test_a_folder_has_the_rounds_of_one_plan(tmp_path: Path) -> None:
    plan(tmp_path).check()
    replace(plan(tmp_path), rounds=1).check()
    with pytest.raises(ConfigError, match=r"begun with --set .*, not \['train.steps=2'\]; repeat that command"):
        replace(plan(tmp_path), sets=["train.steps=2"]).check()
    with pytest.raises(ConfigError, match="begun with --target-text"):
        replace(plan(tmp_path), mono={"forward": [f"{tmp_path}/x.trg"]}).check()


def test_what_rounds_cannot_read_is_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name files without braces"):
        replace(plan(tmp_path), valid=["{files: x.tsv, weight: 2}"]).check()
    with pytest.raises(DataError, match="cannot be exchanged"):
        replace(plan(tmp_path), data=["generated:copy?count=9"]).check()
    with pytest.raises(DataError, match="there is no such file"):
        replace(plan(tmp_path), mono={"forward": ["nowhere"]}).check()
    assert not (tmp_path / "out").exists()


def test_rounds_are_not_compared_by_the_loss_of_different_tokens(tmp_path: Path) -> None:
    settings = {**tiny.SETTINGS, "train.steps": 1, "train.schedule": "constant", "train.best_by": "loss"}
    pairs = tiny.generated("copy", 9)
    rounds.train("transformer-tiny", data=pairs, valid=pairs, out=tmp_path / "run", set=settings)
    measure, found = rounds._score(tmp_path / "run")
    assert measure.key == "bleu" and "bleu" in found


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("a.en,a.de", "a.de,a.en"),
        ("x.tsv", "x.tsv#2,1"),
        ("x.tsv.gz#3,1", "x.tsv.gz#1,3"),
        ("x.jsonl", "x.jsonl#target,source"),
    ],
)
def test_names_of_pairs_can_be_swapped(name: str, other: str) -> None:
    assert swapped(name) == other


def test_swapped_pairs_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a\tb\nc\td\n")
    assert list(open_pairs(swapped(str(tmp_path / "x.tsv")))) == [("b", "a"), ("d", "c")]
