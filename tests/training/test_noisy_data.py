"""The cleaning of noisy data by `auto`: when it cleans, what it keeps, and when it leaves the data alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.training.auto import noisy_data, plan_for_time
from weft.training.auto.choose_settings import SettingsDraft
from weft.training.auto.plan_for_time import chooser
from weft.training.distributed import World
from weft.training.time_budget import TimeBudget

ENGLISH = "the house with which that dog through every garden window walks sleeping children would never"
GERMAN = "das Haus mit welchem jener Hund durch jeden Garten Fenster geht schlafende Kinder würden niemals"
PAIRS, NOISE = 300, 0.2


class NoTime(TimeBudget):
    """A time that is over."""

    def left(self) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("py3langid")
    monkeypatch.setattr(noisy_data, "FEWEST", PAIRS)
    monkeypatch.setattr(plan_for_time.os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)  # busy machines measure threads


def write(folder: Path, noise: float) -> tuple[str, set[str]]:
    """Files of sentences, and the sources of those whose placeholder is missing in the translation."""
    draw, rows, flawed = random.Random(1), [], set[str]()
    for number in range(PAIRS):
        picks = [draw.randrange(15) for _ in range(9)]
        source, target = (" ".join(words.split()[pick] for pick in picks) for words in (ENGLISH, GERMAN))
        source = f"{source} %s {number}"
        if draw.random() < noise:
            flawed.add(source)
        rows.append((source, f"{target} {number}" if source in flawed else f"{target} %s {number}"))
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(f"{row[side]}\n" for row in rows), "utf-8")
    return f"{folder / 'train.en'},{folder / 'train.de'}", flawed


def cleaned(folder: Path, data: str, clock: TimeBudget | None = None) -> SettingsDraft:
    draft = SettingsDraft(load_config("auto").replaced({"data.train": [data]}))
    noisy_data.clean_noisy_data(draft, folder, clock, lambda text: None)
    return draft


def test_training_gets_a_copy_without_the_flawed_pairs(tmp_path: Path) -> None:
    data, flawed = write(tmp_path, NOISE)
    draft = cleaned(tmp_path, data)
    (copy,) = draft.config.data.files
    kept = {source for source, _ in open_pairs(copy)}
    assert Path(copy) == tmp_path / noisy_data.CLEANED and not kept & flawed
    assert len(kept) >= 0.95 * (PAIRS - len(flawed))
    assert f"{len(kept)} of {PAIRS} pairs are kept" in draft.reasons["noise"]
    assert (draft.config.data.source_language, draft.config.data.target_language) == ("en", "de"), "no name says so any more"


def test_clean_data_and_data_that_is_no_translation_stay_as_they_are(tmp_path: Path) -> None:
    data, _ = write(tmp_path, 0.02)
    assert cleaned(tmp_path, data).config.data.files == [data]
    data, _ = write(tmp_path, NOISE)
    english = data.split(",")[0]
    same = f"{english},{english}"
    assert cleaned(tmp_path, same).config.data.files == [same], "copies are what such data is about"
    entry = SettingsDraft(load_config("auto").replaced({"data.train": [{"files": data, "tag": "de"}]}))
    noisy_data.clean_noisy_data(entry, tmp_path, None, lambda text: None)
    assert entry.config.data.files == [data]


def test_cleaning_is_advised_where_the_time_does_not_allow_it(tmp_path: Path) -> None:
    data, _ = write(tmp_path, NOISE)
    draft = cleaned(tmp_path, data, NoTime(60))
    assert draft.config.data.files == [data] and f"weft data clean {data} -o clean.tsv" in draft.reasons["noise"]


def test_cleaning_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = write(tmp_path, NOISE)
    config = load_config("auto", [f"data.cache={tmp_path / 'cache'}"]).replaced({"data.train": [data]})
    for clean in (False, True):
        (tmp_path / f"run-{clean}").mkdir()
        choose = chooser(True, [], None, lambda text: None, clean=clean)
        chosen = choose(config, tmp_path / f"run-{clean}", World(0, 1, torch.device("cpu")))
        assert (chosen.data.files == [data]) is not clean
