"""Sequences of bit vectors: how they are read and generated, training on them, and what is said when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.data.formats import open_pairs
from weft.errors import DataError
from weft.runs.translator import load_trained
from weft_studies.bits.data import DEVIATION, MEAN, read_frames, read_target, write_target

NTM = {"kind": "composed", "front": "vectors", "encoder": {"kind": "ntm", "dim": 16, "slots": 6, "slot_width": 6}}
RNN = {"kind": "composed", "front": "vectors", "encoder": {"kind": "rnn", "dim": 32, "bidirectional": False, "dropout": 0.0}}


def settings(model: dict[str, Any], width: int, steps: int) -> dict[str, Any]:
    return {
        "model": model,
        "task.width": width,
        "train.steps": steps,
        "train.batch_tokens": 256,
        "train.schedule": {"kind": "constant", "rate": 1e-2},
        "train.validate_every": 0,
        "train.tensorboard": False,
        "train.device": "cpu",
        "train.threads": 1,
    }


def test_frames_have_a_channel_for_each_bit_and_two_for_marks() -> None:
    frames, blanks = read_frames("01 | ? *2 11 _ _", 2)
    assert blanks == 2
    number = np.float32((2 - MEAN) / DEVIATION)
    assert frames.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, number], [1, 1, 0, 0], [0] * 4, [0] * 4]
    target = read_target("01 . 11", 2)
    assert target.tolist() == [[0, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert write_target(target.astype(bool).tolist()) == "01 . 11"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("01 11 |", "must end with blanks"),
        ("01 _ | _", "must end with blanks"),
        ("011 | _", "'011' is not a vector of 2 bits"),
        ("0x | _", "'0x' is not a vector of 2 bits"),
    ],
)
def test_a_bad_sequence_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_frames(text, 2)


def test_generated_targets_follow_from_their_sources() -> None:
    for source, target in open_pairs("generated:bits_copy?count=50"):
        said, blanks = source.split(" | ")
        assert target == said
        assert len(said.split()) == len(blanks.split()) <= 20
    for source, target in open_pairs("generated:bits_repeat?count=50"):
        said, _, rest = source.partition(" *")
        assert target.split() == said.split() * int(rest.split()[0]) + ["."]
        assert rest.split()[1:] == ["_"] * len(target.split())
    for source, target in open_pairs("generated:bits_recall?count=50"):
        items, question = source.split(" ? ")
        listed = [item.split() for item in items.removeprefix("| ").split(" | ")]
        assert listed[listed.index(question.split()[:3]) + 1] == target.split()


def test_generated_languages_are_completed() -> None:
    for source, target in open_pairs("generated:bits_reverse?count=30"):
        assert source.split(" | ")[0].split() == target.split()[::-1]
    for kind, ratio in (("anbn", 1), ("anb2n", 2)):
        for source, target in open_pairs(f"generated:bits_{kind}?count=30&longest=7"):
            begin, blanks = source.split(" | ")
            count = target.split().index(".")
            assert count == ratio * begin.split().count("10") <= ratio * 7
            assert target == " ".join(["01"] * count + ["."] * (len(blanks.split()) - count))
    depths = set()
    for source, target in open_pairs("generated:bits_dyck2?count=40&shortest=3&longest=12"):
        whole = source.split(" | ")[0] + " " + target.partition(" .")[0]
        brackets = dict(zip(("1000", "0100", "0010", "0001", "."), "([)] ", strict=True))
        text = "".join(brackets[word] for word in whole.split()).strip()
        depths.add(target.split().index("."))
        while text != (text := text.replace("()", "").replace("[]", "")):
            pass
        assert not text
    assert len(depths) > 3


@pytest.mark.parametrize("kind", ["anbn", "anb2n"])
def test_every_count_has_test_data(kind: str) -> None:
    for source, _ in open_pairs(f"generated:bits_{kind}?count=3&shortest=100&longest=100&split=test"):
        assert source.split().count("10") == 100


def test_the_longest_sequences_are_as_long_as_asked() -> None:
    assert {len(target.split()) for _, target in open_pairs("generated:bits_copy?shortest=60&longest=60&count=5")} == {60}


def test_it_trains_scores_and_fills_in_blanks(tmp_path: Path) -> None:
    data = tmp_path / "copy.tsv"
    data.write_text("".join(f"{n:02b} | _\t{n:02b}\n" for n in range(4)) * 8)
    result = weft.train("ntm-copy", out=tmp_path / "run", data=str(data), valid=str(data), set=settings(NTM, 2, 80))
    assert result.scores["bit_errors"] < 5
    trained = load_trained(tmp_path / "run", device="cpu")
    assert trained.score(str(data))["exact"] == pytest.approx(result.scores["exact"])
    found = [each.text for each in trained.stream(["10 | _", "", "01 | _", "11 | _"])]
    assert found[1] == ""
    with pytest.raises(DataError, match="line 2: '1' is not a vector of 2 bits"):
        list(trained.stream(["10 | _", "1 | _"]))
    assert sum(a == b for a, b in zip(found, ["10", "", "01", "11"], strict=True)) >= 3


def test_any_encoder_can_be_trained_on_it(tmp_path: Path) -> None:
    data = {"data": "generated:bits_recall?count=20&longest=2", "valid": "generated:bits_recall?count=9&longest=2&split=valid"}
    result = weft.train("ntm-copy", out=tmp_path / "run", set=settings(RNN, 6, 2), **data)
    assert 0 < result.scores["bit_errors"] < 100


def test_blanks_must_match_the_target(tmp_path: Path) -> None:
    data = tmp_path / "bad.tsv"
    data.write_text("01 | _\t01 11\n")
    with pytest.raises(DataError, match=r"has 1 blanks, but '01 11' has 2 vectors"):
        weft.train("ntm-copy", out=tmp_path / "run", data=str(data), set=settings(NTM, 2, 1))
