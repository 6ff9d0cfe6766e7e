"""Classification from a labelled file to labels: training, resuming, scoring, predicting, and what is said when it fails."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers import tiny
from weft.config.sections import Config
from weft.data.batch import EOS, Layout, Source
from weft.data.formats import open_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.errors import ConfigError, DataError, RunError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder
from weft.models.pooling import MultiheadPooling
from weft.runs.weight_files import read_tensors
from weft.tasks.base import TaskContext
from weft.tasks.classification.data import Labels, TextReader, check_labelled, label_encoding, make_labelled
from weft.tasks.classification.metrics import LabelAccuracy, MacroF1
from weft.tasks.classification.model import Classifier
from weft.tasks.classification.task import ClassificationTask
from weft.tasks.pairs.task import PairsTask
from weft.training import train_run
from weft.training.validate_and_save import Result

SETTINGS: dict[str, Any] = {
    "data.tokenizer": "words",
    "data.vocabulary": 50,
    "model.dim": 16,
    "model.heads": 2,
    "model.feedforward": 32,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "task": {"kind": "classification", "pooling": {"kind": "self_attentive", "rows": 2}, "diversity_weight": 0.1},
    "train.steps": 150,
    "train.batch_tokens": 512,
    "train.precision": "float32",
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 15},
    "train.validate_every": 0,
    "train.best_by": "accuracy",
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}


def label_of(words: list[str]) -> str:
    """Which of three words stands in a text."""
    return next(word for word in ("red", "green", "blue") if word in words)


def write(path: Path, count: int, seed: int) -> Path:
    draw, lines = random.Random(seed), []
    for _ in range(count):
        words = draw.choices("abcdefgh", k=draw.randint(1, 9))
        words.insert(draw.randrange(len(words) + 1), draw.choice(["red", "green", "blue"]))
        lines.append(f"{' '.join(words)}\t{label_of(words)}\n")
    path.write_text("".join(lines))
    return path


def train(out: Path, data: Path, settings: Mapping[str, Any] | None = None, **options: Any) -> Result:
    return train_run.train("transformer-tiny", out=out, data=str(data), set={**SETTINGS, **(settings or {})}, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("labelled")
    return write(folder / "train.tsv", 600, 1), write(folder / "valid.tsv", 60, 2)


@pytest.fixture(scope="module")
def run(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "colours"
    result = train(out, files[0], valid=str(files[1]))
    assert result.scores["accuracy"] >= 95
    assert result.scores["macro_f1"] >= 95
    assert result.scores["loss"] < 0.3
    return out


def test_a_run_labels_a_file_line_by_line(run: Path, weft: tiny.Shell) -> None:
    text = "a b red c\n\nblue\nd e f green a\n"
    assert weft("translate", run, stdin=text).split("\n") == ["red", "", "blue", "green", ""]
    best, blank = (json.loads(line) for line in weft("translate", run, "--n-best", "3", stdin="a red\n\n").splitlines())
    found = [best, *best["alternatives"]]
    assert {each["text"] for each in found} == {"red", "green", "blue"}
    assert np.exp([each["score"] for each in found]).sum() == pytest.approx(1, abs=1e-4)
    assert blank["text"] == ""


def test_the_speed_of_training_is_in_texts(run: Path) -> None:
    log = (run / "train.log").read_text()
    assert "texts/s" in log and "tok/s" not in log


def test_a_run_is_scored_with_intervals_and_against_another(run: Path, files: tuple[Path, Path], weft: tiny.Shell) -> None:
    found = json.loads(weft("evaluate", run, "--data", files[1], "--against", f"{run},{run}", "--json"))
    assert set(found["metrics"]) == {"accuracy", "macro F1"}
    assert found["metrics"]["accuracy"]["value"] >= 95
    assert found["by_length"] == []
    assert found["comparison"]["metrics"]["accuracy"]["delta"] == 0
    assert {row[0] for row in found["labels"]["rows"]} == {"red", "green", "blue"}
    assert sum(sum(row[1:]) for row in found["confusion"]["rows"]) == found["sentences"] == 60
    table = weft("evaluate", run, "--data", files[1])
    assert "scores of each label" in table and "confusion matrix" in table


def test_predictions_do_not_depend_on_the_batch(run: Path, files: tuple[Path, Path]) -> None:
    texts = [line.split("\t")[0] for line in files[1].read_text().splitlines()]
    translator = weft.load(run, device="cpu")
    together = translator.translate(texts)
    alone = [translator.translate(text) for text in texts]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], abs=1e-5)
    seen = translator.translate("a red", attention=True)
    assert seen.attention["pooling"].shape == (1, 2, len(seen.source_tokens))
    assert any(name.startswith("encoder") for name in seen.attention)


def test_an_interrupted_run_ends_with_the_same_bits(files: tuple[Path, Path], tmp_path: Path) -> None:
    short = {
        "train.steps": 12,
        "train.save_every": 6,
        "task.dropout": 0.2,
        "train.schedule": {"kind": "inverse_sqrt", "warmup": 3},
    }
    train(tmp_path / "whole", files[0], short)
    train(tmp_path / "parts", files[0], {**short, "train.steps": 6})
    train_run.train(out=tmp_path / "parts", resume=True, set={"train.steps": 12})
    whole, parts = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


def test_numbers_in_json_are_labels(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{word} x", "label": place}) for place, word in enumerate("abc") for _ in range(20)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    train(tmp_path / "run", Path(f"{tmp_path / 'd.jsonl'}#text,label"), {"train.steps": 1, "data.tokenizer": "bytes"})
    assert Labels.load(tmp_path / "run" / "labels.json").names == ["0", "1", "2"]


def test_what_cannot_be_learnt_is_said(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("a b\tred\nc d\tred\n")
    with pytest.raises(DataError, match="only the label 'red', and a model needs at least two"):
        train(tmp_path / "run", tmp_path / "one.tsv")
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"premise {row}\thypothesis {row}\t{'yes' if row % 2 else 'no'}\n" for row in range(9))
    )
    with pytest.raises(
        DataError,
        match=r"pairs.tsv has 3 columns.* label would be 'hypothesis 0', and the third column would be ignored.*pairs.tsv#1,3",
    ):
        train(tmp_path / "run", tmp_path / "pairs.tsv")
    (tmp_path / "other.tsv").write_text("a b\tred\nc d\tpink\n")
    with pytest.raises(
        DataError, match=r"other.tsv, pair 2: the label 'pink' does not occur in the training data; known labels are 'blue', '"
    ):
        train(tmp_path / "run", files[0], valid=str(tmp_path / "other.tsv"))
    with pytest.raises(ConfigError, match="packed rows"):
        train(tmp_path / "run", files[0], {"train.packed": True})
    with pytest.raises(ConfigError, match="does not measure 'bleu'; it measures accuracy, macro_f1, loss"):
        train(tmp_path / "late", files[0], {"train.best_by": "bleu", "train.steps": 1}, valid=str(files[1]))
    assert not (tmp_path / "run").exists()


def test_a_choice_of_columns_is_suggested_once(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("one\tpos\tx\ntwo\tneg\ty\n")
    with pytest.raises(DataError, match=r"Choose two, for example \S+pairs.tsv#1,2\.$"):
        check_labelled(open_pairs(str(tmp_path / "pairs.tsv")), lambda message: None)


def test_what_cannot_be_labelled_is_said(run: Path, files: tuple[Path, Path], tmp_path: Path, weft: tiny.Shell) -> None:
    weft.fails("translate", run, "--prefix", files[0], stdin="a\n", says=["leave them out"])
    (tmp_path / "test.tsv").write_text("a red\tred\na blue\tblu\n")
    weft.fails("evaluate", run, "--data", tmp_path / "test.tsv", says=["'blu' of pair 2", "did you mean 'blue'"])


def test_a_table_in_place_of_texts_is_noticed_once(run: Path) -> None:
    warned: list[str] = []
    weft.load(run, device="cpu", warn=warned.append).translate(["a b", "b\tred", "a\tblue"])
    assert warned == ["line 2 has a tab, and the whole line is read as the text; for its first column give cut -f1"]


def test_of_a_long_text_the_beginning_is_read(run: Path) -> None:
    warned: list[str] = []
    translator = weft.load(run, device="cpu", warn=warned.append)
    longest = translator.config.data.max_length
    found = translator.translate("red" + " a" * (longest - 1) + " blue" * 900)
    assert found.text == "red"
    assert warned == [f"line 1 has {longest + 900:,} tokens; only the first {longest:,} are read"]


@pytest.mark.parametrize("kind", ["transformer", "rnn", "convs2s", "bytenet"])
def test_every_family_has_an_encoder_that_serves(kind: str) -> None:
    torch.manual_seed(0)
    encoder = build_encoder({"kind": kind, "dim": 16}, Sizes(30))
    model = Classifier(encoder, MultiheadPooling(encoder.width, rows=2), labels=5).eval()
    ids, lengths = torch.randint(4, 30, (3, 21)), (21, 4, 1)
    together = model(Source(ids, Layout.padded(lengths))).logits
    assert together.shape == (3, 5)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(
            together[row : row + 1], model(Source(ids[row : row + 1, :length])).logits, atol=1e-5, rtol=1e-4
        )
    assert not [name for name, _ in model.named_parameters() if name.startswith("decoder")]


def test_labels_have_ids_in_order_whatever_their_order(tmp_path: Path) -> None:
    labels = Labels(["b", " a ", "b", "", "c d"])
    assert labels.names == ["a", "b", "c d"]
    assert [labels.find(name) for name in ("a", "c d ", " b")] == [[0], [2], [1]]
    labels.save(tmp_path / "labels.json")
    assert Labels.load(tmp_path / "labels.json").names == labels.names
    (tmp_path / "labels.json").write_text("{}")
    with pytest.raises(RunError, match="does not hold labels"):
        Labels.load(tmp_path / "labels.json")


def test_texts_are_cut_and_cut_texts_are_other_data(tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("abcd\tyes\nab\tno\n")
    pairs, labels, corpora = [open_pairs(str(tmp_path / "texts.tsv"))], Labels(["yes", "no"]), []
    for longest in (2, 3):
        corpora.append(label_encoding(TextReader(ByteTokenizer(), longest), labels).prepare(pairs, folder=tmp_path / "cache"))
        assert corpora[-1].row("source", 0).tolist() == [*ByteTokenizer().encode("abcd"[:longest]), EOS]
        assert [corpora[-1].row("label", row).tolist() for row in (0, 1)] == [[1], [0]]
        assert corpora[-1].lengths.tolist() == [[longest + 1], [3]]
    assert corpora[0].folder != corpora[1].folder


def test_macro_f1_counts_labels_alike() -> None:
    """Three of a, right twice; one of b, found among two guesses; c is never there and never said."""
    said, true = ["a", "a", "b", "b"], ["a", "a", "a", "b"]
    metric = MacroF1(["a", "b", "c"])
    first, second = 2 * 2 / (2 + 3), 2 * 1 / (2 + 1)
    assert metric.score(metric.count(said, true)).value == pytest.approx(100 * (first + second) / 2)
    assert LabelAccuracy().score(LabelAccuracy().count(said, true)).value == 75
    assert metric.score(metric.count(["", "d"], ["a", "b"])).value == 0  # no label, and one that does not exist, are wrong


@pytest.mark.parametrize("pooling", ["mean", "max", "pma", "self_attentive", "label_attentive"])
def test_rows_that_fill_a_batch_up_change_nothing(pooling: str) -> None:
    """Batches in few sizes have rows that are no text: losses, counts and gradients are those of the texts alone."""
    config = Config(task={"kind": "classification"})
    task = ClassificationTask(
        TaskContext(config, Path()), pooling={"kind": pooling}, label_smoothing=0.1, dropout=0.0, diversity_weight=0.5
    )
    task.labels = Labels(["yes", "no", "maybe"])
    torch.manual_seed(0)
    spec = {"kind": "transformer", "dim": 16, "heads": 4, "encoder_layers": 1, "dropout": 0.0}
    model = task.build(spec, Sizes(30))
    lengths = np.array([5, 9, 2])
    words, labels = np.random.default_rng(0).integers(4, 30, lengths.sum()), np.array([0, 2, 1])
    found = []
    for rounded in (False, True):
        batch = make_labelled(words, labels, lengths, budget=96, rounded=rounded)
        assert batch.source.values.size(0) == (8 if rounded else 3)
        model.zero_grad()
        (loss,) = task.losses(model, batch, 1)
        loss.total.backward()
        slopes = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        found.append((loss.total.detach(), loss.count, loss.metrics["accuracy"], torch.cat(slopes)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_each_label_has_its_scores_and_is_taken_for_others() -> None:
    true, said = ["a", "a", "a", "b", "true"], ["a", "b", " a", "b", "a"]
    labels, confusion = MacroF1(["a", "b", "c", "true"]).breakdowns(said, true)
    assert labels.rows[0] == ("a", pytest.approx(200 / 3), pytest.approx(200 / 3), pytest.approx(200 / 3), 3, 3)
    assert labels.rows[1:] == [("b", 50, 100, pytest.approx(200 / 3), 1, 2), ("true", 0, 0, 0, 1, 0)], "there is no c"
    assert confusion.document() == {
        "columns": ["true \\ predicted", "a", "b", "true"],
        "rows": [["a", 2, 1, 0], ["b", 0, 1, 0], ["true", 1, 0, 0]],
    }
    many = [str(number) for number in range(20)]
    _, confusion = MacroF1(many).breakdowns(["1", "1", *many], ["0", "0", *many])
    assert confusion.document() == {"columns": ["true", "predicted", "texts"], "rows": [["0", "1", 2]]}
    assert [each.key for each in MacroF1(many, str.split).breakdowns(["1 2"], ["2 3"])] == ["labels"]


def write_named(path: Path, counts: Mapping[int, int], seed: int) -> Path:
    """Each of these words as often as it says, among twelve others. The label is another name for the word: w3 is n3."""
    draw, lines = random.Random(seed), []
    for word, count in counts.items():
        for _ in range(count):
            others = [f"o{number}" for number in draw.sample(range(60), 12)]
            lines.append(f"{' '.join(draw.sample([f'w{word}', *others], 13))}\tn{word}\n")
    draw.shuffle(lines)
    path.write_text("".join(lines))
    return path


def test_texts_of_labels_replace_examples(tmp_path: Path) -> None:
    """Ten labels have one example each, too few to tell which word counts, unless their texts say it as those of others do."""
    data = write_named(tmp_path / "train.tsv", {n: 30 if n < 40 else 1 for n in range(50)}, 1)
    valid = write_named(tmp_path / "valid.tsv", dict.fromkeys(range(40, 50), 10), 2)
    texts = tmp_path / "texts.tsv"
    texts.write_text("".join(f"n{n}\tw{n}\n" for n in range(50)))
    sets = {key: value for key, value in SETTINGS.items() if not key.startswith("model.")} | {"train.best_by": "micro_f1"}
    sets |= {"model": {"kind": "composed", "encoder": {"kind": "identity", "dim": 32}}, "data.vocabulary": 200}
    found = {}
    for queries in ("learned", "text"):
        task = {"kind": "classification", "multi_label": True, "pooling": {"kind": "label_attentive", "queries": queries}}
        task |= {"label_texts": str(texts)} if queries == "text" else {}
        options: dict[str, Any] = {"data": str(data), "valid": str(valid), "set": {**sets, "task": task}}
        result = train_run.train("transformer-tiny", out=tmp_path / queries, **options)
        found[queries] = result.scores["micro_f1"]
    assert found["text"] > 40 > 20 > found["learned"], found
    texts.unlink()  # the run has its own copy
    seen = weft.load(tmp_path / "text", device="cpu").translate("o1 w3 o2 w45 o3", attention=True)
    weights = seen.attention["pooling"][0]
    assert weights.shape == (50, len(seen.source_tokens))
    names = Labels.load(tmp_path / "text" / "labels.json", several=True).names
    assert seen.source_tokens[weights[names.index("n3")].argmax()] == "w3"


def test_wrong_texts_of_labels_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    described = {"kind": "classification", "pooling": {"kind": "label_attentive", "queries": "text"}}
    texts = tmp_path / "texts.tsv"
    for line, message in (("pink\ta colour", "line 2: there is no label 'pink'"), ("red", "line 2: there is no text after")):
        texts.write_text(f"green\tlike grass\n{line}\n")
        with pytest.raises(DataError, match=message):
            train(tmp_path / "run", files[0], {"task": {**described, "label_texts": str(texts)}})
    with pytest.raises(ConfigError, match=r"task\.by_sentence reads sentences"):
        train(tmp_path / "run", files[0], {"task": {**described, "by_sentence": True}})
    with pytest.raises(ConfigError, match=r"label_texts: give them to task\.pooling"):
        train(tmp_path / "run", files[0], {"task": {"kind": "classification", "label_texts": str(texts)}})
    siamese = {"kind": "siamese", "pooling": "label_attentive"}
    task = PairsTask(TaskContext(Config(task={"kind": "pairs"}), Path()), comparison=siamese)
    with pytest.raises(ConfigError, match="a vector for each label, and no labels are scored here"):
        task.build({"kind": "rnn", "dim": 8}, Sizes(30))
