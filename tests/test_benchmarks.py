"""The scripts in benchmarks/ run and compare what they claim: systems within one budget, test words not seen in training."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.attention import ATTENTIONS
from weft.attention.core.patterns import PATTERNS
from weft.config.registry import build
from weft.config.sections import load_config
from weft.mixers import MIXERS
from weft.models.base import Sizes
from weft.models.composing import build_model
from weft.pooling import POOLINGS

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8"))


@pytest.fixture(autouse=True)
def _import_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_prints_its_usage(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(script).main()
    assert end.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_subsets_of_the_data_are_contained_in_each_other(tmp_path: Path) -> None:
    fit = importlib.import_module("fit")
    (tmp_path / "multi30k").mkdir()
    for split, count in (("train", 29_000), ("test_2016_flickr", 3)):
        for side in ("en", "de"):
            (tmp_path / "multi30k" / f"{split}.{side}").write_text("".join(f"{side} {n} !\n" for n in range(count)))
    few, more = (list(fit.open_pairs(fit.subset(tmp_path, size, tmp_path / "out"))) for size in (500, 3_000))
    assert len(set(few)) == 500 and len(set(more)) == 3_000 and set(few) < set(more)
    assert all(source[3:] == target[3:] for source, target in few)
    floors = fit.floors(tmp_path, 500, tmp_path)
    assert floors.keys() == {"source copied", "most frequent target"} and all(each["chrF2"] > 0 for each in floors.values())


def test_auto_is_compared_with_the_best_fixed_recipe(tmp_path: Path) -> None:
    fit = importlib.import_module("fit")

    def outcome(recipe: str, bleu: float) -> Any:
        return fit.Outcome(fit.Run(recipe, recipe, ""), scores={"test": {"BLEU": bleu}})

    found = [outcome("auto", 20.3), outcome("transformer-small", 20.0), outcome("rnn-bahdanau", 17.0)]
    assert fit.verdict(500, found) == "500 pairs: auto +0.30 BLEU against the best fixed recipe, transformer-small.\n"
    assert fit.verdict(500, found[1:]) == ""
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- rules -->\nold\n<!-- /rules -->\nb\n")
    fit.write_rules(page)
    assert page.read_text() == f"a\n<!-- rules -->\n{fit.rules.markdown()}<!-- /rules -->\nb\n"


def test_every_system_of_the_sweep_is_within_the_budget(tmp_path: Path) -> None:
    families = importlib.import_module("families")
    options = families.parser().parse_args([str(tmp_path), "--out", str(tmp_path)])
    for name in families.SYSTEMS:
        assert families.within_budget(families.plan(name, "a,b", {}, options)), name


def test_consecutive_sentences_are_joined(tmp_path: Path) -> None:
    lengths = importlib.import_module("lengths")
    for side, text in (("en", "a\nb\nc\n"), ("de", "A\nB\nC\n")):
        (tmp_path / f"train.{side}").write_text(text)
    source, target = lengths.join(tmp_path, "train", (1, 2), tmp_path / "out").split(",")
    assert Path(source).read_text() == "a\nb\nc\na b\n"
    assert Path(target).read_text() == "A\nB\nC\nA B\n"


def test_phoneme_errors_are_edit_distances() -> None:
    monotonic = importlib.import_module("monotonic")
    assert monotonic.distance("cat", "cats") == 1
    assert monotonic.distance("act", "cat") == 2
    assert monotonic.distance("", "cat") == 3
    assert monotonic.errors(["K AE T", ""], ["K AH T", "D"]) == pytest.approx(50)


def test_no_test_word_is_in_training(tmp_path: Path) -> None:
    monotonic = importlib.import_module("monotonic")
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "ijklmnop" for c in ("q", "rstuvwx", "yzyzyzyzyzyz")]
    (tmp_path / "words.tsv").write_text("".join(f"{' '.join(word)}\t{' '.join(word.upper())}\n" for word in words))
    files = monotonic.split(tmp_path / "words.tsv", tmp_path)
    sources = {name: {line.split("\t")[0] for line in Path(file).read_text().splitlines()} for name, file in files.items()}
    assert not sources["train"] & (sources["words"] | sources["apart"])
    assert max(len(source.split()) for source in sources["train"]) <= 10
    assert all(24 <= len(source.split()) <= 30 for source in sources["joined"])


def test_the_page_has_a_mark_for_every_drawing_and_no_other() -> None:
    mechanisms = importlib.import_module("mechanisms")
    page = (FOLDER.parent / "docs" / "mechanisms.md").read_text("utf-8")
    assert {match[2] for match in mechanisms.MARK.finditer(page)} == {*mechanisms.RUNS, mechanisms.MIX}
    assert set(mechanisms.RUNS.values()) | {mechanisms.MIX_RUN} <= set(importlib.import_module("families").SYSTEMS)


def test_every_mechanism_has_an_entry_on_the_page() -> None:
    page = (FOLDER.parent / "docs" / "mechanisms.md").read_text("utf-8")
    headings = {word for line in page.splitlines() if line.startswith("### ") for word in line[4:].split(", ")}
    assert not (ATTENTIONS.keys() | MIXERS.keys()) - headings
    pooling = page.partition("### Pooling")[2].partition("\n#")[0]
    assert not [kind for kind in POOLINGS if f"`{kind}`" not in pooling]


def test_existing_pictures_are_linked(tmp_path: Path) -> None:
    mechanisms = importlib.import_module("mechanisms")
    page, pictures = tmp_path / "mechanisms.md", tmp_path / "images"
    page.write_text("<!-- drawing: dot -->\n![old](gone.png)\n\n<!-- drawing: hard -->\n![old](gone.png)\n\nend\n")
    mechanisms.draw("wiring", {"weights": [[0.25, 0.75], [1.0, 0.0]]}, pictures / "hard.png")
    for _ in range(2):
        mechanisms.link(page, pictures)
        assert page.read_text() == (
            "<!-- drawing: dot -->\n\n<!-- drawing: hard -->\n![weights of hard on one sentence](images/hard.png)\n\nend\n"
        )


def test_every_mechanism_of_the_zoo_fits_its_slot() -> None:
    zoo = importlib.import_module("zoo")
    for name, part in zoo.PARTS.items():
        for kind in part.kinds:
            spec = json.dumps({"kind": kind, **part.options.get(kind, {})})
            config = load_config(part.recipe, [*part.sets, f"{part.slot}={spec}"])
            with torch.device("meta"):
                model = build_model(config.model, Sizes(50, 50, True))
            limits = [limit for limit in (model.max_source, model.max_target) if limit is not None]
            assert config.data.max_length < min(limits, default=1 << 20), (name, kind)


def test_the_zoo_compares_its_order_with_published_scores() -> None:
    zoo = importlib.import_module("zoo")
    assert zoo.correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert zoo.correlation([4, 3, 2, 1], [10, 20, 30, 40]) == pytest.approx(-1)
    assert zoo.correlation([1, 1, 1], [1, 2, 3]) == 0
    rows = [
        {"label": label, "quality": {"mean": value, "values": [value]}, "speed": {"mean": 1e4}, "memory": None, "steps": None}
        for label, value in (("bigbird window=2", 3.0), ("fnet", 2.5), ("full", 2.0), ("local", 1.0))
    ]
    headline = {"title": "accuracy", "higher_is_better": True}
    failed = {"label": "failed", "quality": None, "error": "unfinished"}
    results = {"headline": headline, "counts": "texts", "entries": [*rows, failed]}
    text = zoo.ranking(results, "chance")
    assert "| bigbird window=2 | 3.00 | 10,000 | – | – | 55.01 |" in text and "| fnet | 2.50 | 10,000 | – | – | – |" in text
    assert "+1.00 with the Arena's average (3 entries)" in text
    assert "failed: unfinished" in text and "Baselines by counting: chance" in text
    assert "| local | 1.00 | 10,000 | – | – | 15.82 | 46.06 |" in zoo.ranking(results, arena_task="ListOps")


def test_the_zoo_joins_the_results_of_several_calls() -> None:
    zoo = importlib.import_module("zoo")

    def part(**scores: float) -> dict[str, Any]:
        def row(label: str, score: float) -> dict[str, Any]:
            stat = {"mean": score, "low": None, "high": None, "values": [score]}
            unmeasured = dict.fromkeys(("speed", "memory", "seconds"))
            quality = {"quality": stat if score else None, "steps": stat, "error": "" if score else "stopped"}
            return {"label": label, "runs": [score], **unmeasured, **quality}

        return {"headline": {"higher_is_better": True}, "entries": [row(*each) for each in scores.items()]}

    entries = zoo.join([part(full=3, local=2, fnet=0), part(local=6, full=4, fnet=1)])["entries"]
    assert [(row["label"], row["quality"]["values"], row["runs"], row["error"]) for row in entries] == [
        ("local", [2, 6], [2, 6], ""),
        ("full", [3, 4], [3, 4], ""),
        ("fnet", [1], [0, 1], ""),
    ]


def test_no_pattern_of_the_zoo_equals_full_attention() -> None:
    """In a sentence of the part's length, a pattern that sees everything would be full attention under another name."""
    zoo = importlib.import_module("zoo")
    part = zoo.PARTS["c"]
    for kind in set(part.kinds) & set(PATTERNS) - {"full"}:
        pattern = build("weft.attention.core.patterns:PATTERNS", {"kind": kind, **part.options.get(kind, {})}, False)
        assert not pattern.sees(16, causal=False).all(), kind


def test_the_zoo_starts_with_the_most_important_runs(tmp_path: Path) -> None:
    zoo = importlib.import_module("zoo")
    options = zoo.parser().parse_args(["--out", str(tmp_path), "--only", "full,fnet,local", "--parts", "a,c", "--repeat", "2"])
    sweeps = zoo.plan(options)
    assert sweeps["c"].comparison.entries[1].sets == ('model.encoder_self={"kind": "local", "window": 3}',)
    queue = [(name, run.entry.label.split()[0], run.number) for name, run in zoo.Zoo(tmp_path, sweeps, 2).queue()]
    first = [("a", "full"), ("a", "local"), ("a", "fnet"), ("c", "full"), ("c", "local"), ("c", "fnet")]
    assert [pair[:2] for pair in queue[:6]] == first and queue[6:8] == [("c", "full", 1), ("c", "local", 1)]
    assert {number for *_, number in queue[:6]} == {0} and {number for *_, number in queue[6:]} == {1}


def test_the_spread_between_seeds_is_pooled_over_entries() -> None:
    zoo = importlib.import_module("zoo")
    stats = [{"mean": mean, "values": [mean - off, mean + off]} for mean, off in ((5.0, 1.0), (7.0, 2.0), (9.0, 2.0))]
    single = {"mean": 4.0, "values": [4.0]}
    # Variances of 2, 8 and 8, with one degree of freedom each.
    assert zoo.pool([*stats, single]) == pytest.approx(6**0.5)
    half = 3.182 * 3**0.5
    assert [(each["low"], each["high"]) for each in stats] == [pytest.approx((m - half, m + half)) for m in (5.0, 7.0, 9.0)]
    assert single["high"] - single["low"] == pytest.approx(2 * half * 2**0.5)
    assert zoo.pool([{"mean": 4.0, "values": [4.0]}]) is None
