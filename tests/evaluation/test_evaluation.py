"""Scores and tests of significance against sacreBLEU, and the two formats of a report."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from weft.errors import ConfigError, DataError
from weft.evaluation.metrics import Bleu, Chrf, ExactMatch, Ter, TokenAccuracy, by_length, make_metrics, score
from weft.evaluation.report import Baseline, evaluate
from weft.evaluation.significance import Significance, approximate_randomisation, confidence, paired_bootstrap

TEXT = "a man rides the red bicycle near an old house while two dogs run after him , and she smiles . ü 字 it's 3.5 %"
WORDS = TEXT.split()


def corpus(sentences: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 18))) for _ in range(sentences)]


def worsen(references: Sequence[str], share: float, seed: int) -> list[str]:
    """Each word is replaced, dropped or doubled with a probability of `share`."""
    rng = random.Random(seed)
    return [
        " ".join(
            " ".join(rng.choice([[], [word, word], [rng.choice(WORDS)]])) if rng.random() < share else word
            for word in line.split()
        )
        for line in references
    ]


REFERENCES = corpus(200)
GOOD, BAD = worsen(REFERENCES, 0.2, 1), worsen(REFERENCES, 0.3, 2)


@pytest.mark.parametrize(("name", "theirs"), [("BLEU", BLEU()), ("chrF2", CHRF()), ("TER", TER())])
@pytest.mark.parametrize(
    "hypotheses", [GOOD, BAD, REFERENCES, [""] * 200, ["字 字"] * 200], ids=["good", "bad", "same", "empty", "other"]
)
def test_scores_and_signatures_are_those_of_sacrebleu(name: str, theirs: BLEU | CHRF | TER, hypotheses: list[str]) -> None:
    ours = score(hypotheses, REFERENCES)[name]
    assert ours.value == pytest.approx(theirs.corpus_score(hypotheses, [REFERENCES]).score, abs=1e-9)
    assert ours.signature == str(theirs.get_signature())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_scores_of_very_short_texts_are_those_of_sacrebleu(count: int) -> None:
    for ours, theirs in [
        ("a b", "a b"),
        ("a b c d e", "a x c d y"),
        ("x", "y"),
        ("", ""),
        ("a", ""),
        ("a b c d", "a b c e f g h"),
    ]:
        found = score([ours] * count, [theirs] * count)
        for name, metric in (("BLEU", BLEU()), ("chrF2", CHRF()), ("TER", TER())):
            assert found[name].value == pytest.approx(metric.corpus_score([ours] * count, [[theirs] * count]).score, abs=1e-9)


def test_tokenizer_and_case_reach_sacrebleu_and_the_signature() -> None:
    found = score(["我喜欢你 A"], ["我喜欢他 a"], make_metrics(["bleu"], tokenize="zh", lowercase=True))["BLEU"]
    theirs = BLEU(tokenize="zh", lowercase=True)
    assert found.value == pytest.approx(theirs.corpus_score(["我喜欢你 A"], [["我喜欢他 a"]]).score)
    assert found.signature == str(theirs.get_signature())
    assert "tok:zh" in found.signature


def compare(ours: list[str], theirs: list[str], references: list[str], **options: Any) -> list[Significance]:
    return evaluate(ours, references, system="ours", data="test", baseline=Baseline("theirs", theirs), **options).comparisons


def test_exact_match_and_token_accuracy() -> None:
    found = score(["a b", " a b ", "a", "a b c", ""], ["a b", "a b", "a b", "a b", ""])
    assert found["exact"].value == pytest.approx(60)
    assert found["accuracy"].value == pytest.approx(100 * (2 + 2 + 1 + 2 + 0) / (2 + 2 + 2 + 3 + 0))


@pytest.mark.parametrize(
    "function", [score, lambda ours, theirs: compare(ours, ours, theirs), lambda ours, theirs: by_length(ours, theirs, theirs)]
)
def test_texts_that_do_not_pair_up_are_refused(function) -> None:
    with pytest.raises(DataError, match="nothing to score"):
        function([], [])
    with pytest.raises(DataError, match="there are 1 hypotheses for 2 references"):
        function(["a"], ["a", "b"])


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no metric 'blue'; did you mean 'bleu'"):
        make_metrics(["blue"])
    with pytest.raises(ConfigError, match="BLEU has no tokenizer '13b'; did you mean '13a'"):
        make_metrics(["bleu"], tokenize="13b")
    with pytest.raises(ConfigError, match="at least 1 resample, not 0"):
        compare(["a"], ["a"], ["a"], samples=0)


def test_a_baseline_of_another_length_is_refused() -> None:
    with pytest.raises(DataError, match="there are 1 hypotheses of theirs for 2 references"):
        compare(["a", "b"], ["a"], ["a", "b"])


@pytest.mark.parametrize("kind", ["bs", "ar"])
@pytest.mark.parametrize("share", [0.2, 0.22, 0.3])
def test_p_values_and_intervals_agree_with_sacrebleu(kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    other, samples = worsen(REFERENCES, share, 3), 1000
    metrics = {
        "BLEU": BLEU(references=[REFERENCES]),
        "chrF2": CHRF(references=[REFERENCES]),
        "TER": TER(references=[REFERENCES]),
    }
    systems = [("baseline", other), ("ours", GOOD)]
    _, theirs = PairedTest(systems, metrics, references=None, test_type=kind, n_samples=samples, n_ar_confidence=samples)()
    test = approximate_randomisation if kind == "ar" else paired_bootstrap
    for metric in (Bleu(), Chrf(), Ter()):
        counts = metric.count(GOOD, REFERENCES)
        found = test(metric, counts, metric.count(other, REFERENCES), samples, 7)
        expected = theirs[metric.name][1]
        assert found.p == pytest.approx(expected.p_value, abs=0.05)
        low, high = confidence(metric, counts, samples, 7)
        assert (high - low) / 2 == pytest.approx(expected.ci, rel=0.1)
        assert low < found.value < high


@pytest.mark.parametrize("test", ["bootstrap", "randomisation"])
def test_significance_of_large_and_zero_differences(test: str) -> None:
    far = {item.metric: item for item in compare(GOOD, worsen(REFERENCES, 0.6, 4), REFERENCES, test=test)}
    same = {item.metric: item for item in compare(GOOD, list(GOOD), REFERENCES, test=test)}
    assert set(far) == {"BLEU", "chrF2", "TER", "exact", "accuracy"}
    for name, item in far.items():
        assert item.better
        assert item.p == pytest.approx(1 / 1001)
        assert item.delta == pytest.approx(item.value - item.baseline)
        assert (item.delta < 0) == (name == "TER")
        assert item.ci[0] < item.delta < item.ci[1]
        assert not item.ci[0] <= 0 <= item.ci[1]
    for item in same.values():
        assert (item.delta, item.p, item.better, item.ci) == (0, 1, False, (0, 0))


def test_randomisation_of_exact_match_is_the_sign_test() -> None:
    """8 sentences that only we got right against 2 that only they did: two-sided sign test, p = 2 · P(X ≥ 8 of 10) = 0.109."""
    references = ["x"] * 40
    ours = ["x"] * 8 + ["y"] * 2 + ["x"] * 30
    theirs = ["y"] * 8 + ["x"] * 2 + ["x"] * 30
    (found,) = compare(ours, theirs, references, metrics=[ExactMatch()], test="randomisation", samples=20_000)
    assert found.p == pytest.approx(0.109, abs=0.01)


def test_the_interval_of_exact_match_is_the_binomial_one() -> None:
    metric = ExactMatch()
    counts = metric.count(["x"] * 60 + ["y"] * 40, ["x"] * 100)
    low, high = confidence(metric, counts, 4000)
    assert (low, high) == pytest.approx((50.4, 69.6), abs=1.5)


def test_p_values_are_uniform_without_a_difference() -> None:
    """For two equally good systems, p is below 0.1 in about a tenth of the test sets."""
    metric, rng, small = TokenAccuracy(), np.random.default_rng(0), 0
    for _ in range(200):
        ours, theirs = rng.integers(0, 5, (2, 60, 1)).astype(float)
        both = [np.concatenate([right, np.full_like(right, 5)], 1) for right in (ours, theirs)]
        small += approximate_randomisation(metric, both[0], both[1], 200).p < 0.1
    assert 8 <= small <= 34


def test_results_depend_on_the_seed_but_not_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compare(GOOD, BAD, REFERENCES, metrics=[Bleu()], seed=1)
    assert compare(GOOD, BAD, REFERENCES, metrics=[Bleu()], seed=1) == first
    assert compare(GOOD, BAD, REFERENCES, metrics=[Bleu()], seed=2)[0].ci != first[0].ci
    monkeypatch.setattr("weft.evaluation.significance.CELLS", 7 * len(REFERENCES))
    assert compare(GOOD, BAD, REFERENCES, metrics=[Bleu()], seed=1)[0].ci == pytest.approx(first[0].ci)


def test_bleu_by_length_of_the_source() -> None:
    lengths = [1, 9, 10, 19, 20, 55]
    sources = [" ".join(["w"] * length) for length in lengths]
    references = corpus(6, 5)
    hypotheses = worsen(references, 0.2, 1)
    buckets = by_length(hypotheses, references, sources, (10, 20, 30))
    assert [(item.low, item.high, item.sentences) for item in buckets] == [(0, 10, 2), (10, 20, 2), (20, 30, 1), (30, None, 1)]
    assert buckets[1].bleu == pytest.approx(BLEU().corpus_score(hypotheses[2:4], [references[2:4]]).score)
    assert by_length(["a"], ["a"], ["a"], (5,))[1].bleu is None
    with pytest.raises(ConfigError, match="must be positive and increasing"):
        by_length(["a"], ["a"], ["a"], (20, 10))
    with pytest.raises(DataError, match="there are 0 sources for 1 references"):
        by_length(["a"], ["a"], [])


def test_the_json_document_has_stable_keys() -> None:
    report = evaluate(
        GOOD, REFERENCES, system="ours", data="test", sources=REFERENCES, baseline=Baseline("other", BAD), samples=200
    )
    found = json.loads(json.dumps(report.document()))
    assert list(found) == ["format", "system", "data", "sentences", "metrics", "comparison", "by_length"]
    assert (found["format"], found["system"], found["data"], found["sentences"]) == (1, "ours", "test", 200)
    assert list(found["metrics"]) == ["BLEU", "chrF2", "TER", "exact", "accuracy"]
    assert set(found["metrics"]["BLEU"]) == {"value", "signature", "ci", "higher_is_better"}
    assert set(found["comparison"]) == {"baseline", "test", "samples", "seed", "metrics"}
    assert set(found["comparison"]["metrics"]["TER"]) == {"baseline", "delta", "ci", "p"}
    assert set(found["by_length"][0]) == {"from", "below", "sentences", "bleu"}
    assert evaluate(GOOD, REFERENCES, system="a", data="b", samples=10).document()["comparison"] is None


def test_the_table_shows_scores_differences_and_signatures() -> None:
    report = evaluate(
        GOOD, REFERENCES, system="runs/[a]", data="t", sources=REFERENCES, baseline=Baseline("[b]", BAD), samples=200
    )
    console = Console(width=140)
    with console.capture() as capture:
        console.print(report.table())
    text = capture.get()
    bleu = report.scores[0]
    for piece in (
        "runs/[a] on t (200 sentences)",
        "[b]",
        f"{bleu.value:.2f}",
        f"{report.comparisons[0].delta:+.2f}",
        "TER ↓",
        "40 and more",
    ):
        assert piece in text
    assert f"BLEU: {bleu.signature}" in report.signatures()
