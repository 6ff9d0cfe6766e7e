"""Data for quality estimation: each translation by a model that has not seen its source, and its labels; resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from weft.errors import ConfigError, DataError
from weft.runs.cross_entropy_filter import cross_entropies
from weft.runs.translator import load
from weft.tasks.quality.labels import label_translations
from weft.training import cross_fitting
from weft.training.cross_fitting import CrossFitting, fold_of, label_corpus, make_quality_data

PAIRS = [(f"a b {word} {more}", f"{more} {word} b a") for word in "cdefgh" for more in "xyz"]


def plan(folder: Path, **options: Any) -> CrossFitting:
    file = folder / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in [*PAIRS, ("A  B C x", "another target")]))
    sets = [f"{key}={value}" for key, value in {**tiny.SETTINGS, "train.steps": 2, "train.schedule": "constant"}.items()]
    return CrossFitting("transformer-tiny", [str(file)], [str(file)], folder / "quality.jsonl", sets=sets, **options)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_no_model_translates_what_it_was_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies before the second training."""
    train, calls = cross_fitting.train, [0]

    def dying(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(cross_fitting, "train", dying)
    with pytest.raises(KeyboardInterrupt):
        make_quality_data(plan(tmp_path))
    made = make_quality_data(plan(tmp_path))
    folder, records = tmp_path / "quality.jsonl.folds", read(tmp_path / "quality.jsonl")
    assert calls == [3] and made == len(records) == len(PAIRS) + 1
    for number in (1, 2):
        seen, held = (
            {each["source"].lower().split()[2:][0] + each["source"].split()[-1] for each in read(folder / name)}
            for name in (f"{number}.train.jsonl", f"{number}.held.jsonl")
        )
        assert held and not seen & held
    assert {each["source"] for each in records} == {source for source, _ in [*PAIRS, ("A  B C x", "")]}
    with pytest.raises(ConfigError, match="were begun with --folds 2, not 3"):
        make_quality_data(plan(tmp_path, folds=3))


def test_labels_are_those_of_the_translations(tmp_path: Path) -> None:
    tiny.train(tmp_path / "run", settings={"train.steps": 60, "train.save_every": 60})
    data = tmp_path / "new.tsv"
    data.write_text(f"a b c\tc b a\n\tempty\nd e f g\tg f e d\nb c d\t{'a ' * 1001}\n")
    said: list[str] = []
    assert label_corpus(tmp_path / "run", [str(data)], tmp_path / "labelled.jsonl", report=said.append) == 2
    assert said[-1] == "left out, as they have more than 1,000 words: 1 of the pairs"
    records, run = read(tmp_path / "labelled.jsonl"), load(tmp_path / "run", device="cpu")
    assert [each["translation"] for each in records] == [run.translate(each["source"]).text for each in records]
    labels = label_translations([each["translation"] for each in records], ["c b a", "g f e d"])
    assert [(each["score"], each["tags"]) for each in records] == [(round(each.score, 3), each.joined) for each in labels]
    (entropy,) = cross_entropies(run.translation_predictor("test"), [(records[0]["source"], records[0]["translation"])])
    assert records[0]["log_probability"] == pytest.approx(-entropy, abs=1e-4)


def test_equal_sources_are_in_one_fold() -> None:
    assert fold_of("A dog  runs", 5) == fold_of("a Dog runs", 5)
    assert {fold_of(str(number), 3) for number in range(50)} == {0, 1, 2}


def test_what_cannot_be_made_is_refused(tmp_path: Path, weft: tiny.Shell) -> None:
    with pytest.raises(ConfigError, match="there are at least 2"):
        make_quality_data(plan(tmp_path, folds=1))
    with pytest.raises(DataError, match=r"ends in \.jsonl"):
        label_corpus(tmp_path, [], tmp_path / "x.txt")
    weft.fails("quality", "data", "--data", "x.tsv", "-o", "q.jsonl", says=["name a recipe", "--run RUN"])
    weft.fails("quality", "data", "tiny", "--run", tmp_path, "--data", "x.tsv", "-o", "q.jsonl", says=["leave the recipe"])
