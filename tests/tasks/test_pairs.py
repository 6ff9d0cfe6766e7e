"""Two texts with a label or a number: data of three columns, training, prediction, explanation, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as library
from tests.helpers import tiny
from weft.data.formats import open_pairs
from weft.errors import ConfigError, DataError
from weft.explain.html_page import explain_page
from weft.runs.translator import Translator
from weft.tasks.pairs.data import FIELDS, FORMAT, find_numbers
from weft.tasks.pairs.metrics import MeanSquaredError, Pearson, Spearman, ranks
from weft.tasks.two_texts import read_two_texts

COLOURS = ("red", "green", "blue", "white", "black")
SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model")},
    "model": {"kind": "composed", "encoder": {"kind": "identity", "dim": 32}},
    "train.steps": 150,
    "train.batch_tokens": 1024,
    "train.best_by": "loss",
}
TASK = {"kind": "pairs", "comparison": {"kind": "decomposable", "hidden": 32}, "hidden": 32, "dropout": 0.0}


def rows(seed: int = 0, count: int = 400) -> Iterator[tuple[str, str, int, str]]:
    """Two texts of colours, how many colours they share, and whether they share any."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        first, second = (random.permutation(COLOURS)[: random.integers(1, 4)] for _ in range(2))
        shared = len({*first} & {*second})
        yield " ".join(first), " ".join(second), shared, "some" if shared else "none"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    file.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows()))
    return str(file)


def train(out: Path, data: str, **task: Any) -> Translator:
    library.train("transformer-tiny", data=data, valid=data, out=out, set={**SETTINGS, "task": {**TASK, **task}})
    return library.load(out, device="cpu")


@pytest.fixture(scope="module")
def labelled(table: str, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return train(tmp_path_factory.mktemp("labelled") / "run", f"{table}#1,2,4")


@pytest.fixture(scope="module")
def numbered(table: str, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return train(tmp_path_factory.mktemp("numbered") / "run", f"{table}#1,2,3", output="number")


def test_attention_between_the_texts_learns_what_neither_text_says_alone(labelled: Translator, table: str) -> None:
    assert labelled.score(f"{table}#1,2,4")["accuracy"] > 95
    swapped = f"{table}#1,1,4"  # the second text is hidden: every text shares something with itself
    assert labelled.score(swapped)["accuracy"] < 90


def test_a_number_is_learnt_in_its_own_units(numbered: Translator, table: str) -> None:
    scores = numbered.score(f"{table}#1,2,3")
    assert scores["pearson"] > 95 and scores["mse"] < 0.1
    found = numbered.translate(["red green blue\tblue green red", "red\tblue"])
    assert found[0].score > 2.5 > 0.5 > found[1].score and float(found[0].text) == pytest.approx(found[0].score, abs=1e-3)


def test_evaluation_has_the_confusion_matrix_or_the_correlations(
    labelled: Translator, numbered: Translator, table: str
) -> None:
    document = library.evaluate(labelled.task.run, f"{table}#1,2,4").document()
    assert document["confusion"]["columns"] == ["true \\ predicted", "none", "some"]
    metrics = library.evaluate(numbered.task.run, f"{table}#1,2,3").document()["metrics"]
    assert [*metrics] == ["Pearson", "Spearman", "MSE"] and not metrics["MSE"]["higher_is_better"]


def test_inputs_are_lines_with_a_tab_or_json_objects(labelled: Translator) -> None:
    same = ["red\tred green", '{"premise": "red", "hypothesis": "red green"}', '{"text1": "red", "text2": "red green"}', ""]
    warned: list[str] = []
    found = [each.text for each in library.load(labelled.task.run, device="cpu", warn=warned.append).stream(same)]
    assert found == ["some", "some", "some", ""] and not warned


def test_a_file_of_predictions_may_have_more_columns(
    labelled: Translator, table: str, tmp_path: Path, weft: tiny.Shell
) -> None:
    lines = weft("predict", labelled.task.run, table).splitlines()
    assert sum(line == row[3] for line, row in zip(lines, rows(), strict=True)) > 380
    (tmp_path / "x.jsonl").write_text(json.dumps({"sentence1": "red", "sentence2": "blue"}) + "\n")
    assert weft("predict", labelled.task.run, tmp_path / "x.jsonl") == "none\n"


@pytest.mark.parametrize("comparison", ["siamese", "decomposable", "esim", "joined"])
def test_a_prediction_does_not_depend_on_its_batch_and_is_explained(comparison: str, table: str, tmp_path: Path) -> None:
    encoder = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "feedforward": 16}
    pooling = {"pooling": {"kind": "self_attentive"}} if comparison == "siamese" else {}
    options = {"train.steps": 2, "model": {"kind": "composed", "encoder": encoder}}
    task = {**TASK, "comparison": {"kind": comparison, **pooling}}
    library.train("transformer-tiny", data=f"{table}#1,2,4", out=tmp_path / "run", set={**SETTINGS, **options, "task": task})
    run = library.load(tmp_path / "run", device="cpu")
    several = run.translate(["red\tgreen", "white black\tblue red green", "red blue green\twhite"])
    assert run.translate("white black\tblue red green").score == pytest.approx(several[1].score, abs=1e-5)
    page = explain_page([run.explain("white black\tblue red green")])
    shown = {"siamese": "<ol><li>", "joined": "layer 1, the mean of all heads"}.get(
        comparison, "the first text looks at the second"
    )
    assert shown in page and "<meter" in page


def test_attention_weights_have_a_row_for_each_word(labelled: Translator) -> None:
    found = labelled.translate("white black\tblue red green", attention=True)
    assert found.sentences == [["white", "black", "</s>"], ["blue", "red", "green", "</s>"]]
    assert found.attention["first"].shape == (1, 3, 4) and found.attention["second"].shape == (1, 4, 3)
    np.testing.assert_allclose(found.attention["first"].sum(-1), 1, atol=1e-5)


def test_an_ensemble_averages_probabilities_and_numbers(labelled: Translator, numbered: Translator) -> None:
    for run in (labelled, numbered):
        two = library.load([run.task.run, run.task.run], device="cpu")
        assert two.translate("red\tgreen red").score == pytest.approx(run.translate("red\tgreen red").score, abs=1e-5)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("red", "an input has two texts, a premise and a hypothesis, and there are 1"),
        ("red\tblue\tgreen", "and there are 3"),
        ("red\t ", "the hypothesis is empty"),
        ('{"premise": "red"}', "there is no 'hypothesis'"),
        ('{"premise": "red", ', "not valid JSON"),
    ],
)
def test_an_input_that_is_not_two_texts_is_refused(line: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_two_texts(line, FIELDS)


def test_a_table_of_another_width_needs_a_choice(tmp_path: Path) -> None:
    def message(width: int) -> str:
        file = tmp_path / f"{width}.tsv"
        file.write_text(
            "".join("\t".join(row[:width]) + "\n" for row in (("a dog", "a cat", f"{n}.5", "no") for n in range(9)))
        )
        with pytest.raises(DataError) as raised:
            FORMAT.check(FORMAT.open(str(file)), lambda message: None)
        return str(raised.value)

    assert "has 4 columns, and this task reads 3: premise, hypothesis and label" in message(4)
    assert "#1,2,4" in message(4)
    assert "has 2 columns" in message(2)


def test_several_columns_are_chosen_by_number_or_name_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x\ta b\tc d\t3\tyes\n")
    (tmp_path / "n.tsv").write_text("id\tone\ttwo\tscore\nx\ta b\tc d\tyes\n")
    (tmp_path / "a.csv").write_text('premise,hypothesis,label,id\n"a b","c d",yes,7\n')
    (tmp_path / "a.jsonl").write_text('{"premise": "a b", "hypothesis": "c d", "gold": {"label": "yes"}}\n')
    for spec in ("a.tsv#2,3,5", "n.tsv#one,two,score", "a.csv", "a.jsonl#premise,hypothesis,gold.label"):
        assert [*open_pairs(str(tmp_path / spec), FIELDS)] == [("a b\tc d", "yes")], spec
    assert open_pairs(f"{tmp_path}/a.tsv#2,3,5", FIELDS).digest() != open_pairs(f"{tmp_path}/a.tsv#2,3,4", FIELDS).digest()


def test_three_columns_are_refused_by_tasks_that_read_two(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\tc\n")
    with pytest.raises(DataError, match=r"3 columns are chosen, and this task reads two.*task.kind=pairs"):
        open_pairs(f"{tmp_path}/a.tsv#1,2,3")
    with pytest.raises(DataError, match="2 columns are chosen, and this task reads three: premise, hypothesis and label"):
        open_pairs(f"{tmp_path}/a.tsv#1,2", FIELDS)
    (tmp_path / "b.txt").write_text("a\n")
    with pytest.raises(DataError, match="two aligned files have no third column"):
        open_pairs(f"{tmp_path}/b.txt,{tmp_path}/b.txt", FIELDS)


def test_a_label_that_is_no_number_is_named_with_its_pair(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\t1\nc\td\tmuch\n")
    with pytest.raises(DataError, match=r"a.tsv, pair 2: 'much' is not a number; for labels, set task.output: label"):
        find_numbers([open_pairs(f"{tmp_path}/a.tsv", FIELDS)])
    (tmp_path / "a.tsv").write_text("a\tb\t1\nc\td\t1.0\n")
    with pytest.raises(DataError, match="no two different numbers"):
        find_numbers([open_pairs(f"{tmp_path}/a.tsv", FIELDS)])


def test_one_stream_needs_room_for_both_texts(table: str, tmp_path: Path) -> None:
    encoder = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "position": "learned", "max_length": 40}
    task = {"kind": "pairs", "comparison": {"kind": "joined"}}
    sets = {**SETTINGS, "model": {"kind": "composed", "encoder": encoder}, "task": task, "data.max_length": 30}
    with pytest.raises(ConfigError, match=r"data\.max_length"):
        library.train("transformer-tiny", data=f"{table}#1,2,4", out=tmp_path / "run", set=sets)


def test_correlations_equal_numpy_and_ties_share_ranks() -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=50).round(1), (random.normal(size=50) + 3).round(1)
    texts = [[str(value) for value in values] for values in (x, y)]

    def value(metric: Any) -> float:
        return metric.score(metric.count(*texts)).value

    assert value(Pearson()) == pytest.approx(100 * np.corrcoef(x, y)[0, 1])
    brute = [[sum(b < a for b in v) + (sum(b == a for b in v) - 1) / 2 for a in v] for v in (x, y)]
    np.testing.assert_allclose(ranks(x), brute[0])
    assert value(Spearman()) == pytest.approx(100 * np.corrcoef(*brute)[0, 1])
    assert value(MeanSquaredError()) == pytest.approx(((x - y) ** 2).mean())
    assert Pearson().score(Pearson().count(["1"] * 50, texts[1])).value == 0
