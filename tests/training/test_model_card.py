"""The model card: a header that programs read, scores with signature and floor, the lineage, and the changes of people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

import weft
from tests.helpers import tiny
from weft.config.sections import Config
from weft.evaluation.metrics import make_metrics
from weft.runs.open_run import open_run
from weft.runs.packed_run import CARD
from weft.training.model_card import MARK, Card, ensure_card, write_card


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in English and German, and one that starts from it."""
    folder = tmp_path_factory.mktemp("cards")
    options: dict[str, Any] = {"train.steps": 3, "data.source_language": "en", "data.target_language": "de"}
    tiny.train(folder / "mine", settings=options)
    weft.train(start=folder / "mine", out=folder / "next", set=options)
    return folder


def test_the_header_is_what_the_hub_reads(folder: Path) -> None:
    _, header, body = (folder / "mine" / CARD).read_text("utf-8").split("---\n", 2)
    found = yaml.safe_load(header)
    assert found["language"] == ["en", "de"] and found["license"] == "unknown" and found["pipeline_tag"] == "translation"
    metrics = {each["type"]: each["value"] for each in found["model-index"][0]["results"][0]["metrics"]}
    assert metrics.keys() == {"loss", "bleu", "exact"} and metrics["loss"] > 0
    assert body.startswith(f"{MARK}\n\n# mine\n") and body.endswith("\n")


def test_languages_come_from_settings_or_from_the_names_of_the_data() -> None:
    def header(**settings: Any) -> dict[str, Any]:
        config = Config().replaced({f"data.{name}": value for name, value in settings.items()})
        return Card("mine", config, cast(Any, None), 1, {}, {}).header()

    assert header(train=["a/train.en,a/train.hsb"])["language"] == ["en", "hsb"]
    assert header(train=["train.en,train.de"], target_language="nl")["language"] == ["en", "nl"]
    assert "language" not in header(train=["train.src,train.tgt"]) and "language" not in header(train=["pairs.tsv"])


def test_scores_have_their_signature_and_their_floor(folder: Path) -> None:
    (line,) = (each for each in (folder / "mine" / CARD).read_text("utf-8").splitlines() if each.startswith("| BLEU"))
    assert make_metrics(["bleu"])[0].signature.replace("|", " ") in line and "copying the input" in line


def test_lineage_sizes_and_time_are_said_but_no_folder_of_this_machine(folder: Path) -> None:
    text = (folder / "next" / CARD).read_text("utf-8")
    assert "- started from: mine, weights " in text and "- training pairs: 4,000" in text and "- steps: 3 " in text
    assert re.search(r"^- time: [\d:]+ on cpu, ", text, re.MULTILINE) and "- energy: " in text
    assert str(folder) not in text


def test_all_corpora_the_teacher_and_the_licence_have_their_lines(folder: Path) -> None:
    trained = open_run(folder / "mine")
    corpora = [{"files": "/a/one.en,/a/one.de", "tag": "news"}, {"files": "/b/two.tsv"}]
    settings = {"data.train": corpora, "data.valid": ["/a/held.en,/a/held.de"], "data.teacher": "/runs/large/"}
    text = Card("mine", trained.task.config.replaced(settings), trained.task, 1, {}, {}).text()
    for line in (
        "- training data: one.en,one.de, tag news",
        "- training data: two.tsv",
        "- validation data: held.en,held.de",
        "- teacher: large",
    ):
        assert f"{line}\n" in text
    assert "\n## Licence\n" in text and "license: unknown\n" in text


def test_a_card_that_people_have_changed_stays(folder: Path) -> None:
    trained, file = open_run(folder / "mine"), folder / "mine" / CARD
    assert write_card(folder / "mine", trained.task, trained.model, data=False)
    own = file.read_text("utf-8").replace(f"{MARK}\n", "")
    file.write_text(own)
    assert not write_card(folder / "mine", trained.task, trained.model, data=False)
    ensure_card(trained)
    assert file.read_text("utf-8") == own
    file.unlink()
    ensure_card(trained)
    assert "| BLEU |" in file.read_text("utf-8"), "the log of an older run has its scores"
