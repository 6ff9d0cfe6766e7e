"""Tagging from a file of tagged words to tags: learning, resuming, scoring, predicting, and what is said when it fails."""

from __future__ import annotations

import gzip
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
from weft.config.registry import build
from weft.data.batch import TagBatch
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder
from weft.tasks.tagging.crf import LinearChainCrf
from weft.tasks.tagging.data import Lexicon, Vocabulary, join_words, make_tagged, open_tagged, split_words
from weft.tasks.tagging.metrics import split_tags
from weft.tasks.tagging.model import PerWord, Tagger
from weft.tasks.tagging.predictor import Tagged
from weft.training import train_run
from weft.training.validate_and_save import Result

SETTINGS: dict[str, Any] = {
    "model.front": {"kind": "words", "spelling": "cnn", "spelling_width": 24, "piece_width": 16},
    "model.encoder.dim": 32,
    "model.encoder.embedding": 40,
    "model.encoder.dropout": 0.0,
    "task.dropout": 0.0,
    "train.steps": 150,
    "train.batch_tokens": 400,
    "train.precision": "float32",
    "train.schedule": {"kind": "cosine", "rate": 2e-2, "warmup": 15},
    "train.validate_every": 0,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}
ENDINGS = {"ing": "PLACE", "ed": "PERSON"}


def write(path: Path, count: int, seed: int) -> Path:
    """Names whose type follows from their ending, of one to three words, between small words. Names never repeat."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        for _ in range(draw.randint(1, 3)):
            lines += [f"{word}\tO" for word in draw.choices(["the", "a", "of", "to"], k=draw.randint(1, 3))]
            ending = draw.choice(list(ENDINGS))
            for place in range(draw.randint(1, 3)):
                lines.append(f"{''.join(draw.choices('bdfgklmnprst', k=3))}{ending}\t{'I' if place else 'B'}-{ENDINGS[ending]}")
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def train(out: Path, data: Path | str, settings: Mapping[str, Any] | None = None, **options: Any) -> Result:
    return train_run.train("tagger-crf", out=out, data=str(data), set={**SETTINGS, **(settings or {})}, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tagged")
    return write(folder / "train.tsv", 300, 1), write(folder / "valid.tsv", 40, 2)


@pytest.fixture(scope="module")
def run(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "names"
    result = train(out, files[0], valid=str(files[1]))
    assert result.scores["f1"] >= 90
    assert result.scores["unknown_accuracy"] >= 95
    assert result.scores["loss"] < 0.2
    return out


def test_a_run_tags_text_and_tables(run: Path, files: tuple[Path, Path], weft: tiny.Shell, tmp_path: Path) -> None:
    text = "the bilking of\n\nkebed to lofing\n"
    expected = "the\tO\nbilking\tB-PLACE\nof\tO\n\n\nkebed\tB-PERSON\nto\tO\nlofing\tB-PLACE\n\n"
    assert weft("predict", run, stdin=text) == expected
    first = json.loads(weft("predict", run, "--json", stdin=text).splitlines()[0])
    assert first["words"] == ["the", "bilking", "of"] and first["tags"] == ["O", "B-PLACE", "O"] and first["score"] < 0
    (tmp_path / "words.tsv.gz").write_bytes(gzip.compress(files[1].read_bytes()))
    weft("predict", run, tmp_path / "words.tsv.gz", "-o", tmp_path / "tagged.tsv")
    words = [split_words(source) for source, _ in open_tagged(str(files[1]))]
    assert [split_words(source) for source, _ in open_tagged(str(tmp_path / "tagged.tsv"))] == words
    weft.fails("predict", run, stdin="the\tO\n", says=["a tab in the text", ".tsv"])


def test_a_run_is_scored_beside_a_floor(run: Path, files: tuple[Path, Path], weft: tiny.Shell, tmp_path: Path) -> None:
    found = json.loads(weft("evaluate", run, "--data", files[1], "--json", "-o", tmp_path / "said.tsv"))
    assert set(found["metrics"]) == {"F1", "precision", "recall", "accuracy", "unknown accuracy"}
    assert found["metrics"]["F1"]["value"] >= 90
    assert "the most frequent tag of each word would have: F1 " in weft.err
    assert len(list(open_tagged(str(tmp_path / "said.tsv")))) == 40


def test_a_tag_that_training_does_not_have_is_wrong_and_said(run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    (tmp_path / "test.tsv").write_text("the\tO\nbilking\tB-PLACE\n\nthe\tO\nFriday\tB-DAY\nnext\tI-DAY\n")
    found = json.loads(weft("evaluate", run, "--data", tmp_path / "test.tsv", "--json"))
    assert found["metrics"]["accuracy"]["value"] <= 60
    assert "2 words have a tag that does not occur in training, so they count as wrong: 'B-DAY', 'I-DAY'" in weft.err


def test_predictions_do_not_depend_on_the_batch(run: Path, files: tuple[Path, Path]) -> None:
    texts = [source for source, _ in open_tagged(str(files[1]))]
    tagger = weft.load(run, device="cpu")
    together, alone = tagger.translate(texts), [tagger.translate(text) for text in texts]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], abs=1e-4)


def test_a_long_sentence_is_tagged_in_pieces(run: Path) -> None:
    warned: list[str] = []
    tagger = weft.load(run, device="cpu", warn=warned.append)
    longest = tagger.config.data.max_length
    found = tagger.translate("the bilking of " * longest)
    assert isinstance(found, Tagged)
    assert len(found.tags) == 3 * longest and found.tags.count("B-PLACE") >= longest - 6
    assert warned == [f"line 1 is tagged in 3 pieces, because the model reads {longest} positions"]


def test_an_encoder_may_read_pieces_and_sentences_may_be_held_out(files: tuple[Path, Path], tmp_path: Path) -> None:
    settings = {
        "data.tokenizer": "bpe",
        "data.vocabulary": 320,
        "data.hold_out": 20,
        "model": {"kind": "transformer", "dim": 16, "heads": 2, "feedforward": 32, "encoder_layers": 1},
        "task": {"kind": "tagging", "per_word": "mean", "entities": "iob2"},
        "train": {"steps": 2, "batch_tokens": 400, "best_by": "f1", "device": "cpu", "threads": 1, "tensorboard": False},
    }
    result = train_run.train("tagger", out=tmp_path / "run", data=str(files[0]), set=settings)
    assert 0 <= result.scores["f1"] <= 100 and result.scores["loss"] < 5
    train_run.train(out=tmp_path / "run", resume=True, set={"train.steps": 3})
    tagger = weft.load(tmp_path / "run", device="cpu")
    found = tagger.translate(["the bilking of", "a"])
    assert [len(each.tags) for each in found if isinstance(each, Tagged)] == [3, 1]
    seen = tagger.translate("the bilking", attention=True)
    assert [weights.shape[1:] for weights in seen.attention.values()] == [(len(seen.source_tokens),) * 2]
    assert len(list(tagger.task.data_format.open(str(tmp_path / "run" / "held-out.jsonl")))) == 20


def batch(lengths: list[int], whole: bool, seed: int = 0) -> TagBatch:
    """Sentences of so many words, of one to five pieces each."""
    draw, count = np.random.default_rng(seed), sum(lengths)
    sizes = draw.integers(1, 6, count)
    words, pieces, tags = draw.integers(4, 20, count), draw.integers(4, 20, sizes.sum()), draw.integers(0, 3, count)
    return make_tagged(words, pieces, sizes, tags, np.array(lengths), whole=whole)


def row_alone(given: TagBatch, row: int, length: int) -> TagBatch:
    """One sentence of a batch without its padding."""
    at = slice(row, row + 1)
    words = given.labels[at, :length]
    if given.starts is None:
        table = given.source.values[row, :length]
        sizes = (table[:, 1:] > 0).sum(1)
        pieces = table[:, 1:][table[:, 1:] > 0]
        ids = table[:, 0]
    else:
        pieces = (
            given.source.values[row, : given.source.layout.counts[row]] if given.source.layout else given.source.values[row]
        )
        ends = torch.cat([given.starts[row, 1:length], torch.tensor([len(pieces)])])
        sizes, ids = ends - given.starts[row, :length], torch.zeros(length, dtype=torch.long)
    arrays = (ids.numpy(), pieces.numpy(), sizes.numpy(), words[0].numpy(), np.array([length]))
    return make_tagged(*arrays, whole=given.starts is None)


PARTS: list[tuple[PerWord, dict[str, Any]]] = [
    *(("front", {"kind": "words", "spelling": kind, "spelling_width": 6}) for kind in ("cnn", "lstm", "mean", "first")),
    ("first", {"kind": "tokens"}),
    ("mean", {"kind": "tokens"}),
]


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize(("per_word", "front"), PARTS)
def test_neither_padding_nor_other_rows_change_a_sentence(per_word: PerWord, front: dict[str, Any], chain: bool) -> None:
    torch.manual_seed(0)
    sizes = Sizes(20, reads="words", pieces=20) if per_word == "front" else Sizes(20)
    spec = {"kind": "composed", "front": front, "encoder": {"kind": "rnn", "dim": 16}}
    model = Tagger(build_encoder(spec, sizes), 3, per_word, LinearChainCrf(3) if chain else None).eval()
    lengths = [7, 1, 4]
    together = batch(lengths, per_word == "front")
    scores = model(together.source, together.words, together.starts)
    tags, values = model.best(scores, together.words)
    for row, length in enumerate(lengths):
        alone = row_alone(together, row, length)
        single = model(alone.source, alone.words, alone.starts)
        torch.testing.assert_close(scores[row, :length], single[0], atol=1e-5, rtol=1e-4)
        found, value = model.best(single, alone.words)
        assert found[0].tolist() == tags[row, :length].tolist()
        torch.testing.assert_close(values[row : row + 1], value, atol=1e-5, rtol=1e-4)
    parts = [row_alone(together, row, length) for row, length in enumerate(lengths)]
    each = [model.loss(model(part.source, part.words, part.starts), part.labels) for part in parts]
    torch.testing.assert_close(model.loss(scores, together.labels), torch.stack(each).sum(), atol=1e-4, rtol=1e-4)
    model.loss(scores, together.labels).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["transformer", "rnn", "convs2s"])
def test_every_encoder_with_a_vector_per_piece_serves(kind: str) -> None:
    torch.manual_seed(0)
    model = Tagger(build_encoder({"kind": kind, "dim": 16}, Sizes(20)), 5, "mean").eval()
    given = batch([3, 6], whole=False)
    assert model(given.source, given.words, given.starts).shape == (2, 6, 5)


def test_an_encoder_without_a_vector_per_piece_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not have one vector per word"):
        Tagger(build_encoder({"kind": "bytenet", "dim": 16}, Sizes(20)), 5, "mean")
    Tagger(build_encoder({"kind": "bytenet", "dim": 16, "unfold_ratio": 1.0}, Sizes(20)), 5, "mean")


def test_unknown_words_are_read_in_training_only() -> None:
    """Word dropout replaces the word, not its pieces, and only in training."""
    from weft.models.frontends.base import FrontendSite

    site = FrontendSite(Sizes(20, reads="words", pieces=20), 16)
    front = build("weft.models:FRONTS", {"kind": "words", "spelling_width": 6, "word_dropout": 0.99}, site)
    source = batch([40], whole=True).source
    noisy, plain = front.train()(source)[0], front.eval()(source)[0]
    torch.testing.assert_close(noisy[..., 10:], plain[..., 10:])
    assert (noisy[..., :10] != plain[..., :10]).any(-1).float().mean() > 0.8


BAD = {
    "the\tO\n\tB-LOC\n": "line 2: the tag 'B-LOC' has no word",
    "the\tO\nplace\t\n": "line 2: the word 'place' has no tag",
    "the\tO\nplace\tB-LOC\tNN\n": "line 2: 3 columns, but the lines before it have 2",
    "the O\n": "line 1: there is no column 2, only 1",
    "\n\n": "is empty",
    "the\tO\nplace\tLOC\n": "sentence at line 1: the tag 'LOC' is not one of an entity",
    "the\tO\na\tO\n": "there is only the tag 'O', and a tagger needs at least two",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_data_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text(text)
    with pytest.raises(DataError) as error:
        train(tmp_path / "run", tmp_path / "bad.tsv")
    assert "bad.tsv" in str(error.value) and BAD[text] in str(error.value)
    assert not (tmp_path / "run").exists()


def test_columns_are_chosen_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("New York\tPROPN\tNNP\nruns\tVERB\tVBZ\n\n\nyes\tINTJ\tUH\n")
    pairs = [(split_words(source), split_tags(target)[1]) for source, target in open_tagged(f"{tmp_path / 'a.tsv'}#1,3")]
    assert pairs == [(["New York", "runs"], ["NNP", "VBZ"]), (["yes"], ["UH"])]
    assert split_words(join_words(["New York"])) == ["New York"]
    for wrong in ("#1", "#0,1", "#word,tag"):
        with pytest.raises(DataError, match="two numbers from 1 on"):
            open_tagged(f"{tmp_path / 'a.tsv'}{wrong}")


def test_the_lexicon_knows_frequent_words_and_usual_tags(tmp_path: Path) -> None:
    sentences = ["The\tX\nthe\tY\ncat\tN\nAnn\tP", "the\tY\ndog\tN\nThe\tY\na\tY"]
    Lexicon.count(sentences, Vocabulary(2, True, 100)).save(tmp_path / "words.json")
    lexicon = Lexicon.load(tmp_path / "words.json", Vocabulary(2, True, 100))
    assert lexicon.find(["THE", "cat", "bird"]) == [4, 3, 3]
    assert [lexicon.guess(word) for word in ("the", "The", "bird", "Bob")] == ["Y", "X", "N", "P"]
    assert Lexicon.load(tmp_path / "words.json", Vocabulary(1, False, 6)).find(["The", "the", "cat"]) == [4, 5, 3]
