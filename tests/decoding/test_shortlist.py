"""Shortlists: texts are made of their own sentence's tokens, whatever the batch; where these are all, nothing changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers import tiny
from weft.data.batch import EOS
from weft.data.formats import open_pairs
from weft.data.ibm_model_1 import likely_translations
from weft.data.sentence_pairs import prepare_pairs
from weft.data.tokenizers.word_character_byte import CharacterTokenizer
from weft.decoding.shortlist import FILE, Shortlist
from weft.errors import ConfigError, RunError
from weft.layers.int8 import in_int8
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.runs.translator import Translator
from weft.tasks.translation.glossary import Terms
from weft_contract.model_entries import SMALL, VOCABULARY

eight_bits = pytest.mark.skipif(torch.backends.quantized.engine not in ("x86", "fbgemm"), reason="no kernel for eight bits")
PRECISIONS = ["float32", "bf16", pytest.param("int8", marks=eight_bits)]


@pytest.fixture(scope="module")
def run(reverse_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(reverse_run, tmp_path_factory.mktemp("shortlist") / "run"))


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return [source for source, _ in open_pairs(tiny.generated("reverse", 40, "test", longest=9))]


def with_own_tokens_alone(run: Path) -> Translator:
    """Each source token leads to itself and its neighbour, and none is frequent: no two texts choose among the same tokens."""
    size = weft.load(run, device="cpu").source.size
    token = np.arange(size, dtype=np.int32)
    Shortlist(np.stack([token, np.minimum(token + 1, size - 1)], 1), np.zeros(0, np.int32), own=False).write(run / FILE)
    return weft.load(run, device="cpu")


def test_companions_are_ranked_by_how_often_they_come_together(tmp_path: Path) -> None:
    pairs = [("a", "xz"), ("ac", "xvz"), ("b", "yz"), ("abc", "xyvz"), ("d", "z")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    source, target = CharacterTokenizer(byte_fallback=False), CharacterTokenizer(byte_fallback=False)
    source.train("abcd", 20)
    target.train("vxyz", 20)
    corpus = prepare_pairs([open_pairs(f"{tmp_path}/pairs.tsv")], source, target, folder=tmp_path / "cache", max_length=9)
    likely, frequent = likely_translations(corpus, source.size, target.size, most=2, frequent=2, pairs=100)
    assert set(frequent) == {EOS, target.encode("z")[0]}
    best = {letter: target.decode([likely[source.encode(letter)[0], 0]]) for letter in "abc"}
    assert best == {"a": "x", "b": "y", "c": "v"}, "c is always with a, but x is explained without it"
    assert (likely[source.encode("d")[0]] == -1).all(), "what is frequent is nobody's"
    assert (likely[0] == -1).all(), "a token that was never seen leads to nothing"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["transformer", "rnn", "convs2s", "bytenet"])
def test_part_of_an_output_layer_gives_what_the_whole_gives(kind: str, precision: str) -> None:
    torch.manual_seed(4)
    model = build_model({"kind": kind, **SMALL[kind]}, Sizes(VOCABULARY, VOCABULARY, True)).eval()
    model = in_int8(model) if precision == "int8" else model.to(getattr(torch, {"bf16": "bfloat16"}.get(precision, precision)))
    tokens = torch.tensor([0, 2, 3, 7, 18])
    with torch.inference_mode():
        width = model.decoder.output.in_features
        hidden = torch.randn(6, width, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
        found, wanted = model.decoder.among(tokens)(hidden), model.decoder.logits(hidden)[:, tokens]
    torch.testing.assert_close(
        found, wanted, rtol=1e-2 if precision == "bf16" else 1e-5, atol=1e-2 if precision == "bf16" else 1e-5
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4, "n_best": 2}, {"beam": 2, "no_repeat_ngram": 2}], ids=str)
def test_among_all_tokens_texts_are_the_same(run: Path, sentences: list[str], precision: str, options: dict[str, Any]) -> None:
    size = weft.load(run, device="cpu").source.size
    Shortlist(np.full((size, 1), -1, np.int32), np.arange(size, dtype=np.int32), own=True).write(run / FILE)
    translator = weft.load(run, device="cpu")
    found = translator.translate(sentences, precision=precision, shortlist=1, **options)
    wanted = translator.translate(sentences, precision=precision, **options)
    for one, other in zip(found, wanted, strict=True):
        assert (one.ids, one.text, one.tokens) == (other.ids, other.text, other.tokens)
        assert one.score == pytest.approx(other.score, abs=1e-3)


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3}, {"sample": True, "seed": 3}], ids=str)
def test_a_text_has_the_tokens_of_its_own_sentence_whatever_its_batch(
    run: Path, sentences: list[str], options: dict[str, Any]
) -> None:
    translator = with_own_tokens_alone(run)
    together = translator.translate(sentences, shortlist=1, **options)
    for sentence, found in zip(sentences, together, strict=True):
        ids = set(translator.source.encode(sentence))
        assert set(found.ids) <= ids | {EOS}
        alone = translator.translate(sentence, shortlist=1, **options)
        assert alone.ids == found.ids and alone.score == pytest.approx(found.score, abs=1e-4)
    wider = translator.translate(sentences, shortlist=2, **options)
    assert any(one.score != other.score for one, other in zip(wider, together, strict=True)), "2 tokens are more than 1"


def test_a_forced_beginning_may_have_any_token(run: Path, sentences: list[str]) -> None:
    translator = with_own_tokens_alone(run)
    found = translator.translate(sentences, prefix=["q q"] * len(sentences), shortlist=1, beam=2)
    assert all(each.text.startswith("q q") for each in found)


def test_lines_with_terms_choose_among_all_tokens(run: Path) -> None:
    translator = with_own_tokens_alone(run)
    found = translator.translate("a b c", terms=Terms(use=("q",)), shortlist=1, beam=2)
    assert "q" in found.text.split()


def test_what_is_missing_or_does_not_fit_is_said(run: Path, reverse_run: Path, other_run: Path) -> None:
    with pytest.raises(RunError, match="weft shortlist"):
        weft.load(reverse_run, device="cpu").translate("a b", shortlist=5)
    Shortlist(np.zeros((3, 1), np.int32), np.zeros(1, np.int32), own=True).write(run / FILE)
    with pytest.raises(RunError, match="other vocabularies"):
        weft.load(run, device="cpu").translate("a b", shortlist=5)
    with_own_tokens_alone(run)
    with pytest.raises(ConfigError, match=r"decode\.shortlist: the output layer of EnsembleDecoder"):
        weft.load([run, other_run], device="cpu").translate("a b", shortlist=5)


def test_the_command_counts_in_the_training_data(weft: tiny.Shell, run: Path) -> None:
    weft("shortlist", run)
    found = weft("translate", run, "--set", "decode.shortlist=20", "decode.workers=1", stdin="a b c\nd e\n")
    assert found == "c b a\ne d\n"
    weft.fails("shortlist", run.parent, says=["not a run folder"])
