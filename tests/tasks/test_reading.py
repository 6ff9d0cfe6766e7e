"""Passages and questions: files, answers in a passage, training, prediction, explanation, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft as library
from tests.helpers import tiny
from weft.data.generators import split_of
from weft.errors import DataError
from weft.explain.html_page import explain_page
from weft.runs.translator import Translator
from weft.tasks.reading.data import find_answers, open_passages, words_of
from weft.tasks.reading.metrics import AnswerF1, ExactAnswer

RNN = {"kind": "rnn", "dim": 24, "embedding": 32, "dropout": 0.0}
SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith(("model", "data"))},
    "data.tokenizer": "characters",
    "data.vocabulary": 300,
    "model": {"kind": "composed", "front": {"kind": "words", "spelling_width": 16, "word_dropout": 0.0}, "encoder": RNN},
    "train.steps": 120,
    "train.batch_tokens": 512,
    "train.best_by": "exact",
}
BIDAF = {"kind": "bidaf", "aligned": True, "modeling": RNN, "ending": RNN}
TASK = {"kind": "reading", "reader": BIDAF, "dropout": 0.0, "least_count": 1}
TOWNS = ("Rome", "Oslo", "Bonn", "Kiel", "Genoa", "Turin")
PEOPLE = ("Ann", "Bob", "Eve", "Tom")


def examples(count: int = 240) -> list[dict[str, Any]]:
    """Who lives where: two people, in either order."""
    rows = []
    for number in range(count):
        one, other = PEOPLE[number % 4], PEOPLE[(number + 1 + number // 4 % 3) % 4]
        here, there = TOWNS[number % 6], TOWNS[(number + 1 + number // 6 % 5) % 6]
        asked, answer = ((one, here), (other, there))[number // 7 % 2]
        rows.append(
            {"passage": f"{one} lives in {here}. {other} lives in {there}.", "question": f"Where is {asked}?", "answer": answer}
        )
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("passages") / "passages.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in examples()))
    return str(file)


def train(out: Path, data: str, **task: Any) -> Translator:
    library.train("transformer-tiny", data=data, valid=data, out=out, set={**SETTINGS, "task": {**TASK, **task}})
    return library.load(out, device="cpu")


@pytest.fixture(scope="module")
def trained(data: str, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return train(tmp_path_factory.mktemp("reader") / "run", data)


def test_an_answer_is_found_where_the_question_points(trained: Translator, data: str) -> None:
    assert trained.score(data)["exact"] > 90
    found = trained.translate("Eve lives in Oslo. Tom lives in Rome.\tWhere is Tom?")
    assert (found.text, found.start, found.tokens) == ("Rome", 32, ["Rome"])
    record = json.dumps({"passage": "Eve lives in Oslo. Tom lives in Rome.", "question": "Where is Eve?"})
    assert trained.translate(record).text == "Oslo"


def test_a_prediction_does_not_depend_on_its_batch(trained: Translator) -> None:
    lines = ["Eve lives in Oslo. Tom lives in Rome.\tWhere is Tom?", "Ann lives in Kiel.\tWhere is Ann now, and why?", ""]
    several = trained.translate(lines)
    assert trained.translate(lines[0]).score == pytest.approx(several[0].score, abs=1e-5)
    assert several[2].text == ""


def test_a_page_shows_both_attentions(trained: Translator) -> None:
    page = explain_page([trained.explain("Eve lives in Oslo. Tom lives in Rome.\tWhere is Tom?")])
    for text in (
        "the question looks at the passage",
        "each word of the passage looks at the question",
        "the first word of the answer",
    ):
        assert text in page
    found = trained.translate("Eve lives in Oslo.\tWhere is Eve?", attention=True)
    assert found.attention["passage"].shape == (1, 5, 4) and found.attention["question"].shape == (1, 1, 5)


def test_evaluation_and_the_command_line(trained: Translator, data: str, weft: tiny.Shell) -> None:
    document = json.loads(weft("evaluate", trained.task.run, "--data", data, "--json"))
    assert document["metrics"]["exact"]["value"] > 90 and document["metrics"]["F1"]["value"] > 90
    lines = weft("predict", trained.task.run, data).splitlines()
    assert sum(line == row["answer"] for line, row in zip(lines, examples(), strict=True)) > 216


def test_a_cloze_question_is_answered_by_a_sum_over_places(tmp_path: Path) -> None:
    rows = [
        {"passage": f"{a} met {b} . {a} left", "question": "@blank left", "answer": a} for a in PEOPLE for b in PEOPLE if a != b
    ]
    (tmp_path / "cloze.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 10))
    encoder = {**RNN, "embedding": 32}
    model = {"kind": "composed", "front": SETTINGS["model"]["front"], "encoder": encoder}
    sets = {**SETTINGS, "model": model, "task": {**TASK, "reader": {"kind": "attention_sum"}}}
    library.train("transformer-tiny", data=str(tmp_path / "cloze.jsonl"), out=tmp_path / "run", set=sets)
    run = library.load(tmp_path / "run", device="cpu")
    found = run.translate("Ann met Bob . Ann left\t@blank left")
    assert found.text == "Ann" and found.probabilities["ann"] == pytest.approx(
        sum(share for word, share in zip(found.words, found.pointed[0], strict=True) if word == "Ann")
    )
    assert "the word that fills the blank" in explain_page([run.explain("Ann met Bob . Ann left\t@blank left")])


def test_squad_tables_and_json_lines_hold_the_same(tmp_path: Path) -> None:
    answers = [
        {"text": "in Rome", "answer_start": 10},
        {"text": "Rome", "answer_start": 13},
        {"text": "Rome", "answer_start": 13},
    ]
    asked = [{"question": "Where?", "answers": answers}, {"question": "Why?", "answers": []}]
    squad = {"data": [{"paragraphs": [{"context": "Ann lives in Rome.", "qas": asked}]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"context": "Ann lives in Rome.", "question": "Where?", "answers": ["in Rome", "Rome"]})
    )
    (tmp_path / "a.tsv").write_text("7\tAnn lives in Rome.\tWhere?\tRome\n")
    source = "Ann lives in Rome.\tWhere?"
    assert [*open_passages(str(tmp_path / "a.json"))] == [(source, "in Rome\nRome")]
    assert [*open_passages(str(tmp_path / "a.jsonl"))] == [(source, "in Rome\nRome\n")]
    assert [*open_passages(f"{tmp_path}/a.tsv#2,3,4")] == [(source, "Rome")]
    (tmp_path / "b.json").write_text('{"data": [{}]}')
    with pytest.raises(DataError, match="not a file in the format of SQuAD"):
        [*open_passages(str(tmp_path / "b.json"))]


def test_answers_are_found_word_by_word_at_every_place() -> None:
    passage = words_of("Rome, not New Rome: he likes rome.")
    assert find_answers(passage, ["Rome"]) == [(0, 0), (4, 4), (8, 8)]
    assert find_answers(passage, ["new Rome", "like", ""]) == [(3, 4)]


def test_questions_without_an_answer_in_the_passage_are_left_out_and_counted(trained: Translator) -> None:
    texts = [("Ann lives in Rome.\tWhere?", answer) for answer in ("Paris", "Rome", "Rom")] + [("\t", "Rome")]
    columns, reasons = trained.task.reader.encoding(drop_duplicates=False).encode(texts)
    assert columns["span"] == [[3, 3]] and columns["sentences"] == [[5, 2]]
    assert reasons["with an answer that is not in the passage"] == 2 and reasons["with an empty side"] == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a passage", "a passage and a question, and there are 1"),
        ("a\t ", "the question is empty"),
        ('{"question": "a"}', "no 'passage'"),
    ],
)
def test_an_input_that_is_no_passage_with_a_question_is_refused(trained: Translator, line: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        trained.translate(line)


def test_answers_are_scored_as_squad_scores_them() -> None:
    exact, f1 = ExactAnswer(), AnswerF1()
    ours, theirs = ["The red car!", "red", "", "a b"], ["red car", "blue\nRed", "", "a b c d"]
    assert exact.count(ours, theirs)[:, 0].tolist() == [1, 1, 1, 0]
    assert f1.count(ours, theirs)[:3, 0].tolist() == [1, 1, 1]
    assert f1.count(["x y"], ["x z w"])[0, 0] == pytest.approx(2 / 5)


@pytest.mark.parametrize("kind", ["passages", "distractors"])
def test_names_of_generated_passages_belong_to_one_split(kind: str) -> None:
    for split in ("train", "valid", "test"):
        for source, answer in open_passages(f"generated:{kind}?count=20&split={split}"):
            passage, question = source.split("\t")
            names = {word for word in words_of(passage) if word[0].isupper() and word not in ("The", "A")}
            assert names and all(split_of(f"name {name}") == split for name in names)
            assert answer in words_of(passage) and question.endswith("?")
