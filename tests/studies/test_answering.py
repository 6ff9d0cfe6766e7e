"""Answering questions about stories: generated and own data, training, scoring, predicting, and what is said when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers import tiny
from weft.data.batch import EOS
from weft.data.formats import open_pairs
from weft.data.generators import split_of
from weft.data.tokenizers.word_character_byte import WordTokenizer
from weft.errors import DataError
from weft.runs.translator import load_trained
from weft_studies.answering.babi import TASKS
from weft_studies.answering.data import StoryReader, open_stories, read_story

SETTINGS: dict[str, Any] = {
    "train.steps": 300,
    "train.batch_tokens": 1024,
    "train.schedule": {"kind": "cosine", "rate": 3e-2, "warmup": 20},
    "train.validate_every": 0,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
    "model.hops": 2,
    "task.linear_start": 50,
}


def stories(task: int, split: str, count: int = 300) -> str:
    return f"generated:babi?task={task}&count={count}&split={split}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("answering") / "run"
    data = {"data": stories(1, "train", 2000), "valid": stories(1, "valid")}
    result = weft.train("memory-network", out=out, set=SETTINGS, **data)
    assert result.scores["accuracy"] > 85
    return out


# ---- data


@pytest.mark.parametrize("task", TASKS)
def test_no_story_of_training_occurs_in_validation_or_test(task: int) -> None:
    told = {}
    for split in ("train", "valid", "test"):
        pairs = list(open_pairs(stories(task, split, 100)))
        assert len(pairs) == 100
        told[split] = {tuple(read_story(source)[:-1]) for source, _ in pairs}
        assert all(split_of(f"babi{task} " + "\t".join(facts)) == split for facts in told[split])
    assert not told["train"] & (told["valid"] | told["test"])
    assert not told["valid"] & told["test"]
    assert list(open_pairs(stories(task, "test", 3))) == list(open_pairs(stories(task, "test", 100)))[:3]


def test_a_wrong_task_is_refused() -> None:
    with pytest.raises(DataError, match="there is no task 21; tasks are numbered from 1 to 20"):
        next(iter(open_pairs("generated:babi?task=21")))
    for spec in ("generated:babi", "generated:copy?task=2"):
        with pytest.raises(DataError, match="`task` is the number of a task of babi"):
            open_pairs(spec)


def test_a_story_is_json_or_tabs_or_plain_text() -> None:
    expected = ["Mary went home.", "John slept.", "Where is Mary?"]
    record = {"story": expected[:2], "question": expected[2]}
    assert read_story(json.dumps(record)) == read_story("\t".join(expected)) == read_story(" ".join(expected)) == expected
    assert read_story(json.dumps({**record, "story": "Mary went home. John slept."})) == expected
    assert read_story("Mr. X slept.\tWho?") == ["Mr. X slept.", "Who?"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"story": ["A."], "question": "B?"}', "line 2: there is no `answer`"),
        ('{"story": ["A."], "answer": "c"}', "line 2: there is no `question`"),
        ('{"story": 3, "question": "B?", "answer": "c"}', "line 2: `story` must be a text or a list of sentences, not 3"),
        ('{"story": [', "line 2: this story: not valid JSON"),
        ("A. B? c", "line 2: each line must be a JSON object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"story": ["A."], "question": "B?", "answer": 7}\n' + line + "\n")
    pairs = iter(open_stories(str(path)))
    assert next(pairs) == ("A.\tB?", "7")
    with pytest.raises(DataError, match=message.replace("[", r"\[")):
        next(pairs)


def test_of_a_long_story_the_latest_sentences_are_kept() -> None:
    words = WordTokenizer()
    words.train(["a b c d e f"], 20)
    a, _, c, d, e, f = words.encode("a b c d e f")
    assert StoryReader(words, 7).encode_stories([["a b", "c", "d e", "f"], [], ["a"]]) == [
        [c, EOS, d, e, EOS, f, EOS],
        [],
        [a, EOS],
    ]
    assert StoryReader(words, 4).encode_stories([["a b", "c d e f"]]) == [[c, d, e, EOS]]


# ---- the task


def test_answers_and_the_facts_looked_at(run: Path) -> None:
    trained = load_trained(run, device="cpu")
    facts = ["Mary went to the kitchen.", "John moved to the garden.", "Mary travelled to the office."]
    given = [" ".join([*facts, "Where is John?"]), "", json.dumps({"story": facts[:2], "question": "Where is Mary?"})]
    garden, nothing, kitchen = trained.stream(given, attention=True, n_best=2)
    assert (garden.text, nothing.text, kitchen.text) == ("garden", "", "kitchen")
    assert garden.facts == facts
    assert [len(hop) for hop in kitchen.hops] == [2, 2]
    assert all(sum(hop) == pytest.approx(1, abs=1e-5) for hop in garden.hops)
    assert max(range(3), key=lambda fact: garden.hops[-1][fact]) == 1
    assert garden.attention["hops"].shape == (2, 1, 3)
    assert len(garden.alternatives) == 1
    assert garden.document()["facts"][1]["fact"] == facts[1]
    with pytest.raises(DataError, match="line 2: there is no `question`"):
        list(trained.stream([given[0], '{"story": []}']))
    alone = [next(iter(trained.stream([line]))).score for line in (given[0], given[2])]
    assert alone == pytest.approx([garden.score, kitchen.score], abs=1e-5)


def test_the_score_of_evaluate_is_that_of_the_answers(run: Path) -> None:
    trained, data = load_trained(run, device="cpu"), stories(1, "test", 200)
    pairs = list(open_pairs(data))
    right = sum(found.text == answer for found, (_, answer) in zip(trained.stream([s for s, _ in pairs]), pairs, strict=True))
    assert trained.score(data)["accuracy"] == pytest.approx(100 * right / len(pairs))


def test_own_data_and_any_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.jsonl"
    lines = [{"story": [f"box {i % 5} holds a {i % 3}"], "question": "what", "answer": f"a {i % 3}"} for i in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = {"kind": "transformer", "dim": 16, "heads": 2, "feedforward": 32, "encoder_layers": 1, "decoder_layers": 1}
    settings = {key: value for key, value in SETTINGS.items() if not key.startswith("model")} | {"model": model}
    settings["train.steps"] = 60
    result = weft.train("memory-network", out=tmp_path / "run", data=str(path), valid=str(path), set=settings)
    assert result.scores["accuracy"] > 90
    shell = tiny.Shell(capsys, monkeypatch)
    assert "accuracy" in shell("evaluate", tmp_path / "run", "--data", path, "--device", "cpu")
    assert shell("predict", tmp_path / "run", path, "--device", "cpu").splitlines()[:3] == ["a 0", "a 1", "a 2"]


def test_an_answer_unseen_in_training_is_refused(tmp_path: Path) -> None:
    for name, answers in (("train", "xz"), ("valid", "y")):
        records = [{"story": ["a b"], "question": "c", "answer": answer} for answer in answers]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    data = {"data": str(tmp_path / "train.jsonl"), "valid": str(tmp_path / "valid.jsonl")}
    with pytest.raises(DataError, match=r"valid.jsonl, pair 1: the label 'y' does not occur in the training data"):
        weft.train("memory-network", out=tmp_path / "run", set=SETTINGS, **data)
