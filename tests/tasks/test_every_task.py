"""What holds for every task: a resumed run ends with the same bits, and predict, evaluate, compare, explain and serve work or
say why not."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import weft as library
from tests.helpers import labelled_translations, pictures, shapes, tiny, tones
from weft.bench.compare.measure_run import Measurements, measure
from weft.config.registry import find_table, load
from weft.errors import ConfigError
from weft.explain.html_page import Section, explain_page, png
from weft.explain.inside import StepOperand
from weft.runs.weight_files import read_tensors
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.training.result_files import read_samples

TASKS = find_table("weft.tasks:TASKS")
RNN = {"kind": "rnn", "dim": 16, "dropout": 0.1}
STORIES = "generated:babi?task=1&count=60"
BITS = "generated:bits_copy?count=60&longest=4"


def _documents(folder: Path) -> str:
    rows = [{"sentences": [f"the {word} is {label}", "and so on"], "label": label} for word in "abcdef" for label in ("x", "y")]
    (folder / "documents.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 3))
    return str(folder / "documents.jsonl")


def _tags(folder: Path) -> str:
    (folder / "tags.tsv").write_text("a\tO\nplace\tB-LOC\nof\tI-LOC\n\nshe\tB-PER\nsat\tO\n\n" * 15)
    return str(folder / "tags.tsv")


def _pairs(folder: Path) -> str:
    (folder / "pairs.tsv").write_text("a dog\tan animal\tyes\na dog\ta cat\tno\n" * 15)
    return str(folder / "pairs.tsv")


def _pictures(folder: Path) -> str:
    return str(shapes.write(folder / "shapes", 20))


def _recordings(folder: Path) -> str:
    return str(tones.recordings(folder / "tones", 20))


def _spoken(folder: Path) -> str:
    return f"{tones.recordings(folder / 'tones', 20)}#2,1"


@dataclass(frozen=True)
class Small:
    """A task on small data. input: an input, relative to the folder of the data · shows: what its explanation has."""

    data: Callable[[Path], str]
    settings: dict[str, Any]
    input: str
    shows: str


SMALL = {
    "classification": Small(
        _documents,
        {
            "task": {"kind": "classification", "by_sentence": True, "pooling": {"kind": "self_attentive"}},
            "model": {"kind": "composed", "front": {"kind": "sentences", "encoder": RNN}, "encoder": RNN},
            "data.tokenizer": "words",
        },
        "The a is x. And so on.",
        "<ol><li><meter",
    ),
    "tagging": Small(
        _tags,
        {
            "task": {"kind": "tagging", "output": "crf", "entities": "bioes"},
            "model": {"kind": "composed", "front": {"kind": "words", "spelling_width": 8}, "encoder": RNN},
            "data.tokenizer": "characters",
            "data.vocabulary": 400,
        },
        "she sat",
        "<tr><td>she</td><td>",
    ),
    "pairs": Small(
        _pairs,
        {
            "task": {"kind": "pairs", "comparison": {"kind": "esim", "composition": RNN}},
            "model": {"kind": "composed", "encoder": RNN},
            "data.tokenizer": "words",
        },
        "a dog\ta cat",
        "<table class=weights><caption>the first text looks at the second",
    ),
    "quality": Small(
        lambda folder: labelled_translations.write(folder / "quality.jsonl", 30),
        {
            "task": {"kind": "quality", "estimator": {"kind": "esim", "composition": RNN}},
            "model": {"kind": "composed", "encoder": RNN},
            "data.tokenizer": "words",
        },
        "red green\trot weiss",
        "<table class=weights><caption>the first text looks at the second",
    ),
    "reading": Small(
        lambda folder: "generated:passages?count=60",
        {
            "task": {"kind": "reading", "reader": {"kind": "bidaf", "modeling": RNN, "ending": RNN}},
            "model": {"kind": "composed", "front": {"kind": "words", "spelling_width": 8}, "encoder": RNN},
            "data.tokenizer": "characters",
            "data.vocabulary": 400,
        },
        "Talo lives in Bim .\tWhere does Talo live ?",
        "each word of the passage looks at the question",
    ),
    "captioning": Small(
        _pictures,
        {
            "task": {"kind": "captioning", "size": shapes.SIZE},
            "model": {
                "kind": "composed",
                "front": {"kind": "convolutions", "channels": [8]},
                "encoder": {"kind": "identity", "dim": 16},
                "decoder": {"kind": "rnn", "dim": 16, "attention": "additive"},
            },
        },
        "shapes/3.png",
        '<img alt="attention of',
    ),
    "transcription": Small(
        _recordings,
        {
            "task": {"kind": "transcription", "mels": 8, "tempo": 0.1, "pitch": 0.1, "time_masks": 1, "frequency_masks": 1},
            "model": {
                "kind": "composed",
                "front": {"kind": "frames", "convolutions": 1, "channels": 8},
                "encoder": RNN,
                "decoder": {"kind": "rnn", "dim": 16, "attention": "additive"},
            },
            "data.tokenizer": "words",
            "data.max_length": 400,
        },
        "tones/wav/3.wav",
        'alt="CTC of',
    ),
    "synthesis": Small(
        _spoken,
        {
            "task": {"kind": "synthesis", "mels": 8, "prenet": 8, "postnet": 1, "test_dropout": True},
            "model": {"kind": "composed", "encoder": RNN, "decoder": {"kind": "rnn", "dim": 16, "attention": "additive"}},
            "data.tokenizer": "words",
            "data.max_length": 400,
            "decode.max_length": 9,
        },
        "low high",
        '<audio controls aria-label="the recording of low high" src="data:audio/wav;base64,',
    ),
    "answering": Small(
        lambda folder: STORIES,
        {
            "task": {"kind": "answering", "linear_start": 2},
            "model": {"kind": "memory_network", "dim": 8, "hops": 2},
            "data.tokenizer": "words",
        },
        "Mary went to the kitchen. Where is Mary?",
        "<th>hop 2</th></tr><tr><td>Mary went to the kitchen.</td><td><meter",
    ),
    "bits": Small(
        lambda folder: BITS,
        {
            "task": {"kind": "bits"},
            "model": {"kind": "composed", "front": {"kind": "vectors"}, "encoder": {"kind": "ntm", "dim": 8, "slots": 6}},
        },
        "01101001 | _",
        'alt="slots that a head writes"',
    ),
}


@dataclass(frozen=True)
class Trained:
    name: str
    run: Path
    data: str
    input: str

    @property
    def small(self) -> Small:
        return SMALL[self.name]


def settings(small: Small) -> dict[str, Any]:
    usual = {key: value for key, value in tiny.SETTINGS.items() if not key.startswith(("model", "task"))}
    own = {"train.steps": 6, "train.batch_tokens": 300, "train.best_by": "loss", "train.schedule": {"kind": "constant"}}
    return {**usual, **own, **small.settings}


@pytest.fixture(scope="module", params=SMALL)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of six updates, with its picture."""
    small, folder = SMALL[request.param], tmp_path_factory.mktemp(request.param)
    data = small.data(folder)
    with pictures.drawn():
        library.train("transformer-tiny", data=data, valid=data, out=folder / "run", set=settings(small))
    path = folder / small.input
    return Trained(request.param, folder / "run", data, str(path) if path.exists() else small.input)


def test_every_task_is_here_or_has_its_own_tests() -> None:
    assert {*SMALL, "translation", "parallel_translation", "language_model", "unsupervised", "deciphering"} == set(TASKS)


def test_a_resumed_run_ends_with_the_same_bits(trained: Trained, tmp_path: Path) -> None:
    parts, set = tmp_path / "parts", {**settings(trained.small), "train.steps": 3}
    library.train("transformer-tiny", data=trained.data, valid=trained.data, out=parts, set=set)
    library.train(out=parts, resume=True, set={"train.steps": 6})
    a, b = (read_tensors(run / "model.safetensors") for run in (trained.run, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_shows_results_samples_and_a_card(trained: Trained) -> None:
    ((step, samples),) = read_samples(trained.run)
    assert step == 6 and 1 <= len(samples) <= 10
    assert all(each.source and each.reference for each in samples)
    rows = list(csv.DictReader((trained.run / "results.csv").open()))
    assert [row["step"] for row in rows] == ["6"] and float(rows[0]["valid_loss"]) > 0
    assert (trained.run / "results.png").read_bytes().startswith(b"\x89PNG")
    card = (trained.run / "README.md").read_text("utf-8")
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "weft"
    assert f"task `{trained.name}`" in card and "## Scores" in card


REFUSED = {
    "bits": "nothing that metrics could compare.*scored by bit_errors",
    "synthesis": "nothing that metrics could compare.*scored by mcd",
    "captioning": "chrf2: .* several references",
    "reading": "chrf2: .* several references",
}
"""Tasks that other metrics cannot score, with the reason."""


def test_metrics_are_added_to_validation_evaluation_and_the_choice_of_the_best(trained: Trained, tmp_path: Path) -> None:
    added = {**settings(trained.small), "train.steps": 1, "train.metrics": ["chrf"], "train.best_by": "chrf"}
    options = {"data": trained.data, "valid": trained.data, "out": tmp_path / "run", "set": added}
    if trained.name in REFUSED:
        with pytest.raises(ConfigError, match=f"train.metrics: .*{REFUSED[trained.name]}"):
            library.train("transformer-tiny", **options)
        return
    result = library.train("transformer-tiny", **options)
    assert 0 <= result.scores["chrf2"] <= 100
    assert "chrf2" in {each.key for each in library.evaluate(tmp_path / "run", trained.data).scores}


def test_the_run_is_used_from_the_command_line(trained: Trained, tmp_path: Path, weft: tiny.Shell) -> None:
    said = weft("predict", trained.run, trained.input, "--json")
    assert json.loads(said)["score"] <= 0 or trained.name in ("bits", "quality")
    scores = json.loads(weft("evaluate", trained.run, "--data", trained.data, "--json"))
    assert scores.get("metrics") or scores["scores"]


def test_runs_are_compared(trained: Trained) -> None:
    found = measure(trained.run, Measurements(test=(trained.data,), sentences=2, maps=True))
    assert found["parameters"] > 0 and found["headline"]["key"] in found["test"]


def test_outputs_are_explained(trained: Trained) -> None:
    translator = library.load(trained.run)
    found = translator.explain(trained.input, run="mine")
    assert isinstance(found, Section)
    page = explain_page([found, found])
    assert trained.small.shows in page.replace("\n", "") and page.count("<section>") == 2 and "<script" not in page


def test_every_step_of_the_model_is_shown(trained: Trained) -> None:
    """The steps are those of one run of the model, and their formulas give their values."""
    found = library.load(trained.run).explain(trained.input, inside=True)
    assert isinstance(found, Section) and found.inside is not None
    assert len(found.inside) > 5
    for step in found.inside.values():
        if step.formula:
            np.testing.assert_allclose(step.recompute(), step.values, rtol=1e-3, atol=1e-4, err_msg=step.name)
    assert trained.name != "bits" or found.inside["encoder.controller.state"].values.shape[0] == len(trained.input.split()), (
        "a run is shown once"
    )
    page = explain_page([found, found])
    assert page.count("steps-of-model></div>") == 2 and "script-src 'unsafe-inline'" in page


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_the_heads_of_an_encoder_are_shown(name: str, tmp_path: Path) -> None:
    small = SMALL[name]
    encoder = {"kind": "transformer", "dim": 16, "heads": 2, "feedforward": 16, "layers": 1}
    front = {"front": {"kind": "words", "spelling_width": 8}} if name == "tagging" else {}
    changes = {"task": {"kind": name}, "model": {"kind": "composed", "encoder": encoder, **front}, "train.steps": 1}
    data = small.data(tmp_path)
    library.train("transformer-tiny", data=data, valid=data, out=tmp_path / "run", set={**settings(small), **changes})
    found = library.load(tmp_path / "run").explain(small.input, inside=True)
    assert isinstance(found, Section) and found.inside is not None
    assert "layer 1, head 2" in found.body and "layer 2" not in found.body
    weights = next(step for step in found.inside.values() if step.title == "weights")
    assert weights.values.shape[0] == 2 and len(weights.labels["key"]) == weights.values.shape[-1]
    chances = found.inside[list(found.inside)[-1]]
    assert chances.name == "probabilities" and chances.formula == "softmax(logits, label)"
    assert len(chances.labels["label"]) == chances.values.shape[-1]
    assert not any(label.isdigit() for label in chances.labels["label"])
    logits = chances.operands["logits"]
    assert isinstance(logits, StepOperand) and logits.step == "output" and not logits.weights
    matrix = found.inside["output"].operands["W"]
    assert isinstance(matrix, StepOperand) and matrix.weights and not matrix.step


def test_a_server_answers_texts_and_refuses_files(trained: Trained) -> None:
    place = ModelLocation((str(trained.run),))
    if trained.name in ("captioning", "transcription"):
        with pytest.raises(ConfigError, match=r"reads files.*weft predict"):
            Models([place])
        return
    (served,) = Models([place]).served
    assert trained.name not in ("pairs", "quality", "reading") or served.attention_maps == 2
    predictor = served.predictor(())
    given = predictor.parse_input(trained.input)
    (parts,) = predictor.encode_input([given], 1)
    assert predictor.join_outputs(given, parts, predictor.run(parts)).text


def test_a_picture_is_a_png_file() -> None:
    from io import BytesIO

    from PIL import Image

    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert np.array_equal(np.asarray(Image.open(BytesIO(png(pixels)))), pixels)
    assert np.array_equal(np.asarray(Image.open(BytesIO(png(pixels[..., 0])))), pixels[..., 0])


def test_only_translation_is_introduced_with_translate() -> None:
    found = {name for name in TASKS if any("weft translate" in command for command in load(TASKS, name).info.commands)}
    assert found == {"translation", "parallel_translation", "unsupervised"}
