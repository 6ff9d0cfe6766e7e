"""Changed copies of pairs: what each kind changes, on which side, and how often."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import weft as package
from tests.helpers import tiny
from weft.config.corpus_entries import TrainingCorpus
from weft.data.changed_copies import EMOJI, ChangedCopies, inline_terms, merged, mistyped, with_emoji, with_placeholder
from weft.data.formats import open_pairs
from weft.errors import ConfigError
from weft.runs.open_run import run_config

PAIRS = [("the old house", "das alte Haus"), ("a small garden 7", "ein kleiner Garten 7"), ("it's here", "es ist hier")]


def copies(tmp_path: Path, **shares: float) -> list[tuple[str, str]]:
    (tmp_path / "x.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    found = ChangedCopies(open_pairs(str(tmp_path / "x.tsv")), shares)
    rows = list(found)
    assert rows == list(found) and [row for row in rows if row in PAIRS] == PAIRS
    return [row for row in rows if row not in PAIRS]


def test_casing_changes_both_sides(tmp_path: Path) -> None:
    assert copies(tmp_path, upper=1.0)[0] == ("THE OLD HOUSE", "DAS ALTE HAUS")
    assert copies(tmp_path, title=1.0)[2] == ("It's Here", "Es Ist Hier")


def test_merged_pairs_are_neighbours(tmp_path: Path) -> None:
    rows = copies(tmp_path, merge=1.0)
    assert rows[0] == ("the old house a small garden 7", "das alte Haus ein kleiner Garten 7") and len(rows) == 2
    assert merged([("我来。", "私は来る。")], ("你走。", "行く。")) == ("我来。你走。", "私は来る。行く。")
    assert merged([("a b", "ខ្ញុំ")], ("c", "អ្នក")) == ("a b c", "ខ្ញុំ អ្នក")  # Khmer has spaces between sentences
    assert merged([], PAIRS[0]) is None and merged([("x" * 400, "y")], PAIRS[0]) is None


def test_typing_errors_are_small_and_in_the_source() -> None:
    chance, text = random.Random(1), "Please restart the server now"
    seen = {mistyped(text, chance) for _ in range(200)}
    assert len(seen) > 50 and all(abs(len(each) - len(text)) <= 4 for each in seen)
    assert all(
        " the " in each and each.endswith(" now") and each[0] == "P" for each in seen
    )  # short words and first letters stay
    assert mistyped("a bc", chance) == "a bc"


def test_emoji_and_placeholders_are_on_both_sides() -> None:
    chance = random.Random(1)
    for _ in range(50):
        source, target = with_emoji(PAIRS[0], chance)
        (emoji,) = {letter for letter in source if letter in EMOJI}
        assert source.replace(emoji, "").strip() == PAIRS[0][0] and target.count(emoji) == 1
        changed = with_placeholder(PAIRS[1], chance)
        assert changed is not None and changed[0].removeprefix("a small garden ") == changed[1].removeprefix(
            "ein kleiner Garten "
        )
    assert with_placeholder(PAIRS[0], chance) is None
    assert with_placeholder(("7 or 7", "7 oder 7"), chance) is None


def test_terms_are_shown_if_the_target_has_them(tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("house\tHaus\ngarden\tPark\nold\talte\n", encoding="utf-8")
    (tmp_path / "x.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    found = [*ChangedCopies(open_pairs(str(tmp_path / "x.tsv")), {"terms": 1.0}, str(tmp_path / "terms.tsv"))]
    assert found[1] == ("the old ⟦alte⟧ house ⟦Haus⟧", "das alte Haus") and len(found) == 4
    assert inline_terms("Houses and House.", [("house", "Haus")]) == "Houses and House ⟦Haus⟧."


def test_shares_are_probabilities_and_part_of_the_digest(tmp_path: Path) -> None:
    file = tmp_path / "x.tsv"
    file.write_text("".join(f"word{number}\tWort{number}\n" for number in range(2000)), encoding="utf-8")
    pairs = open_pairs(str(file))
    assert 150 < len(list(ChangedCopies(pairs, {"upper": 0.1}))) - 2000 < 250
    digests = {ChangedCopies(pairs, {"upper": share}).digest() for share in (0.1, 0.2)} | {pairs.digest()}
    assert len(digests) == 3


def test_a_model_trains_on_them(tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("a\ta\n", encoding="utf-8")
    data = {
        "files": tiny.generated("reverse", 50),
        "copies": {"merge": 0.5, "terms": 0.5, "glossary": str(tmp_path / "terms.tsv")},
    }
    told: list[str] = []
    settings = {**tiny.SETTINGS, "train.steps": 2, "data.hold_out": 5}
    package.train("transformer-tiny", data=[data], out=tmp_path / "run", set=settings, tell=told.append)
    config = run_config(tmp_path / "run")
    (corpus,) = [each for each in config.data.train if isinstance(each, TrainingCorpus)]
    assert corpus.copies.merge == 0.5 and Path(corpus.copies.glossary or "").is_absolute()
    (line,) = [line for line in told if line.startswith("training data: ")]
    assert int(line.split()[2]) > 55
    with pytest.raises(ConfigError, match="glossary belong together"):
        package.train("transformer-tiny", data=[{**data, "copies": {"terms": 0.5}}], out=tmp_path / "other", set=settings)
