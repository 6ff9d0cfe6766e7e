"""Documents: from JSON lines to sentences, batches, labels and weights; several labels; and what is said about bad input."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers import tiny
from weft.config.sections import Config
from weft.data.batch import NO_LABEL
from weft.data.formats import open_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.errors import ConfigError, DataError
from weft.explain.html_page import Section
from weft.models.base import Sizes
from weft.tasks.base import TaskContext
from weft.tasks.classification.data import Labels, TextReader, label_encoding, make_labelled, multi_hot, sentences_of
from weft.tasks.classification.metrics import LabelAccuracy, MacroF1, MicroF1
from weft.tasks.classification.model import ClassifierEnsemble
from weft.tasks.classification.task import ClassificationTask
from weft.training import train_run

LEVEL = {"kind": "rnn", "dim": 8, "dropout": 0.0}
SETTINGS: dict[str, Any] = {
    "data.vocabulary": 50,
    "model.front.encoder": LEVEL,
    "model.encoder": LEVEL,
    "train.steps": 2,
    "train.batch_tokens": 256,
    "train.precision": "float32",
    "train.validate_every": 0,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}


def write(path: Path, *records: Any) -> Path:
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def documents(count: int = 30) -> list[dict[str, Any]]:
    """Documents about animals and plants: each sentence names one, and the labels are what is named."""
    draw, found = random.Random(3), []
    for _ in range(count):
        sentences = [f"the {draw.choice(['cat', 'oak'])} is {draw.choice('abcdef')}" for _ in range(draw.randint(1, 4))]
        labels = [label for label, word in (("animal", "cat"), ("plant", "oak")) if any(word in each for each in sentences)]
        found.append({"sentences": sentences, "label": labels})
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    data = write(folder / "train.jsonl.gz", *(each | {"label": each["label"][0]} for each in documents()))
    train_run.train("han", out=folder / "run", data=str(data), valid=str(data), set=SETTINGS)
    return folder / "run"


def test_json_lines_hold_sentences_text_and_labels(tmp_path: Path) -> None:
    records = [
        {"sentences": ["One here.", " two\nlines. "], "label": "a"},
        {"text": "Plain text.", "label": 3},
        {"sentences": [], "labels": ["b", "c"]},
        {"source": "s", "text": "t", "target": "u", "label": "v"},
    ]
    pairs = list(open_pairs(str(write(tmp_path / "d.jsonl.gz", *records))))
    assert pairs == [("One here.\ntwo lines.\n", "a"), ("Plain text.", "3"), ("", "b\nc\n"), ("s", "u")]
    chosen = open_pairs(f"{write(tmp_path / 'e.jsonl', {'doc': {'body': ['x', 'y']}, 'kinds': ['k']})}#doc.body,kinds")
    assert list(chosen) == [("x\ny\n", "k\n")]


def test_sentences_are_lines_or_found_by_rule() -> None:
    assert sentences_of("One. Two here.\n\n three \n") == ["One. Two here.", "three"]
    assert sentences_of("It rains. We stay at home.") == ["It rains.", "We stay at home."]
    assert sentences_of("It rains. We stay.\n") == ["It rains. We stay."]
    assert sentences_of(" \n ") == []


def test_a_model_of_whole_texts_reads_sentences_as_one() -> None:
    reader = TextReader(ByteTokenizer(), 9)
    (ids, _), (other, _) = reader.encode(["a b\nc\n", "a b\nc"])
    assert ids == ByteTokenizer().encode("a b c") and other == ByteTokenizer().encode("a b\nc")


def test_a_corpus_keeps_the_sentences_and_cuts_the_last(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d.jsonl",
        {"sentences": ["ab", "", "cde", "f"], "label": "x"},
        {"sentences": ["gh"], "label": "y"},
        {"sentences": [], "label": "y"},
        {"sentences": [" "], "label": "y"},
    )
    tokenizer, labels = ByteTokenizer(), Labels(["x", "y"])
    reader = TextReader(tokenizer, 4, by_sentence=True)
    corpus = label_encoding(reader, labels).prepare([open_pairs(str(path))], folder=tmp_path / "cache")
    assert corpus.report.left_out["with an empty side"] == 2
    assert corpus.row("source", 0).tolist() == tokenizer.encode("abcd")
    assert [corpus.row("sentences", row).tolist() for row in (0, 1)] == [[2, 2], [2]]
    task = ClassificationTask(TaskContext(Config(task={"kind": "classification"}), Path()))
    task.labels = labels
    batch = task.collate(corpus, np.array([1, 0]))
    assert batch.source.values.tolist() == [tokenizer.encode(text) for text in ("gh", "ab", "cd")]
    assert batch.source.documents is not None
    assert batch.source.documents.segments.tolist() == [[1, 0], [1, 1]]
    assert batch.labels.tolist() == [1, 0]


def test_a_run_reads_documents_and_says_how_sure_it_is(run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    given = write(tmp_path / "in.jsonl", {"sentences": ["the cat is a", "the oak is b"]}, {"sentences": []}, {"text": "a cat"})
    first, blank, last = (json.loads(line) for line in weft("predict", run, given, "--json").splitlines())
    assert first["probabilities"].keys() == {"animal", "plant"}
    assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert first["text"] == max(first["probabilities"], key=first["probabilities"].get) and last["text"]
    assert blank["text"] == "" and "probabilities" not in blank
    assert weft("predict", run, stdin="the cat is a. the oak is b.\n").strip() in ("animal", "plant")


def test_labels_and_weights_do_not_depend_on_the_batch(run: Path) -> None:
    texts = ["".join(f"{each}\n" for each in record["sentences"]) for record in documents(12)]
    translator = weft.load(run, device="cpu")
    together = translator.translate(texts, attention=True)
    for text, label in zip(texts, together, strict=True):
        alone = translator.translate(text, attention=True)
        assert alone.text == label.text and alone.score == pytest.approx(label.score, abs=1e-5)
        count = len(text.splitlines())
        assert label.attention["pooling"].shape == (1, 1, count) and label.attention["words"].shape[:2] == (count, 1)
        assert [len(each) for each in label.sentences] == [4] * count
        assert label.attention["pooling"].sum() == pytest.approx(1, abs=1e-5)


def test_a_page_shows_the_weights_of_sentences_and_words(run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    given = write(tmp_path / "in.jsonl", {"sentences": ["the cat is <a>", "the oak is b"]}, {"sentences": ["the cat"]})
    weft("explain", run, "--file", given, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<section>") == 2 and page.count("<li>") == 3 and page.count("<script") == 0
    assert "&lt;" in page and "<a>" not in page
    weft.fails("explain", run, "the cat", "-o", tmp_path / "page.png", says=["only translations are drawn"])
    weft.fails("explain", run, "a cat", "--target", "b", "-o", tmp_path / "page.html", says=["leave it out"])
    weft.fails("explain", run, " ", "-o", tmp_path / "page.html", says=["nothing to explain in an empty input"])


def test_an_explanation_has_the_weights_of_both_levels(run: Path) -> None:
    found = weft.load(run, device="cpu").explain("the cat is a\nthe oak\n", run="here")
    assert isinstance(found, Section)
    weights = [float(weight) for weight in re.findall(r'title="([\d.]+)"', found.body)]
    shares = [float(share) for share in re.findall(r"<small>([\d.]+)</small>", found.body)]
    assert [sum(weights[:4]), sum(weights[4:]), sum(shares)] == pytest.approx([1, 1, 1], abs=4e-3)
    assert "note" not in found.body and "srcdoc" in found._repr_html_()


def test_bad_documents_are_named(run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    good = {"sentences": ["a b"], "label": "animal"}
    for name, bad, says in (
        ("number", {"sentences": ["a", None], "label": "x"}, "line 2: 'sentences[1]' must be text, not None"),
        ("nothing", {"label": "x"}, "line 2: there is no 'source' or 'sentences' or 'text'; found 'label'"),
        ("unlabelled", {"sentences": ["a"]}, "line 2: there is no 'target' or 'label' or 'labels'; found 'sentences'"),
        ("unknown", {"sentences": ["a"], "label": "stone"}, "'stone' of pair 2 is not a label of the run"),
    ):
        weft.fails("evaluate", run, "--data", write(tmp_path / f"{name}.jsonl", good, bad), says=[says])
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(good) + '\n{"sentences": [\n')
    weft.fails("predict", run, broken, says=["line 2: not valid JSON"])
    several = write(tmp_path / "several.jsonl", good, {"sentences": ["c"], "label": ["animal", "plant"]})
    with pytest.raises(DataError, match=r"pair 2: a text has several labels, 'animal', 'plant'; set task\.multi"):
        train_run.train("han", out=tmp_path / "new", data=str(several), valid=str(several), set=SETTINGS)
    with pytest.raises(ConfigError, match="sentences reads sentences, but this task provides tokens"):
        train_run.train("han", out=tmp_path / "new", data=str(several), set={**SETTINGS, "task.by_sentence": False})
    none = write(tmp_path / "none.jsonl", {"sentences": [], "label": "a"}, {"sentences": [""], "label": "b"})
    with pytest.raises(DataError, match="there is no text to train a vocabulary on"):
        train_run.train("han", out=tmp_path / "new", data=str(none), set=SETTINGS)


def test_a_text_may_have_any_number_of_labels(tmp_path: Path, weft: tiny.Shell) -> None:
    data = write(tmp_path / "d.jsonl", *documents(150), {"text": "nothing", "label": []})
    sets = {**SETTINGS, "task.multi_label": True, "train.steps": 80, "train.schedule": {"kind": "constant", "rate": 2e-2}}
    found = train_run.train(
        "han", out=tmp_path / "run", data=str(data), valid=str(data), set={**sets, "train.best_by": "micro_f1"}
    )
    assert found.scores["micro_f1"] >= 95 and found.scores["macro_f1"] >= 95
    given = write(tmp_path / "in.jsonl", {"sentences": ["the cat is a", "the oak is b"]}, {"sentences": ["the oak is c"]})
    assert weft("predict", tmp_path / "run", given).splitlines() == ["animal,plant", "plant"]
    strict = json.loads(weft("predict", tmp_path / "run", given, "--json").splitlines()[1])
    assert strict["probabilities"]["plant"] > 0.5 > strict["probabilities"]["animal"]
    scored = json.loads(weft("evaluate", tmp_path / "run", "--data", data, "--json"))["metrics"]
    assert scored["micro F1"]["value"] == pytest.approx(found.scores["micro_f1"])
    assert scored["accuracy"]["value"] == pytest.approx(found.scores["accuracy"])


def test_several_labels_are_split_scored_and_filled_up() -> None:
    labels = Labels(["b, a", "c\nb\n", ""], several=True)
    assert labels.names == ["a", "b", "c"] and labels.find("c,a,c") == [0, 2] and labels.find(" ") == []
    assert labels.join([0, 2]) == "a,c"
    with pytest.raises(DataError, match="'d' does not occur in the training data; known labels are 'a', 'b', 'c'"):
        labels.find("a,d")
    said, true = ["a,b", "c", ""], ["b,a", "b", ""]
    micro, exact, macro = MicroF1(labels.split), LabelAccuracy(labels.split), MacroF1(labels.names, labels.split)
    assert micro.score(micro.count(said, true)).value == pytest.approx(100 * 2 * 2 / (3 + 3))
    assert exact.score(exact.count(said, true)).value == pytest.approx(200 / 3)
    assert macro.score(macro.count(said, true)).value == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    assert multi_hot(np.array([0, 2, 1]), np.array([2, 0, 1]), 3).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_the_loss_of_several_labels_is_that_of_each(tmp_path: Path) -> None:
    task = ClassificationTask(TaskContext(Config(task={"kind": "classification"}), Path()), multi_label=True, dropout=0.0)
    task.labels = Labels(["a", "b"], several=True)
    torch.manual_seed(0)
    model = task.build({"kind": "transformer", "dim": 16, "heads": 4, "encoder_layers": 1, "dropout": 0.0}, Sizes(30))
    words, marks, lengths = np.arange(4, 12), np.array([[1, 0], [1, 1], [0, 0]]), np.array([3, 4, 1])
    plain, filled = (make_labelled(words, marks, lengths, budget=32, rounded=rounded) for rounded in (False, True))
    assert (filled.labels[3:] == NO_LABEL).all() and len(filled.labels) > 3
    (one,), (other,) = (list(task.losses(model, batch, 1)) for batch in (plain, filled))
    share = model(plain.source).logits.sigmoid()
    goal = torch.tensor(marks)
    torch.testing.assert_close(one.total, -torch.where(goal == 1, share, 1 - share).log().sum())
    for left, right in (
        (one.total, other.total),
        (one.count, other.count),
        (one.metrics["accuracy"], other.metrics["accuracy"]),
    ):
        torch.testing.assert_close(left, right)
    assert one.count == 3
    vote = ClassifierEnsemble([model, task.build({"kind": "rnn", "dim": 16, "dropout": 0.0}, Sizes(30))], several=True).eval()
    each = torch.stack([member(plain.source).logits.sigmoid() for member in vote.classifiers])
    torch.testing.assert_close(vote(plain.source).logits.sigmoid(), each.mean(0))
