"""Contrastive pairs: which of two texts a model prefers, and the floors of rules without a model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import weft as package
from tests.helpers import tiny
from weft.errors import ConfigError, DataError
from weft.evaluation.contrastive_pairs import CHANCE, FREQUENT, SHORTER, Contrast, judge, read_contrasts
from weft.runs.run_evaluation import evaluate_contrastive
from weft.runs.trained_model import Trained
from weft.runs.translator import load_trained


def write_lines(file: Path, lines: list[str]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


LINES = ["a\tx x\ty\tone", "b\tx\ty y\tone", "c\tx\tz\ttwo", "d\tx\tx q\ttwo"]


def test_accuracy_is_counted_by_group() -> None:
    found = judge(read_contrasts(LINES, "f"), [(-1, -2), (-2, -1), (-1.0, -1.0), (-3, -9)])
    assert found.total.accuracy == 62.5 and found.total.pairs == 4
    assert {name: each.accuracy for name, each in found.groups.items()} == {"one": 50, "two": 75}
    document = found.document()
    assert document["groups"]["two"]["pairs"] == 2 and document["floors"][CHANCE] == 50
    assert judge(read_contrasts(["a\tx\ty"], "f"), [(0, -1)]).groups == {}


def test_the_interval_is_wilsons() -> None:
    """Wilson 1927 for 8 of 10: 0.4902 to 0.9433, as R's binom.wilson gives it."""
    contrasts = [Contrast("", "x", "y")] * 10
    low, high = judge(contrasts, [(0, -1)] * 8 + [(-1, 0)] * 2).total.interval
    assert (low, high) == (pytest.approx(49.02, abs=0.01), pytest.approx(94.33, abs=0.01))


def test_floors_prefer_short_texts_and_frequent_words() -> None:
    found = judge(read_contrasts(LINES, "f"), [(0, 0)] * 4).total.floors
    assert found[SHORTER] == 100 * 2.5 / 4
    # Of all other lines: x comes 3, 4, 4 and 4 times, y, z and q never; two words are less probable than one.
    assert found[FREQUENT] == 100 * 4 / 4
    rare = [Contrast("", "a", "b"), Contrast("", "b c", "a c"), Contrast("", "b", "a")]
    # 1: b (2) beats a (0) · 2: b (1) draws with a (1) · 3: b (1) draws with a (1).
    assert judge(rare, [(0, 0)] * 3).total.floors[FREQUENT] == pytest.approx(100 * (0 + 0.5 + 0.5) / 3)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\tb"], "f, line 1: there are 2 columns; write source, right text and wrong text"),
        (["a\tb\tc", "a\tb\tc\td\te"], "f, line 2: there are 5 columns"),
        (["a\tb\tc", "a\tb\tc\td"], "f, line 2: either all lines have a group"),
        (["a\tb\tc\td", "a\tb\tc"], "f, line 2: either all lines have a group"),
        (["a\tb\tc\t "], "f, line 1: the group is empty"),
        (["a\t\tc"], "f, line 1: the right text is empty"),
        (["a\tb\tb"], "f, line 1: the right and the wrong text are the same"),
        ([], "f: there are no pairs"),
    ],
)
def test_bad_lines_are_named(lines: list[str], message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_contrasts(lines, "f")
    assert message in str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Reversed letters against letters in their old order; the source of a line may be anything."""
    texts = ["a b c", "k d q", "x y", "m n o p"]
    lines = [f"{text}\t{text[::-1]}\t{text}\t{len(text.split())} letters" for text in texts]
    return write_lines(tmp_path / "pairs.tsv", lines)


def test_a_translator_prefers_what_it_has_learnt(weft: tiny.Shell, file: Path, reverse_run: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores.tsv"
    found = json.loads(weft("evaluate", reverse_run, "--contrastive", file, "--json", "-o", scores))
    assert found["accuracy"] == 100 and found["pairs"] == 4 and found["contrastive"] == str(file)
    assert found["groups"]["3 letters"]["pairs"] == 2
    table = weft("evaluate", reverse_run, "--contrastive", file)
    assert "accuracy" in table and "3 letters" in table and "100.0 %" in table
    right, wrong = map(float, scores.read_text().splitlines()[0].split("\t"))
    scorer = package.load(reverse_run).translation_predictor("this test")
    exact = [score for score, _ in scorer.log_likelihoods("a b c", ["c b a", "a b c"])]
    assert [right, wrong] == pytest.approx(exact, abs=1e-3)
    weft.fails("evaluate", reverse_run, says=["give either --data FILES or --contrastive FILE"])
    weft.fails("evaluate", reverse_run, "--contrastive", file, "--against", reverse_run, says=["--against"])


def test_a_language_model_scores_the_whole_text(tmp_path: Path) -> None:
    """By the chain rule: the difference of two continuations is that of the losses of whole texts."""
    text = write_lines(tmp_path / "text.txt", ["the dog runs", "the dogs run"] * 40)
    settings = {
        "train.steps": 60,
        "train.batch_tokens": 64,
        "task.segment": 16,
        "data.tokenizer": "characters",
        "model.dim": 32,
    }
    shorter = {**settings, "model.decoder_layers": 1, "model.heads": 2, "train.validate_every": 0, "train.device": "cpu"}
    package.train("lm-tiny", data=str(text), out=tmp_path / "run", set={**shorter, "train.precision": "float32"})
    pairs = write_lines(tmp_path / "pairs.tsv", ["the dog\truns\trun", "the dogs\trun\truns", "\tthe dog\tteh dog"])
    system = load_trained(tmp_path / "run")
    found = evaluate_contrastive(system, pairs)
    predictor = system.predictor()
    for words, expected in (("the dog runs", found.scores[0][0]), ("the dog run", found.scores[0][1])):
        ids = [*predictor.tokenizer.encode("\n"), *predictor.encode(words)]
        logits = step_by_step(system, ids)
        assert expected == pytest.approx(logits, abs=1e-3) and expected < 0 and math.isfinite(expected)
    assert found.scores[2][0] > found.scores[2][1]


def step_by_step(system: Trained, ids: list[int]) -> float:
    total = 0.0
    with torch.inference_mode():
        for place in range(1, len(ids)):
            hidden = system.model(torch.tensor([ids[:place]])).hidden[:, -1:]
            total += float(system.model.decoder.logits(hidden)[0, 0].float().log_softmax(-1)[ids[place]])
    return total


def test_a_run_without_texts_is_refused(file: Path, reverse_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = load_trained(reverse_run)
    monkeypatch.setattr(system, "predictor", lambda **options: object())
    with pytest.raises(ConfigError, match="need a run that translates or a language model"):
        evaluate_contrastive(system, file)
