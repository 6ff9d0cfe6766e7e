"""Several references: sacreBLEU's own values, the nearest reference, and files that do not belong together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu

from tests.helpers.tiny import Shell
from weft.errors import ConfigError, DataError
from weft.evaluation.metrics import Metric, make_metrics
from weft.runs.run_evaluation import read_references

OUTPUTS = ["the cat sits on the mat", "there is a dog here", "a b c d", ""]
FIRST = ["a cat sat on the mat", "here is a dog", "a b c d e", "x"]
SECOND = ["the cat sits on a mat today", "there is a dog in here", "d c b a", "y z"]


@pytest.mark.parametrize(("name", "theirs"), [("bleu", "corpus_bleu"), ("chrf", "corpus_chrf"), ("ter", "corpus_ter")])
def test_values_and_signatures_are_those_of_sacrebleu(name: str, theirs: str) -> None:
    (metric,) = make_metrics([name])
    metric.read_several(2)
    joined = read_references(FIRST, [], []), ["\n".join(pair) for pair in zip(FIRST, SECOND, strict=True)]
    assert joined[0] == FIRST
    ours = metric.score(metric.count(OUTPUTS, joined[1]))
    assert ours.value == pytest.approx(getattr(sacrebleu, theirs)(OUTPUTS, [FIRST, SECOND]).score, abs=1e-9)
    assert "nrefs:2" in ours.signature


def test_the_nearest_reference_counts() -> None:
    exact, accuracy = make_metrics(["exact", "accuracy"])
    for metric in (exact, accuracy):
        metric.read_several(2)
    assert exact.count(["a b", "c", "d"], ["x\na b ", "c\ny", "x\ny"])[:, 0].tolist() == [1, 1, 0]
    assert accuracy.count(["a b", "a b c"], ["x y\na c", "a\na b d e"]).tolist() == [[1, 2], [2, 4]]


def test_a_metric_of_one_reference_is_refused() -> None:
    class Other(Metric):
        name, signature = "other", ""

        def count(self, hypotheses, references):  # type: ignore[no-untyped-def]
            return []

    with pytest.raises(ConfigError, match="other compares with one reference"):
        Other().read_several(2)


def test_the_command(weft: Shell, reverse_run: Path, tmp_path: Path) -> None:
    table = tmp_path / "test.tsv"
    table.write_text("a b c\tc b\tc b a\nd e\te d\tx\n", encoding="utf-8")
    (tmp_path / "more.txt").write_text("c b a\nx\n", encoding="utf-8")
    one = json.loads(weft("evaluate", reverse_run, "--data", f"{table}#1,2", "--json"))
    for name in (tmp_path / "more.txt", f"{table}#1,3"):
        two = json.loads(weft("evaluate", reverse_run, "--data", f"{table}#1,2", "--reference", name, "--json"))
        assert (one["metrics"]["exact"]["value"], two["metrics"]["exact"]["value"]) == (50, 100)
        assert "nrefs:2" in two["metrics"]["chrF2"]["signature"] and "nrefs:1" in one["metrics"]["chrF2"]["signature"]


def test_references_of_other_texts(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("x\n", encoding="utf-8")
    (tmp_path / "other.tsv").write_text("a\tx\nb\ty\n", encoding="utf-8")
    with pytest.raises(DataError, match="1 references, and the test data 2"):
        read_references(["a", "b"], [str(tmp_path / "short.txt")], ["a", "c"])
    with pytest.raises(DataError, match="pair 2 has another source"):
        read_references(["a", "b"], [str(tmp_path / "other.tsv")], ["a", "c"])
