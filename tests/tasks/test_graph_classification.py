"""Texts with edges between their words: training, controls, predicting, and what is said about bad input."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.helpers import tiny
from tests.tasks.test_classification import SETTINGS
from weft.data.corpus import Rows
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.runs.open_run import open_run
from weft.tasks.edges_between_words import read_edges
from weft.training import train_run
from weft.training.validate_and_save import Result

COLOURS = ("red", "green", "blue", "white")
GRAPH = {
    **SETTINGS,
    "data.tokenizer": {"kind": "words", "punctuation": False},
    "model.encoder_self": "gat",
    "model.position": "none",
    "task": {"kind": "classification", "graph": True, "pooling": "max"},
}


def write(path: Path, count: int, seed: int) -> Path:
    """All colours and a mark, in any order. The label is the colour that has an edge to the mark; the others form pairs."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        words = draw.sample([*COLOURS, "mark", "a", "b"], 7)
        label = draw.choice(COLOURS)
        others = [word for word in draw.sample(words, 7) if word not in (label, "mark")]
        pairs = [("mark", label), *zip(others[::2], others[1::2], strict=False)]
        edges = " ".join(f"{words.index(one)}-{words.index(other)}" for one, other in draw.sample(pairs, len(pairs)))
        lines.append(f"{' '.join(words)}\t{edges}\t{label}\n")
    path.write_text("".join(lines))
    return path


def train(out: Path, data: Path | str, settings: Mapping[str, Any] | None = None, **options: Any) -> Result:
    return train_run.train("transformer-tiny", out=out, data=str(data), set={**GRAPH, **(settings or {})}, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    data, valid = write(folder / "train.tsv", 800, 1), write(folder / "valid.tsv", 100, 2)
    result = train(folder / "run", data, valid=str(valid))
    assert result.scores["accuracy"] >= 95
    return folder / "run"


def test_the_label_is_in_the_edges(run: Path, weft: tiny.Shell, tmp_path: Path) -> None:
    """With the edges of another text, the score falls to that of a guess, one of four."""
    lines = [line.split("\t") for line in write(tmp_path / "test.tsv", 200, 3).read_text().splitlines()]
    edges = random.Random(0).sample([line[1] for line in lines], len(lines))
    shuffled = tmp_path / "shuffled.tsv"
    shuffled.write_text("".join(f"{text}\t{other}\t{label}\n" for (text, _, label), other in zip(lines, edges, strict=True)))
    inputs = tmp_path / "inputs.txt"

    def right(given: list[str]) -> int:
        inputs.write_text("".join(f"{line}\n" for line in given))
        said = weft("predict", run, inputs).splitlines()
        return sum(each == label for each, (_, _, label) in zip(said, lines, strict=True))

    assert right([f"{text}\t{own}" for text, own, _ in lines]) >= 190
    assert right([f"{text}\t{other}" for (text, _, _), other in zip(lines, edges, strict=True)]) < 90


def test_predictions_do_not_depend_on_the_batch(run: Path) -> None:
    translator = weft.load(run, device="cpu")
    texts = ["red mark green\t0-1", "a b red blue white mark green\t5-3 0-1", "green mark\t1-0", "\t", "mark red green\t0-2"]
    together = translator.translate(texts)
    alone = [translator.translate(text) for text in texts]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], abs=1e-5)
    assert together[3].text == ""


def test_a_text_without_edges_is_named(run: Path) -> None:
    warned: list[str] = []
    translator = weft.load(run, device="cpu", warn=warned.append)
    alone, empty = translator.translate(["mark red", "mark red\t"])
    assert alone.score == empty.score
    assert warned == ["line 1 has no edges; write them after a tab, as in 0-1 1-2"]


def test_a_corpus_has_the_edges_of_each_text(run: Path) -> None:
    opened = open_run(run)
    opened.task.prepare()
    rows: Rows = torch.tensor([3, 0, 7]).numpy()
    batch = opened.task.collate(opened.task.train, rows, budget=128, rounded=True)
    layout = batch.source.layout
    assert layout.graph.shape == (*layout.segments.shape, layout.segments.size(1))
    written = [line.split("\t") for line in (run.parent / "train.tsv").read_text().splitlines()]
    for row, number in enumerate(rows):
        places = read_edges(written[number][1], 7)
        edges = {*zip(places[::2], places[1::2], strict=True)}
        expected = {(i, i) for i in range(len(layout.graph[row]))} | edges | {(j, i) for i, j in edges}
        assert {(i, j) for i, j in layout.graph[row].nonzero().tolist()} == expected
    dummy = opened.task.dummy_batch(9, Sizes(20), 2)
    assert dummy.source.layout.graph.shape == (2, *[dummy.source.values.size(1)] * 2)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("0-3", "the edge 0-3 leads out of a text of 3 words"),
        ("0_1", "'0_1' is no edge"),
        ("-1-0", "'-1-0' is no edge"),
        ("0-" + 5000 * "1", f"'0-{38 * '1'}' is no edge"),
    ],
)
def test_wrong_edges_are_refused(run: Path, tmp_path: Path, edges: str, message: str) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text(f"red mark b\t0-1\tred\nred green mark\t{edges}\tgreen\n")
    with pytest.raises(DataError, match=f"'red green mark': {message}"):
        train(tmp_path / "run", f"{bad}#1,2,3")
    with pytest.raises(DataError, match=message):
        weft.load(run, device="cpu").translate(f"red green mark\t{edges}")


def test_what_cannot_follow_edges_is_refused(run: Path, tmp_path: Path) -> None:
    data = run.parent / "train.tsv"
    for settings, message in (
        ({"model.encoder_self": "full"}, "no layer of this model looks at the neighbours of a word"),
        ({"data.tokenizer": "bytes"}, r"each token must be a word; set data\.tokenizer"),
        ({"data.tokenizer": "words"}, r"each token must be a word; set data\.tokenizer"),
        ({"task": {"kind": "classification", "graph": True, "by_sentence": True}}, "reads sentences"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(tmp_path / "run", data, settings)
    two = tmp_path / "two.tsv"
    two.write_text("red mark\tred\n" * 9)
    with pytest.raises(DataError, match="this task reads 3: text, edges and label"):
        train(tmp_path / "run", two)
