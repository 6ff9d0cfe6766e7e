"""`weft explain` and `weft align` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import weft as package
from tests.helpers.tiny import Shell
from weft.errors import ConfigError


def data(page: Path) -> list[list[dict[str, Any]]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found
    groups: list[list[dict[str, Any]]] = json.loads(found[1])
    return groups


def test_a_sentence_becomes_a_page(weft: Shell, reverse_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    weft("explain", reverse_run, "a b c", "-o", out, "--beam", "3")
    ((found,),) = data(out)
    assert found["sides"]["target"]["text"] == "c b a"
    assert found["run"] == str(reverse_run)
    assert len(found["best"]) == 3
    assert found["tree"]
    assert {each["use"] for each in found["maps"]} == {"cross", "encoder", "causal"}
    cross = package.load(reverse_run).explain("a b c").views("cross")[0].mean
    assert cross.argmax(-1)[:3].tolist() == [2, 1, 0]


def test_two_runs_and_a_file_of_sentences(weft: Shell, reverse_run: Path, other_run: Path, tmp_path: Path) -> None:
    lines, targets, out = tmp_path / "lines", tmp_path / "targets", tmp_path / "page.html"
    lines.write_text("a b c\n\nd e\n")
    targets.write_text("c b a\n\nd d\n")
    weft("explain", reverse_run, "--file", lines, "--targets", targets, "--against", other_run, "-o", out)
    groups = data(out)
    assert [[each["run"] for each in group] for group in groups] == [[str(reverse_run), str(other_run)]] * 2
    assert all(each["forced"] for group in groups for each in group)
    assert groups[1][0]["steps"][0]["instead"] == "e d"


def test_pictures(weft: Shell, reverse_run: Path, tmp_path: Path) -> None:
    weft("explain", reverse_run, "a b c", "-o", tmp_path / "look.svg", "--layer", "1", "--head", "2", "--words")
    assert "<svg" in (tmp_path / "look.svg").read_text()
    weft("explain", reverse_run, "a b c", "-o", tmp_path / "look.png", "--look", "decoder", "--head", "max")
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give a sentence to explain, or a file of them"),
        (["a", "--file", "x"], "one of the two"),
        (["  "], "nothing to explain in an empty text"),
        (["a", "-o", "page.gif"], "page.gif: the file name decides what is written"),
        (["a", "--head", "third", "-o", "x.png"], "--head third: give a number"),
        (["a", "--head", "7", "-o", "x.png"], "there is no head 7"),
        (["a", "--layer", "7", "-o", "x.png"], "there is no layer 7"),
        (["a", "--targets", "x"], "--targets goes with --file"),
        (["--file", "missing"], "missing: there is no such file"),
        (["a", "--against", "missing"], "missing: there is no such run folder"),
        (["a", "--set", "train.steps=3"], "a trained run only takes decoding settings"),
    ],
)
def test_what_is_wrong_is_said(
    weft: Shell, reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    weft.fails("explain", reverse_run, *arguments, says=[says])
    assert list(tmp_path.iterdir()) == []


def test_more_than_one_sentence_is_no_picture(weft: Shell, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    weft.fails("explain", reverse_run, "--file", tmp_path / "lines", "-o", tmp_path / "x.png", says=["shows one sentence"])
    (tmp_path / "targets").write_text("a\n")
    both = ["--file", tmp_path / "lines", "--targets", tmp_path / "targets"]
    weft.fails("explain", reverse_run, *both, says=["has 1 lines", "has 2"])


def test_links_and_their_error_rate(weft: Shell, reverse_run: Path, tmp_path: Path) -> None:
    pairs, gold = tmp_path / "pairs.jsonl", tmp_path / "gold"
    pairs.write_text(
        '{"source": "a b c", "target": "c b a"}\n{"source": " ", "target": "a"}\n{"source": "d e", "target": "e d"}\n'
    )
    gold.write_text("0-2 1-1 2-0\n\n0-1 1-0\n")
    assert weft("align", reverse_run, "--data", pairs, "--gold", gold, "--json") == "0-2 1-1 2-0\n\n0-1 1-0\n"
    assert json.loads(weft.err) == {"layer 1 (full, weights)": {"aer": 0.0, "precision": 1.0, "recall": 1.0}}
    weft("align", reverse_run, "--data", pairs, "-o", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "0-2 1-1 2-0\n\n0-1 1-0\n"
    weft.fails("align", reverse_run, "--data", pairs, "--layer", "2", says=["--layer 2: 1 layers attend to the source"])
    gold.write_text("0-0\n")
    weft.fails("align", reverse_run, "--data", pairs, "--gold", gold, says=["has 1 lines, and there are 3 pairs"])
    gold.write_text("0-0\n0_0\n\n")
    weft.fails("align", reverse_run, "--data", pairs, "--gold", gold, says=["gold, line 2: '0_0' is not a link"])


def test_options_of_explanations_are_checked(reverse_run: Path) -> None:
    translator = package.load(reverse_run)
    with pytest.raises(ConfigError, match=r"decode\.beem"):
        translator.explain("a", beem=3)
    assert len(translator.explain("a b", beam=3).best) == 3
    assert len(translator.explain("a b", beam=3, n_best=2).best) == 2
    assert translator.explain("a b", influence=True).views("cross")[-1].how == "influence"


def test_an_ensemble_shows_the_looks_of_each_model(reverse_run: Path, other_run: Path) -> None:
    found = package.load([reverse_run, other_run]).explain("a b")
    assert [look.title for look in found.views("cross")] == ["model 1, layer 1", "model 2, layer 1"]
