"""Quality estimation: data, training, words and their tokens, predictions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft as library
from tests.helpers import labelled_translations, tiny
from weft.data.tokenizers.word_character_byte import CharacterTokenizer
from weft.decoding.score_given_targets import teacher_force
from weft.errors import ConfigError, DataError
from weft.explain.html_page import explain_page
from weft.runs.translator import Translator, load
from weft.tasks.quality.data import QualityReader, join_label, quality_format, score_of, split_label
from weft.tasks.quality.metrics import BadF1, Matthews, OkF1, ScorePearson
from weft.tasks.quality.model import ForcedDecoding, mean_of_spans
from weft.tasks.translation.attention_alignment import CharacterCounter, units

LINES = ["red green blue\trot weiss blau", "red white\trot weiss", "", "black\trot gruen weiss schwarz"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("quality")
    return labelled_translations.write(folder / "train.jsonl", 800), labelled_translations.write(folder / "valid.jsonl", 150, 1)


def train(out: Path, data: str, **settings: Any) -> Translator:
    library.train("transformer-tiny", data=data, out=out, set={**labelled_translations.SETTINGS, **settings})
    return load(out, device="cpu")


@pytest.fixture(scope="module")
def trained(data: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return train(tmp_path_factory.mktemp("esim") / "run", data[0], **{"train.steps": 300})


def test_it_learns_which_words_are_right_from_the_source(trained: Translator, data: tuple[str, str], tmp_path: Path) -> None:
    scores = trained.score(data[1])
    assert scores["pearson"] > 85 and scores["mcc"] > 60 and scores["f1_bad"] > 60
    hidden = tmp_path / "hidden.jsonl"
    rows = [json.loads(line) | {"source": "red"} for line in Path(data[1]).read_text().splitlines()]
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert trained.score(str(hidden))["mcc"] < 40


def test_predictions_have_a_confidence_for_each_word(trained: Translator, weft: tiny.Shell) -> None:
    quality = trained.translate(LINES[0])
    document = quality.document()
    assert min(document["words"], key=lambda word: word["confidence"])["text"] == "weiss"
    assert [(word["text"], word["start"], word["end"]) for word in document["words"]][1:] == [("weiss", 4, 9), ("blau", 10, 14)]
    assert quality.text == f"{quality.score:.2f}\t{' '.join(word.tag for word in quality.words)}" and document[
        "confidence"
    ] == pytest.approx(quality.score / 100, abs=1e-4)
    assert weft("predict", trained.task.run, "--json", stdin=LINES[0] + "\n").startswith('{"source": "red green blue')
    asked = '{"src": "red green blue", "mt": "rot weiss blau"}'
    assert trained.translate(asked).score == pytest.approx(quality.score)
    page = explain_page([trained.explain(LINES[0])])
    assert "estimated score" in page and "the second text looks at the first" in page


def test_a_prediction_does_not_depend_on_its_batch(trained: Translator) -> None:
    together = list(trained.stream(LINES))
    assert together[2].text == ""
    for line, each in zip(LINES, together, strict=True):
        alone = trained.translate(line)
        assert alone.score == pytest.approx(each.score, abs=1e-3)
        assert [word.probability for word in alone.words] == pytest.approx([word.probability for word in each.words], abs=1e-5)


@pytest.mark.parametrize("estimator", ["joined", "decomposable", "siamese"])
def test_the_comparisons_of_pairs_estimate_quality_too(estimator: str, data: tuple[str, str], tmp_path: Path) -> None:
    encoder = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "feedforward": 16}
    task = {"kind": "quality", "estimator": estimator}
    run = train(tmp_path / "run", data[1], **{"model.encoder": encoder, "task": task, "train.steps": 2})
    several = run.translate(LINES)
    assert run.translate(LINES[3]).words[1].probability == pytest.approx(several[3].words[1].probability, abs=1e-5)


@pytest.mark.parametrize("output", ["number", "tags"])
def test_scores_or_tags_alone(output: str, data: tuple[str, str], tmp_path: Path) -> None:
    run = train(tmp_path / "run", data[0], **{"task.output": output, "train.steps": 150})
    quality, scores = run.translate(LINES[0]), run.score(data[1])
    if output == "number":
        assert quality.words == [] and quality.text == f"{quality.score:.2f}" and scores["pearson"] > 60 and "mcc" not in scores
    else:
        assert quality.text.split() == [word.tag for word in quality.words] and "pearson" not in scores
        assert 0 < quality.score < 100  # the expected share of words that are right


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that translates colours word by word."""
    folder = tmp_path_factory.mktemp("translator")
    words = labelled_translations.WORDS
    rows = [each["source"] for each in labelled_translations.records(600, 5)]
    (folder / "pairs.tsv").write_text("".join(f"{row}\t{' '.join(words[each] for each in row.split())}\n" for row in rows))
    library.train(
        "transformer-tiny",
        data=str(folder / "pairs.tsv"),
        out=folder / "run",
        set={**tiny.SETTINGS, "train.steps": 200, "data.shared_vocabulary": False, "model.share_embeddings": "output"},
    )
    return folder / "run"


def force(translator: Path, data: str, out: Path, **settings: Any) -> Translator:
    """An estimator that starts from a translator."""
    task = {"kind": "quality", "estimator": {"kind": "translator", "composition": {"kind": "rnn", "dim": 16, "dropout": 0.0}}}
    kept = {key: value for key, value in labelled_translations.SETTINGS.items() if key.startswith(("train", "decode"))}
    library.train(
        "transformer-tiny", start=translator, data=data, out=out, set={**kept, "task": task, "train.steps": 120, **settings}
    )
    return load(out, device="cpu")


def test_a_translator_reads_the_translation(translator: Path, data: tuple[str, str], tmp_path: Path) -> None:
    run, base = force(translator, data[0], tmp_path / "run"), load(translator, device="cpu")
    scores = run.score(data[1])
    assert scores["mcc"] > 80 and scores["pearson"] > 85
    weights, theirs = run.model.state_dict(), base.model.state_dict()
    assert all(torch.equal(weights[f"comparison.{name}"], tensor) for name, tensor in theirs.items())  # it stays as it is
    several = run.translate(LINES)
    assert run.translate(LINES[3]).score == pytest.approx(several[3].score, abs=1e-3)
    tuned = force(translator, data[1], tmp_path / "tuned", **{"task.estimator.tune": True, "train.steps": 2})
    assert not torch.equal(tuned.model.state_dict()["comparison.decoder.output.weight"], theirs["decoder.output.weight"])


def test_features_are_those_of_teacher_forcing(translator: Path, data: tuple[str, str], tmp_path: Path) -> None:
    """log p(y_t), the distance to the likeliest token and the entropy, in a batch of different lengths."""
    run = force(translator, data[1], tmp_path / "run", **{"train.steps": 1})
    predictor, comparison = run.predictor(), run.model.comparison
    assert isinstance(comparison, ForcedDecoding)
    parts = [each[0] for each in predictor.encode_input([predictor.parse_input(line) for line in LINES if line], 1)]
    first, second, _ = predictor.lay_out(parts)
    states, features = comparison.force(first, second)
    base = load(translator, device="cpu").model
    for row, part in enumerate(parts):
        source, target = part.ids[: part.sizes[0]], part.ids[part.sizes[0] :]
        logs = teacher_force(base, source, target).logp.double()
        for place, token in enumerate(target):
            entropy = -sum(float(value.exp() * value) for value in logs[place])
            expected = [float(logs[place, token]), float(logs[place].max() - logs[place, token]), entropy]
            assert features[row, place].tolist() == pytest.approx(expected, abs=1e-4)
    width = states.size(-1) // 2
    assert torch.equal(states[0, 0, width:], states[0, 1, :width])  # the state that has read a token predicts the next


def test_words_find_their_tokens() -> None:
    tokenizer = CharacterTokenizer()
    tokenizer.train(["Ein Hund, ja!"], 300)
    text = "Ein Hund, ja!"
    reader, counter = QualityReader(tokenizer, 50, target=tokenizer), CharacterCounter(tokenizer)
    ids = tokenizer.encode(text)
    spans = reader.spans(counter, ids, text)
    assert [tokenizer.decode(ids[first:last]).strip() for first, last in spans] == ["Ein", "Hund", ",", "ja", "!"]
    assert [text[start:end] for start, end in units(text)] == ["Ein", "Hund", ",", "ja", "!"]
    cut = QualityReader(tokenizer, 6, target=tokenizer).spans(counter, ids, text)
    assert cut[0] == (0, 3) and cut[-1] == (5, 6)


def test_the_vector_of_a_word_is_the_mean_of_its_tokens() -> None:
    states = torch.arange(8.0).reshape(1, 4, 2)
    spans = torch.tensor([[[0, 1], [1, 3], [-1, -1]]])
    assert mean_of_spans(states, spans).tolist() == [[[0, 1], [3, 4], [0, 0]]]


def test_metrics_are_their_formulas() -> None:
    random = np.random.default_rng(2)
    tags = [[("OK", "BAD")[int(each)] for each in random.integers(0, 2, 7)] for _ in range(40)]
    said = [[tag if random.random() < 0.7 else "OK" for tag in row] for row in tags]
    ours, theirs = ([join_label("1", row) for row in rows] for rows in (said, tags))
    flat = [np.array([tag == "BAD" for row in rows for tag in row], float) for rows in (said, tags)]
    found = {metric.name: metric.score(metric.count(ours, theirs)).value for metric in (Matthews(), BadF1(), OkF1())}
    assert found["MCC"] == pytest.approx(100 * np.corrcoef(*flat)[0, 1])
    both = (flat[0] * flat[1]).sum()
    assert found["F1 BAD"] == pytest.approx(100 * 2 * both / (flat[0].sum() + flat[1].sum()))
    none = ((1 - flat[0]) * (1 - flat[1])).sum()
    assert found["F1 OK"] == pytest.approx(100 * 2 * none / ((1 - flat[0]).sum() + (1 - flat[1]).sum()))
    assert Matthews().score(Matthews().count(["1\tOK OK"], ["1\tOK BAD"])).value == 0
    scores = ScorePearson().count(["1\tOK", "2\tBAD", "4"], ["2", "4\tOK", "8\tBAD"])
    assert ScorePearson().score(scores).value == pytest.approx(100)


def test_labels_are_texts() -> None:
    assert split_label("63.1\tOK BAD") == ("63.1", ["OK", "BAD"]) and split_label("BAD") == ("", ["BAD"])
    assert split_label("5") == ("5", []) and split_label("") == ("", [])
    assert join_label("", ["OK"]) == "OK" and score_of("OK BAD") == 50 and score_of("7\tOK") == 7


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"source": "a", "translation": "b c", "score": 1, "tags": "OK"}', "there are 1 tags for the 2 words"),
        ('{"source": "a", "translation": "b", "score": "good", "tags": "OK"}', "example 1: the score 'good' is not a number"),
        ('{"source": "a", "translation": "b", "score": 1, "tags": "FINE"}', "the tag 'FINE' is neither OK nor BAD"),
        ('{"source": "a", "translation": "b", "score": 1}', "there is no 'tags'"),
    ],
)
def test_wrong_data_is_refused(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=says):
        list(quality_format("both").open(str(tmp_path / "x.jsonl")))


def test_tables_have_a_column_for_each(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a b\tc d\t70\tOK BAD\n")
    assert list(quality_format("both").open(str(tmp_path / "x.tsv"))) == [("a b\tc d", "70\tOK BAD")]
    assert list(quality_format("tags").open(f"{tmp_path}/x.tsv#1,2,4")) == [("a b\tc d", "OK BAD")]
    assert list(quality_format("number").open(f"{tmp_path}/x.tsv#1,2,3")) == [("a b\tc d", "70")]


def test_wrong_inputs_and_settings_are_refused(
    trained: Translator, translator: Path, data: tuple[str, str], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="an input has two texts, a source and a translation"):
        trained.translate("only one")
    with pytest.raises(DataError, match="the translation is empty"):
        trained.translate("a\t ")
    task = {"kind": "quality", "estimator": "siamese"}
    with pytest.raises(ConfigError, match="reads both texts with one encoder"):
        library.train(
            "transformer-tiny",
            start=translator,
            data=data[1],
            out=tmp_path / "x",
            set={"task": task, "train.device": "cpu", "train.steps": 1},
        )
