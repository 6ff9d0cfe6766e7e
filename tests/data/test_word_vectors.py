"""Word vectors of a file as the first embeddings: which rows get them, what stays, errors, and `weft vectors`."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tests.helpers import tiny
from weft.data.batch import UNK
from weft.data.word_vectors.vectors import read_vectors, token_tables, vector_lines
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.runs.open_run import open_run
from weft.runs.weight_files import read_tensors
from weft.training import checkpoint, train_run

WORDS = {"good": [1.0, 0.0, 2.0], "bad": [-1.0, 0.5, 0.0], "film": [0.0, 3.0, 1.0], "unseen": [2.0, 2.0, -2.0]}
TABLE = "encoder.front.table.weight"
MODEL = {"kind": "transformer", "dim": 8, "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 1}


def write_vectors(file: Path, words: dict[str, list[float]] = WORDS) -> Path:
    lines = vector_lines(list(words), np.array(list(words.values()), np.float32))
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return file


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    file = tmp_path / "labelled.tsv"
    file.write_text("good film\t1\nBad film\t0\na good one\t1\nbad , bad\t0\n" * 4, "utf-8")
    return str(file)


def train(data: str, out: Path, **settings: Any) -> Path:
    sets = {
        "model": MODEL,
        "data.tokenizer": {"kind": "words", "lowercase": True},
        "data.vocabulary": 50,
        "train.steps": 4,
        "train.batch_tokens": 16,
        "train.save_every": 2,
        "train.device": "cpu",
        "train.tensorboard": False,
        "train.schedule": {"kind": "constant", "rate": 0.01},
        "train.freeze": [TABLE],
    }
    train_run.train("classifier-bytes", data=data, out=out, set=sets | settings)
    return out


def rows(run: Path, words: list[str]) -> Tensor:
    opened = open_run(run)
    ids = [opened.task.source.encode(word) for word in words]  # type: ignore[attr-defined]
    assert all(len(each) == 1 and each[0] != UNK for each in ids), ids
    return read_tensors(run / "model.safetensors")[TABLE][[each[0] for each in ids]]


def test_words_of_the_file_are_in_the_table_and_others_stay(labelled: str, tmp_path: Path) -> None:
    run = train(labelled, tmp_path / "run", **{"start.vectors": str(write_vectors(tmp_path / "words.vec"))})
    plain = train(labelled, tmp_path / "plain")
    known = ["good", "bad", "film"]
    expected = normalize(torch.tensor([WORDS[word] for word in known]))
    assert torch.allclose(normalize(rows(run, known)[:, :3]), expected, atol=1e-5)
    assert torch.equal(rows(run, known)[:, 3:], rows(plain, known)[:, 3:])
    assert torch.equal(rows(run, ["a", "one"]), rows(plain, ["a", "one"]))
    assert not torch.allclose(normalize(rows(plain, known)[:, :3]), expected, atol=0.1)
    assert "words.vec: vectors of 3 of 10 tokens" in (run / "train.log").read_text("utf-8")
    assert open_run(run).task.source.encode("unseen") == [UNK]  # type: ignore[attr-defined]


def test_extend_adds_words_of_the_file_in_its_order(labelled: str, tmp_path: Path) -> None:
    file = write_vectors(tmp_path / "words.vec", WORDS | {"again": [1.0, 1.0, 1.0]})
    run = train(labelled, tmp_path / "run", **{"start.vectors": str(file), "start.extend": 1})
    assert torch.allclose(normalize(rows(run, ["unseen"])[:, :3]), normalize(torch.tensor([WORDS["unseen"]])), atol=1e-5)
    assert open_run(run).task.source.encode("again") == [UNK]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"start.extend: .* words only"):
        train(labelled, tmp_path / "no", **{"start.vectors": str(file), "start.extend": 1, "data.tokenizer": "characters"})


def test_a_narrower_model_gets_the_first_dimensions(labelled: str, tmp_path: Path) -> None:
    wide = {word: [*vector, *range(9)] for word, vector in WORDS.items()}
    run = train(labelled, tmp_path / "run", **{"start.vectors": str(write_vectors(tmp_path / "words.vec", wide))})
    assert torch.allclose(normalize(rows(run, ["bad"])), normalize(torch.tensor([wide["bad"][:8]])), atol=1e-5)
    assert "their first 8 of 12 dimensions" in (run / "train.log").read_text("utf-8")


def test_resuming_gives_the_same_bits_without_the_file(labelled: str, tmp_path: Path) -> None:
    file = write_vectors(tmp_path / "words.vec")
    sets = {"start.vectors": str(file), "start.extend": 2, "train.freeze": []}
    whole = train(labelled, tmp_path / "whole", **sets)
    part = train(labelled, tmp_path / "part", **sets, **{"train.steps": 2})
    file.unlink()
    train_run.train(resume=True, out=part, set={"train.steps": 4})
    first, second = (read_tensors(run / "model.safetensors") for run in (whole, part))
    assert checkpoint.latest(part) is not None and first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ConfigError, match=r"start.vectors .*the weights were trained with it"):
        train_run.train(resume=True, out=part, set={"start.vectors": None})


def test_both_sides_of_a_translator_get_vectors(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("good film\tguter film\nbad film\tübler film\n" * 5, "utf-8")
    file = write_vectors(tmp_path / "words.vec", WORDS | {"guter": [0.0, 0.0, 1.0]})
    sets = {"data.shared_vocabulary": False, "model.share_embeddings": "output", "train.freeze": ["*.table.weight"]}
    sets |= {"start.vectors": str(file), "train.best_by": "loss", "task": "translation", "data.drop_duplicates": False}
    run = train(str(tmp_path / "pairs.tsv"), tmp_path / "run", **sets)
    opened, tensors = open_run(run), read_tensors(run / "model.safetensors")
    for name, tokenizer, word in (
        (TABLE, opened.task.source, "bad"),
        ("decoder.embedding.table.weight", opened.task.target, "guter"),
    ):  # type: ignore[attr-defined]
        row = tensors[name][tokenizer.encode(word)[0], :3]
        assert torch.allclose(
            normalize(row, dim=0), normalize(torch.tensor((WORDS | {"guter": [0.0, 0.0, 1.0]})[word]), dim=0), atol=1e-5
        )


def test_tables_are_those_of_tokens_only() -> None:
    spec = MODEL | {"position": "learned", "max_length": 30, "feedforward": 30, "share_embeddings": "none"}
    names = set(token_tables(build_model(spec, Sizes(30, 30, shared=True)), 30))
    assert names == {TABLE, "decoder.embedding.table.weight", "decoder.output.weight"}


@pytest.mark.parametrize("header", ["2 3\n", ""])
def test_the_usual_formats_are_read(tmp_path: Path, header: str) -> None:
    text = f"{header}good 1 0 2.5 \n. . . -1 5e-1 0\ngood 9 9 9\n"
    with gzip.open(tmp_path / "words.vec.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    words, vectors = read_vectors(tmp_path / "words.vec.gz")
    assert words == ["good", ". . ."] and vectors.tolist() == [[1.0, 0.0, 2.5], [-1.0, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("good 1 2\nbad 1\n", r"line 2: expected a word and 2 numbers"),
        ("good 1 2\nbad 1 x\n", r"line 2: expected a word and 2 numbers"),
        ("2 2\ngood 1 nan\n", r"line 2: expected a word and 2 numbers"),
        ("good\n", r"line 1: expected a word and 1 numbers"),
        ("", r"there are no word vectors in it"),
    ],
)
def test_lines_that_are_no_vectors_are_errors(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "words.vec").write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / "words.vec")


def test_settings_that_do_not_fit_are_errors(labelled: str, tmp_path: Path, reverse_run: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.vec: there is no such file"):
        train(labelled, tmp_path / "no", **{"start.vectors": str(tmp_path / "nowhere.vec")})
    other = write_vectors(tmp_path / "other.vec", {"gut": [1.0, 2.0]})
    with pytest.raises(ConfigError, match=r"no word of .*other.vec is a token"):
        train(labelled, tmp_path / "no", **{"start.vectors": str(other)})
    with pytest.raises(ConfigError, match=r"start.vectors: the embeddings are those of start.run"):
        train_run.train(start=reverse_run, out=tmp_path / "no", set={"start.vectors": str(other)})
    assert not (tmp_path / "no").exists()


def test_vectors_of_a_text_can_be_written_and_used(labelled: str, tmp_path: Path, weft: tiny.Shell) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The good film , it 's fine\nThe bad film, not fine\n" * 10, "utf-8")
    weft("vectors", text, text, "-o", tmp_path / "words.vec", "--width", "4")
    words, vectors = read_vectors(tmp_path / "words.vec")
    assert {"good", "bad", "film", "the", ","} <= set(words) and vectors.shape == (len(words), 4)
    assert not any("￭" in word for word in words)
    weft("vectors", text, "-o", tmp_path / "spaces.vec.gz", "--spaces")
    assert {"'s", "film,"} <= set(read_vectors(tmp_path / "spaces.vec.gz")[0])
    run = train(labelled, tmp_path / "run", **{"start.vectors": str(tmp_path / "words.vec")})
    expected = torch.from_numpy(vectors[[words.index("good")]])
    assert torch.allclose(normalize(rows(run, ["good"])[:, :4]), normalize(expected), atol=1e-4)
