"""`weft bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from weft.bench import machine as ceilings

FAMILIES = {
    "transformer-tiny": ["model.feedforward=64", "model.encoder_layers=1", "model.decoder_layers=1"],
    "rnn-luong": ["model.encoder_layers=1", "model.decoder_layers=1"],
    "convs2s": ["model.encoder_layers=1", "model.decoder_layers=1"],
    "bytenet": [],
    "lm-tiny": ["model.heads=2", "task.segment=32"],
    "classifier-bytes": ["model.heads=2"],
}


@pytest.fixture(autouse=True)
def _few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One product, three copies and four steps are enough to try the command by."""
    monkeypatch.setattr("weft.bench.workloads.STEPS", 4)
    monkeypatch.setitem(ceilings.PRODUCTS, "cpu", ((512, 512, 512),))
    monkeypatch.setitem(ceilings.COPIES, "cpu", (1 << 16, 1 << 22, 1 << 25))


def small(recipe: str) -> list[str]:
    sets = [*FAMILIES[recipe], "model.dim=32", "data.vocabulary=200", "train.threads=1"]
    options = ["--set", *sets, "--device", "cpu", "--batch-tokens", "128", "--batch", "2", "--rounds", "1"]
    return ["bench", recipe, *options]


def check(document: dict[str, Any]) -> None:
    assert document["model"]["bytes"] == 4 * document["model"]["parameters"]
    assert all(rate > 0 for rate in (*document["ceilings"]["products"].values(), document["ceilings"]["memory"]))
    assert len(document["steps"]) == 2
    for step in document["steps"]:
        assert step["flops"] > 0 and step["bytes"] > 0 and step["count"] > 0
        assert all(share > 0 for share in step["shares"].values())
        larger = max(step["least_by_flops"], step["least_by_bytes"])
        assert step["binds"] == ("products" if larger == step["least_by_flops"] else "memory")
        assert step["seconds"] <= step["median"]


@pytest.mark.parametrize("recipe", sorted(FAMILIES))
def test_every_family_is_measured_without_data(weft: tiny.Shell, recipe: str) -> None:
    document = json.loads(weft(*small(recipe), "--json"))
    check(document)
    assert document["subject"] == recipe
    wanted = "labelling a batch" if recipe == "classifier-bytes" else "decoding step"
    assert [step["name"] for step in document["steps"]] == ["training step", wanted]


def test_a_table_and_a_picture_of_a_run(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in reverse_run.rglob("*")}
    picture, options = tmp_path / "profile.png", ["--rounds", "1", "--batch", "2", "--beam", "3"]
    said = weft("bench", reverse_run, *options, "--profile", picture)
    for text in ("share of product limit", "FLOPs per token", "the closer limit", "beam 3", "2 sources"):
        assert text in said
    assert picture.read_bytes().startswith(b"\x89PNG") and f"written: {picture}" in weft.err
    assert {path: path.stat().st_mtime_ns for path in reverse_run.rglob("*")} == before
    document = json.loads(weft("bench", reverse_run, *options, "--profile", tmp_path / "profile.svg", "--json"))
    check(document)
    assert (tmp_path / "profile.svg").read_text("utf-8").startswith("<?xml")
    for profile, step in zip(document["profiles"], document["steps"], strict=True):
        assert profile["name"] == step["name"] and all(spent > 0 for spent in profile["seconds"].values())


def test_precision_and_length(weft: tiny.Shell) -> None:
    document = json.loads(weft(*small("transformer-tiny"), "--precision", "bf16", "--length", "16", "--json"))
    assert [step["precision"] for step in document["steps"]] == ["bf16", "bf16"]
    assert "8 × 16 tokens" in document["steps"][0]["about"]


def test_what_cannot_be_measured(weft: tiny.Shell, tmp_path: Path) -> None:
    weft.fails("bench", "transformer-tny", says=["there is no such file or recipe", "transformer-tiny"])
    weft.fails("bench", tmp_path, says=["this is not a run folder"])
    weft.fails("bench", "transformer-tiny", "--profile", "p.pdf", says=["PNG or SVG"])
    weft.fails("bench", "transformer-tiny", "--profile", tmp_path / "missing" / "p.png", says=["there is no folder"])
    weft.fails("bench", "transformer-tiny", "--device", "cuda:99", says=["there is no device 'cuda:99'"])
    weft.fails("bench", "convs2s", "--length", "100000", says=["--length 100000", "positions"])
    weft.fails("bench", "transformer-tiny", "--set", "model.dmi=3", says=["did you mean 'dim'"])
    weft("bench", "transformer-tiny", "--batch", "0", status=2)
    weft("bench", "transformer-tiny", "--precision", "half", status=2)
