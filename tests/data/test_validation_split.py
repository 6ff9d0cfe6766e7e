"""Validation data that is held out of the training data: seeded, saved, and without a sentence in common."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.helpers import tiny
from weft.config.sections import load_config
from weft.data.formats import Pairs, open_pairs
from weft.data.validation_split import HELD_OUT, choose, split
from weft.errors import ConfigError, DataError

# Every third source occurs twice with different targets, and a few targets are very common.
PAIRS = [
    *[(f"source {n} {c}", f"target {n} {c}") for n in range(150) for c in "ab"],
    *[(f"Source  {n} a", f"another target of {n}") for n in range(0, 150, 3)],
    *[(f"greeting {n}", "hello") for n in range(40)],
    *[(f"target {n} b", f"source of a target {n}") for n in range(0, 150, 5)],
]


def normal(text: str) -> str:
    return " ".join(text.lower().split())


class Stream(Pairs):
    """Pairs that are made while they are read, and counted."""

    def __init__(self, count: int) -> None:
        super().__init__("stream")
        self.count, self.read = count, 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number in range(self.count):
            self.read += 1
            yield f"s {number}", f"t {number}"

    def digest(self) -> str:
        return str(self.count)


def write(folder: Path, form: str) -> str:
    """The pairs in a file of this form."""
    if form == "text":
        for side, name in enumerate(("a.src", "a.tgt")):
            (folder / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
        return f"{folder / 'a.src'},{folder / 'a.tgt'}"
    if form == "tsv.gz":
        with gzip.open(folder / "a.tsv.gz", "wt") as file:
            file.write("".join(f"{source}\t{target}\n" for source, target in PAIRS))
        return str(folder / "a.tsv.gz")
    lines = (json.dumps({"source": source, "target": target}) for source, target in PAIRS)
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return str(folder / "a.jsonl")


@pytest.mark.parametrize("form", ["text", "tsv.gz", "jsonl"])
def test_no_sentence_is_on_both_sides_of_the_split(form: str, tmp_path: Path) -> None:
    (remaining,), held = split([open_pairs(write(tmp_path, form))], tmp_path, 30, 1)
    kept, out = list(remaining), list(held)
    assert len(out) == 30 and set(out) <= set(PAIRS)
    sentences = {normal(text) for pair in out for text in pair}
    assert not [pair for pair in kept if sentences & {normal(text) for text in pair}]
    assert len(kept) == len(PAIRS) - 30, "pairs that share no sentence were preferred, so nothing else is lost"
    assert len({normal(source) for source, _ in out}) == 30


def test_the_file_of_the_run_decides(tmp_path: Path) -> None:
    pairs = [open_pairs(write(tmp_path, "text"))]
    (first,), held = split(pairs, tmp_path, 10, 1)
    (again,), same = split(pairs, tmp_path, 20, 2)
    assert list(same) == list(held) and list(again) == list(first) and again.digest() == first.digest()
    assert list(open_pairs(str(tmp_path / HELD_OUT))) == list(held)


def test_the_choice_follows_from_the_seed_and_not_from_the_order(tmp_path: Path) -> None:
    pairs = open_pairs(write(tmp_path, "text"))
    assert choose([pairs], 20, 1) == choose([pairs], 20, 1) != choose([pairs], 20, 2)
    turned = tmp_path / "turned.tsv"
    turned.write_text("".join(f"{source}\t{target}\n" for source, target in reversed(PAIRS)))
    assert choose([open_pairs(str(turned))], 20, 1) == choose([pairs], 20, 1)


def test_data_is_streamed_twice() -> None:
    stream = Stream(5_000)
    assert len(choose([stream], 50, 1)) == 50
    assert stream.read == 2 * 5_000


def test_common_sentences_are_given_up_only_to_a_limit(tmp_path: Path) -> None:
    labels = tmp_path / "labels.tsv"
    labels.write_text("".join(f"text {number}\t{'yes' if number % 2 else 'no'}\n" for number in range(100)))
    with pytest.raises(DataError, match=r"no pairs can be held out.*Give --valid"):
        choose([open_pairs(str(labels))], 10, 1)
    assert len(choose([open_pairs(str(labels))], 10, 1, sides=(0,))) == 10
    assert len(choose([Stream(100)], 80, 1)) == 20, "never more than a fifth of the pairs"


@pytest.mark.parametrize(("count", "few"), [(1, "there is only one pair"), (2, "there are only 2 pairs")])
def test_a_few_pairs_are_too_few_to_hold_any_out(count: int, few: str) -> None:
    with pytest.raises(DataError, match=f"stream: {few}, too few to hold any out for validation. Give more, or --valid FILES"):
        choose([Stream(count)], 5, 1)


def test_a_fixed_recipe_holds_out_on_request(tmp_path: Path) -> None:
    said: list[str] = []
    run, small = tmp_path / "run", {**tiny.SETTINGS, "train.steps": 2, "data.hold_out": 12}
    result = weft.train("transformer-tiny", data=write(tmp_path, "jsonl"), out=run, set=small, tell=said.append)
    assert result.scores["loss"] > 0 and result.weights == "last"
    assert f"held out 12 pairs for validation (seed 1): {run / HELD_OUT}" in said
    assert len(list(open_pairs(str(run / HELD_OUT)))) == 12
    # Without the setting all pairs are trained on, as before.
    small["data.hold_out"] = 0
    assert weft.train("transformer-tiny", data=write(tmp_path, "jsonl"), out=tmp_path / "all", set=small).scores == {}
    assert not (tmp_path / "all" / HELD_OUT).exists()


def test_a_classifier_holds_out_texts_whose_labels_remain(tmp_path: Path) -> None:
    labels = tmp_path / "labels.tsv"
    labels.write_text("".join(f"text {number}\t{'yes' if number % 2 else 'no'}\n" for number in range(100)))
    sizes = {"model.dim": 16, "model.heads": 2, "model.feedforward": 32, "model.encoder_layers": 1, "train.threads": 1}
    settings = {**sizes, "data.hold_out": 10, "train.steps": 1, "train.device": "cpu"}
    result = weft.train("classifier-bytes", data=str(labels), out=tmp_path / "run", set=settings)
    assert 0 <= result.scores["accuracy"] <= 100


def test_running_text_has_no_pairs_to_hold_out(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a few words\n" * 50)
    with pytest.raises(ConfigError, match=r"data\.hold_out: running text has no pairs"):
        weft.train("lm-tiny", data=str(tmp_path / "text.txt"), out=tmp_path / "run", set={"data.hold_out": 5})
    assert not (tmp_path / "run").exists()


def test_recipes_hold_nothing_out_by_default() -> None:
    assert load_config("transformer-small").data.hold_out == 0


def test_validation_on_the_training_data_is_reported(tmp_path: Path) -> None:
    rows = "".join(f"a {number}\tb {number}\n" for number in range(40))
    for name in ("train.tsv", "copy.tsv"):
        (tmp_path / name).write_text(rows)
    (tmp_path / "other.tsv").write_text("a z\tb z\n")
    settings = {**tiny.SETTINGS, "train.steps": 1, "train.save_every": 1}
    for name, count in (("train.tsv", 1), ("copy.tsv", 1), ("other.tsv", 0)):
        said: list[str] = []
        files = {"data": str(tmp_path / "train.tsv"), "valid": str(tmp_path / name)}
        weft.train("transformer-tiny", out=tmp_path / name.removesuffix(".tsv"), set=settings, tell=said.append, **files)
        assert sum("is both training and validation data" in line for line in said) == count
