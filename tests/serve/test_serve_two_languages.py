"""A run that translates between two languages in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.helpers.monolingual_pair import settings, write_texts
from tests.helpers.serving import running
from weft.errors import ConfigError
from weft.serve.served_models import Models, parse_location

TEXT = "red dog sees cat at house"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    sets = settings(folder, **{"task.decoders": 2, "train.steps": 1, "task.dictionary_steps": 2, "data.hold_out": 0})
    weft.train("unsupervised", data=write_texts(folder, "fr"), out=folder / "run", set=sets)
    return folder / "run"


@pytest.mark.parametrize("both", [True, False])
def test_each_direction_writes_its_own_language(run: Path, both: bool) -> None:
    locations = [parse_location(str(run))] if both else [parse_location(f"fr-en={run}"), parse_location(f"en-fr={run}")]
    told: list[str] = []
    trained = weft.load(run, device="cpu")
    expected = {into: trained.translate(TEXT, into=into).text for into in ("en", "fr")}
    assert expected["en"] != expected["fr"]
    with running(Models(locations, device="cpu", warn=told.append)) as shown:
        for source, target in (("en", "fr"), ("fr", "en")):
            (found,) = shown.translate(TEXT, source=source, target=target)
            assert found["text"] == expected[target]
            assert shown.post("/translate", q=TEXT, source=source, target=target)["translatedText"] == expected[target]
    assert not told


def test_another_language_is_refused(run: Path) -> None:
    for pair in ("en-de", "en-en"):
        with pytest.raises(ConfigError, match="between en and fr"):
            Models([parse_location(f"{pair}={run}")], device="cpu")
