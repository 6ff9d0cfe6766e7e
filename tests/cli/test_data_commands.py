"""`weft data check` and `weft data clean` at the terminal: output, pages, choices, and models that find unlikely pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.helpers import tiny
from weft.runs.cross_entropy_filter import CrossEntropyFilter, cross_entropies
from weft.runs.translator import load

PAIRS = [("a b c", "c b a"), ("a & <b> d", "d <b> & a"), ("", "x"), ("a b c", "c b a"), ("fÃ¼r", "b")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "a.en").write_text("".join(f"{source}\n" for source, _ in PAIRS))
    (tmp_path / "a.de").write_text("".join(f"{target}\n" for _, target in PAIRS))
    return tmp_path


def test_checking_data(weft: tiny.Shell, data: Path) -> None:
    spec = f"{data}/a.en,{data}/a.de"
    shown = weft("data", "check", spec, "--report", data / "page.html")
    assert "5 pairs, 3 with a finding" in shown and "1   20.00 %  empty: a side is empty" in shown
    page = (data / "page.html").read_text()
    assert "default-src 'none'" in page and "a &amp; &lt;b&gt; d" not in page and "fÃ¼r" in page
    found = json.loads(weft("data", "check", spec, "--json", "--languages", "en,de"))
    assert found["counts"] == {"empty": 1, "duplicate": 1, "damaged": 1} and found["languages"][1]["given"] == "de"
    assert found["examples"]["damaged"] == [["fÃ¼r", "b"]]


def test_cleaning_data(weft: tiny.Shell, data: Path) -> None:
    spec, out = f"{data}/a.en,{data}/a.de", data / "out.tsv"
    shown = weft("data", "clean", spec, "-o", out, "--report", data / "page.html", "--write-choices", data / "c.yaml")
    assert out.read_text() == "a b c\tc b a\na & <b> d\td <b> & a\n" and "2 of 5 pairs kept" in shown
    assert "duplicate" in (data / "page.html").read_text()
    choices = yaml.safe_load((data / "c.yaml").read_text())
    choices["filters"] |= {"duplicate": False, "damaged": False, "near_duplicate": False}
    (data / "c.yaml").write_text(yaml.safe_dump(choices))
    weft("data", "clean", spec, "-o", out, "--choices", data / "c.yaml")
    assert len(out.read_text().splitlines()) == 4, "choices can be taken back"
    weft.fails("data", "clean", spec, "-o", spec, says=["would overwrite"])
    weft.fails("data", "clean", spec, "-o", out, "--shard", "3/2", says=["expected K/N"])
    weft.fails("data", "clean", spec, "-o", out, "--models", "one", says=["name two runs"])
    weft.fails("data", "check", spec, "--languages", "en", says=["give two codes"])
    weft.fails("data", "check", data / "none.tmx", says=["there is no such file"])


def test_models_find_unlikely_pairs(weft: tiny.Shell, reverse_run: Path, data: Path) -> None:
    """Of a run that reverses words, both directions are the same."""
    right = [("a b c d", "d c b a"), ("b d", "d b"), ("c a b", "b a c")]
    wrong = [("a b c d", "a a a a"), ("b d", "a c"), ("c a b", "c c b")]
    scorer = CrossEntropyFilter(reverse_run, reverse_run, 0.05, "cpu").calibrated(right * 5)
    assert scorer(right) == [False] * 3 and scorer(wrong) == [True] * 3
    predictor = load([reverse_run]).translation_predictor("test")
    alone = [predictor.log_likelihoods(source, [target])[0] for source, target in right + wrong]
    assert cross_entropies(predictor, right + wrong) == pytest.approx([-score / size for score, size in alone], abs=1e-4)
    (data / "b.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in right * 9 + wrong))
    (data / "c.yaml").write_text("filters: {duplicate: false, near_duplicate: false, misaligned: false, wrong_language: false}")
    more = ("--models", f"{reverse_run},{reverse_run}", "--choices", data / "c.yaml", "--json")
    found = json.loads(weft("data", "clean", data / "b.tsv", "-o", data / "out.tsv", *more))
    assert found["counts"].get("cross_entropy", 0) >= 1
