"""Tagged sentences with edges between their words: training, controls, predicting, and what is said about bad input."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers import tiny
from tests.tasks.test_tagging import SETTINGS
from weft.errors import ConfigError, DataError
from weft.tasks.tagging.data import open_tagged
from weft.training import train_run

COLOURS = ("red", "green", "blue", "white")
GAT = {"kind": "transformer", "dim": 32, "layers": 2, "heads": 2, "feedforward": 64, "position": "none", "mixer": "gat"}
GRAPH: dict[str, Any] = {
    **{key: value for key, value in SETTINGS.items() if not key.startswith("model.encoder")},
    "model.encoder": GAT,
    "model.front.word_dropout": 0.0,
    "task.graph": True,
    "task.least_count": 1,
    "train.steps": 250,
}


def write(path: Path, count: int, seed: int, shuffled: bool = False) -> Path:
    """Colours and things in any order. The tag of a thing is the colour that it has an edge to. shuffled: to any colour."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        words = draw.sample([*COLOURS, "car", "house", "ball"], 7)
        for word in words:
            colour = draw.choice(COLOURS)
            other = draw.choice(COLOURS) if shuffled else colour
            lines.append(f"{word}\tcolour\t_\n" if word in COLOURS else f"{word}\t{colour}\t{words.index(other)}\n")
        lines.append("\n")
    path.write_text("".join(lines))
    return path


def train(out: Path, data: str, **changes: Any) -> None:
    train_run.train("tagger", out=out, data=data, set={**GRAPH, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    train(folder / "run", str(write(folder / "train.tsv", 300, 1)))
    return folder / "run"


def test_the_tags_are_in_the_edges(run: Path, weft: tiny.Shell, tmp_path: Path) -> None:
    """With edges to other colours, only one of four things is right, and all colours."""
    accuracies = []
    for shuffled in (False, True):
        file = write(tmp_path / "test.tsv", 100, 2, shuffled)
        said = weft("predict", run, file)
        tags = [[line.split("\t")[1] for line in text.splitlines() if line] for text in (said, file.read_text())]
        accuracies.append(sum(one == other for one, other in zip(*tags, strict=True)) / len(tags[0]))
    assert accuracies[0] > 0.95 and accuracies[1] == pytest.approx((4 + 3 / 4) / 7, abs=0.08)


def test_a_table_has_edges_in_its_third_column(tmp_path: Path) -> None:
    file = tmp_path / "tagged.tsv"
    file.write_text("a\tx\tA\t_\nb\ty\tB\t0 2\nc\tz\tC\t\n\n")
    ((source, tags),) = open_tagged(f"{file}#1,3,4", graph=True)
    assert source == "a\x1fb\x1fc\x1f\t1-0 1-2" and tags == "a\tA\nb\tB\nc\tC"
    assert [each for each, _ in open_tagged(f"{file}#1,3")] == ["a\x1fb\x1fc\x1f"]
    with pytest.raises(DataError, match="three numbers"):
        open_tagged(f"{file}#1,3", graph=True)


def test_predictions_do_not_depend_on_the_batch_and_use_the_edges(run: Path) -> None:
    warned: list[str] = []
    tagger = weft.load(run, device="cpu", warn=warned.append)
    texts = ["car red white\t0-1", "car red white\t2-0", "blue red house car green\t2-1 3-4", "", "car red white"]
    together = tagger.translate(texts)
    assert [each.text for each in together] == [tagger.translate(text).text for text in texts]
    assert [each.text.split()[1] for each in together[:2]] == ["red", "white"]
    assert [line.split("\t")[1] for line in together[2].text.splitlines()] == ["colour", "colour", "red", "green", "colour"]
    assert warned[0] == "line 5 has no edges; write them after a tab, as in 0-1 1-2"
    with pytest.raises(DataError, match="the edge 0-3 leads out of a text of 3 words"):
        tagger.translate("car red white\t0-3")


def test_what_cannot_follow_edges_is_refused(run: Path, tmp_path: Path) -> None:
    data = str(run.parent / "train.tsv")
    with pytest.raises(ConfigError, match="no layer of this model looks at the neighbours of a word"):
        train(tmp_path / "run", data, **{"model.encoder": {**GAT, "mixer": "full"}})
    with pytest.raises(ConfigError, match="this model reads subwords"):
        train(tmp_path / "run", data, **{"task.per_word": "first"})
    bad = tmp_path / "bad.tsv"
    bad.write_text("a\tA\t_\nb\tB\t2\n\n")
    with pytest.raises(DataError, match="'a b': the edge 1-2 leads out of a text of 2 words"):
        train(tmp_path / "run", str(bad))
    bad.write_text("a\tA\nb\tB\n\n")
    with pytest.raises(DataError, match="no column 3, only 2"):
        train(tmp_path / "run", str(bad))
