"""The same command twice gives the same bytes. `benchmarks/campaigns/determinism.py` does this for all commands."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.helpers import tiny

CAMPAIGNS = Path(__file__).parents[2] / "benchmarks" / "campaigns"


@pytest.fixture
def determinism(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(CAMPAIGNS))
    return importlib.import_module("determinism")


def test_all_files_are_equal_but_for_those_with_times(
    weft: tiny.Shell, reverse_run: Path, tmp_path: Path, determinism: object
) -> None:
    work, data = tmp_path / "work", tiny.generated("reverse", 40)
    settings = tiny.sets({"train.steps": 3, "train.validate_every": 2, "train.save_every": 2, "train.ema": 0.9})
    outputs = []
    for turn in ("one", "two"):
        work.mkdir()
        weft("train", "transformer-tiny", "--data", data, "--valid", data, "--out", work / "run", *settings)
        outputs.append(weft("translate", reverse_run, "--json", "--n-best", "2", stdin="a b c\nd e\n"))
        outputs[-1] += weft("evaluate", reverse_run, "--data", data, "--json")
        for name in ("page.html", "steps.txt", "map.svg", "map.pdf"):
            inside = ["--inside"] if name == "steps.txt" else []
            weft("explain", reverse_run, "a b c", "-o", work / name, *inside)
        weft("pack", reverse_run, "-o", work / "run.weft")
        work.rename(tmp_path / turn)
    assert outputs[0] == outputs[1]
    found = dict(determinism.compare(tmp_path / "one", tmp_path / "two"))  # type: ignore[attr-defined]
    assert not [name for name, verdict in found.items() if "DIFFERENT" in verdict]
    timed = {Path(name).name for name, verdict in found.items() if verdict == "equal but for times"}
    assert timed <= set(determinism.TIMED)  # type: ignore[attr-defined]
    assert {"run/log.jsonl", "run/checkpoints/step-00000002/state.json"} <= found.keys() - {
        name for name, verdict in found.items() if verdict == "equal"
    }


def test_a_file_that_differs_is_found(tmp_path: Path, determinism: object) -> None:
    for turn, text in (("one", "1"), ("two", "2")):
        (tmp_path / turn).mkdir()
        (tmp_path / turn / "weights").write_text(text)
        (tmp_path / turn / "log.jsonl").write_text(f'{{"loss": {text}, "seconds": {text}}}\n')
        (tmp_path / turn / "state.json").write_text(f'{{"loss": 1, "seconds": {text}}}\n')
    found = dict(determinism.compare(tmp_path / "one", tmp_path / "two"))  # type: ignore[attr-defined]
    assert found == {
        "weights": "DIFFERENT",
        "log.jsonl": "DIFFERENT in more than times",
        "state.json": "equal but for times",
    }
