"""Reranking against plain implementations: minimum Bayes risk by a double loop, another model's score by teacher forcing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import weft
from tests.helpers import tiny
from weft.data.batch import EOS
from weft.data.formats import open_pairs
from weft.decoding.reranking import pairwise
from weft.decoding.score_given_targets import teacher_force
from weft.errors import ConfigError, RunError
from weft.runs.translator import Translator

TEXTS = [
    "The cat sat on the mat.",
    "A cat sat on the mat!",
    "The cat, the cat, the cat sat.",
    "",
    "a",
    "Zwei Hunde laufen über die grüne Wiese und bellen laut.",
    "Two dogs run.",
    "two  dogs\trun",
]
SAMPLES = {"sample": True, "temperature": 1.5, "seed": 3}


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return weft.load(reverse_run, device="cpu")


@pytest.fixture(scope="module")
def sources() -> list[str]:
    return [source for source, _ in open_pairs(tiny.generated("reverse", 24, "test", longest=12))]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_utilities_are_the_sentence_scores_of_sacrebleu(utility: Literal["chrf", "bleu"]) -> None:
    metric: Any = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    found = pairwise(TEXTS, utility)
    for row, ours in enumerate(TEXTS):
        for column, theirs in enumerate(TEXTS):
            assert found[row, column] == pytest.approx(metric.sentence_score(ours, [theirs]).score, abs=1e-9), (ours, theirs)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
@pytest.mark.parametrize("options", [SAMPLES, {"beam": 4}], ids=["samples", "beam"])
def test_the_text_with_the_highest_mean_utility_wins(
    translator: Translator, sources: list[str], utility: str, options: dict[str, Any]
) -> None:
    metric: Any = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    rerank = {"kind": "mbr", "utility": utility, "candidates": 6}
    found = translator.translate(sources, rerank=rerank, n_best=2, **options)
    plain = translator.translate(sources, n_best=6, **options)
    changed = 0
    for ours, drawn in zip(found, plain, strict=True):
        candidates = [drawn.text, *(other.text for other in drawn.alternatives)]
        expected = {
            text: sum(metric.sentence_score(text, [other]).score for other in candidates) / len(candidates)
            for text in candidates
        }
        assert ours.score == pytest.approx(max(expected.values()), abs=1e-6)
        assert expected[ours.text] == pytest.approx(ours.score, abs=1e-6)
        ranked = [ours.text, *(other.text for other in ours.alternatives)]
        assert len(set(ranked)) == len(ranked) == min(2, len(expected))
        changed += ours.text != drawn.text
    assert changed, "reranking has to change something, or the test shows nothing"


def test_another_run_scores_by_teacher_forcing(translator: Translator, other_run: Path, sources: list[str]) -> None:
    other = weft.load(other_run, device="cpu")
    rerank = {"kind": "model", "run": str(other_run), "weight": 0.7, "length_penalty": 0.5, "candidates": 5}
    found = translator.translate(sources, beam=3, rerank=rerank, n_best=5)
    plain = translator.translate(sources, beam=5, n_best=5)
    changed = 0
    for source, ours, drawn in zip(sources, found, plain, strict=True):
        scores = {}
        for each in (drawn, *drawn.alternatives):
            ids = [*other.target.encode(each.text), EOS]
            logp = teacher_force(other.model, [*other.source.encode(source), EOS], ids).logp
            forced = sum(float(logp[place, token]) for place, token in enumerate(ids))
            scores[each.text] = max(scores.get(each.text, -1e9), 0.7 * forced / len(ids) ** 0.5 + 0.3 * each.score)
        assert ours.score == pytest.approx(max(scores.values()), abs=1e-4)
        assert [each.score for each in (ours, *ours.alternatives)] == pytest.approx(
            sorted(scores.values(), reverse=True), abs=1e-4
        )
        changed += ours.text != drawn.text
    assert changed


def test_the_other_run_is_loaded_once_and_must_be_one(
    translator: Translator, other_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = weft.runs.trained_model.open_run  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "weft.runs.trained_model.open_run", lambda run, **options: (opened.append(str(run)), real(run, **options))[1]
    )
    fresh = Translator(translator.model, translator.task, translator.config)
    for _ in range(2):
        fresh.translate("a b", rerank={"kind": "model", "run": str(other_run)})
    assert opened == [str(other_run)]
    with pytest.raises(RunError, match=r"decode\.rerank\.run: .*there is no such run folder"):
        fresh.translate("a b", rerank={"kind": "model", "run": str(tmp_path / "nothing")})
    with pytest.raises(ConfigError, match=r"greedy does not support several texts per source"):
        fresh.translate("a b", search="greedy", rerank="mbr")


@pytest.mark.parametrize("kind", ["mbr", "model"])
def test_a_reranked_text_does_not_depend_on_its_batch(
    translator: Translator, other_run: Path, sources: list[str], kind: str
) -> None:
    rerank = {"kind": "mbr", "candidates": 5} if kind == "mbr" else {"kind": "model", "run": str(other_run), "candidates": 5}
    alone = [translator.translate(source, rerank=rerank, **SAMPLES) for source in sources]
    for budget in (1, 40, 10_000):
        found = translator.translate(sources[::-1], batch_tokens=budget, rerank=rerank, **SAMPLES)[::-1]
        assert [each.text for each in found] == [each.text for each in alone]
        assert [each.score for each in found] == pytest.approx([each.score for each in alone], abs=1e-4)


def test_the_pieces_of_a_long_line_are_reranked_separately(translator: Translator) -> None:
    options = {"beam": 4, "rerank": {"kind": "mbr", "candidates": 4}}
    whole = translator.translate("a b c d e f", max_source=4, **options)
    assert whole.text == " ".join(translator.translate(part, **options).text for part in ("a b c", "d e f"))


def test_explain_shows_the_search_without_reranking(translator: Translator) -> None:
    plain, reranked = (translator.explain("a b c d", beam=4, rerank=kind) for kind in ("none", "none"))
    config = translator.config.replaced({"decode.rerank": {"kind": "mbr", "candidates": 8}})
    configured = Translator(translator.model, translator.task, config).explain("a b c d", beam=4)
    assert configured.score == plain.score == reranked.score
    assert len(configured.best) == len(plain.best)


def test_32_candidates_are_ranked_in_milliseconds() -> None:
    text = "the quick brown fox jumps over a lazy dog while seven other animals watch it from afar with great interest"
    words = list(text.split())
    texts = [" ".join(words[k % 7 :] + words[: k % 5] + [str(k)]) for k in range(32)]
    pairwise(texts, "chrf")
    for utility in ("chrf", "bleu"):
        began = time.perf_counter()
        pairwise(texts, utility)  # type: ignore[arg-type]
        assert time.perf_counter() - began < 0.25, utility  # a double loop over sacreBLEU takes seconds
