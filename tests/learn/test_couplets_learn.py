"""Couplets are learned in seconds: which character answers which. The rules hold where the model has learned nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import weft
from tests.helpers import tiny
from tests.helpers.serving import running
from weft.runs.translator import Translator
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft_studies.couplets import score_couplets

FIRST, SECOND = "天山花风春红日", "地水鸟月秋绿夜"
ANSWERS = str.maketrans(FIRST + SECOND, SECOND + FIRST)


def lines(count: int, seed: int, longest: int = 6) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(FIRST, k=rng.randint(3, longest))) for _ in range(count)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("couplets")
    (folder / "train.tsv").write_text("".join(f"{line}\t{line.translate(ANSWERS)}\n" for line in lines(3000, 1)), "utf-8")
    settings = {
        **tiny.SETTINGS,
        "train.steps": 220,
        "task.unlikelihood": 1.0,
        "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 20},
    }
    kept = {key: value for key, value in settings.items() if not key.startswith(("data.", "decode."))}
    weft.train("couplets-tiny", data=str(folder / "train.tsv"), out=folder / "run", set=kept)
    return folder / "run"


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return weft.load(run, device="cpu")


def test_unseen_lines_are_answered_character_by_character(translator: Translator) -> None:
    unseen = lines(60, 2)  # chance would get none right
    for rules in ([], ["same_length", "mirror_repeats", "no_shared"]):
        found = [each.text for each in translator.translate(unseen, rules=rules, beam=2)]
        assert sum(text == line.translate(ANSWERS) for line, text in zip(unseen, found, strict=True)) >= 45


def test_rules_hold_for_lines_unlike_those_of_training(translator: Translator) -> None:
    """Lines that are longer, with characters that training had on the other side only or never."""
    rng = random.Random(3)
    unlike = ["".join(rng.choices(FIRST + SECOND + "龙虎", k=rng.randint(9, 15))) for _ in range(30)]
    references = [line.translate(ANSWERS) for line in unlike]
    free, kept = (
        score_couplets(unlike, [each.text for each in translator.translate(unlike, beam=2, **options)], references)
        for options in ({"rules": []}, {})
    )
    assert (kept.length, kept.mirrored, kept.shared) == (100, 100, 0)
    assert free.length < 60 and free.mirrored < 60 and free.shared > 20


def test_the_page_gets_alternatives_that_obey_the_rules(run: Path) -> None:
    with running(Models([ModelLocation((str(run),))], device="cpu")) as server:
        assert "<textarea" in server.client.get("/").text
        (found,) = server.translate(["天山，天花"], n_best=3)
    texts = [found["text"], *(each["text"] for each in found["alternatives"])]
    assert len(texts) == 3 and all(len(text) == 5 and text[0] == text[3] for text in texts)
