"""Runs whose model writes all tokens at once: training, translating, reranking, attention, int8 and refusals."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import tiny
from tests.helpers.serving import running
from weft.data.ibm_model_2 import TranslationTable
from weft.errors import ConfigError
from weft.explain.html_page import document
from weft.runs.translator import Translator, load
from weft.runs.weight_files import read_tensors
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.tasks.corpus_task import DISTILLED
from weft.tasks.nonautoregressive.fertility import FILE
from weft.tasks.translation.glossary import Terms
from weft.training import train_run

RECIPES = {
    "nat-ctc": {"search": "ctc_beam"},
    "nat-mask-predict": {"search": {"kind": "refine", "iterations": 3, "lengths": 3}},
    "nat-length": {},
    "nat-blanks": {},
    "nat-fertility": {},
}
STACK = {"dim": 32, "heads": 2, "feedforward": 64, "layers": 1, "dropout": 0.0, "attention_dropout": 0.0}
TEXTS = ["a b c d", "e f", "g a a b c d"]


def settings(steps: int = 2) -> dict[str, Any]:
    general = {key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.") and key != "decode.beam"}
    model = {f"model.{part}.{key}": value for part in ("encoder", "decoder") for key, value in STACK.items()}
    return {**general, **model, "train.steps": steps, "train.ema": 0.0, "train.batch_tokens": 300}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each recipe, hardly trained."""
    folder = tmp_path_factory.mktemp("parallel")
    for name in RECIPES:
        train_run.train(name, out=folder / name, data=tiny.generated("reverse", 60), set=settings())
    return {name: folder / name for name in RECIPES}


def opened(runs: dict[str, Path], name: str) -> Translator:
    return load(runs[name], device="cpu")


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_translates_lines_alone_and_together(runs: dict[str, Path], name: str) -> None:
    translator, options = opened(runs, name), RECIPES[name]
    together = translator.translate(TEXTS, n_best=1, **options)
    assert [each.text for each in together] == [translator.translate(text, **options).text for text in TEXTS]
    several = translator.translate(TEXTS[0], n_best=2 if name != "nat-blanks" else 1, **options)
    scores = [several.score, *(each.score for each in several.alternatives)]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", RECIPES)
def test_attention_has_a_row_for_each_token(runs: dict[str, Path], name: str) -> None:
    found = opened(runs, name).translate(TEXTS[2], attention=True)
    cross = [weights for layer, weights in found.attention.items() if found.uses[layer] == "cross"]
    assert cross
    assert all(weights.shape[1:] == (len(found.ids), len(found.source_tokens)) for weights in cross)


def test_explain_shows_what_each_pass_wrote(runs: dict[str, Path]) -> None:
    """The first pass writes everything, later ones less, and the last one leaves the translation."""
    search = {"kind": "refine", "iterations": 3, "lengths": 2}
    found = opened(runs, "nat-mask-predict").explain(TEXTS[2], search=search)
    assert len(found.passes) == 3
    assert all(found.passes[0].written)
    written = [sum(each.written) for each in found.passes]
    assert written[0] > written[1] > written[2]
    assert found.passes[-1].tokens == found.target.tokens
    for before, after in pairwise(found.passes):
        rows = zip(before.tokens, after.tokens, after.written, strict=True)
        assert all(old == new for old, new, changed in rows if not changed)


@pytest.mark.parametrize("name", RECIPES)
def test_explain_shows_attention_among_all_target_tokens(runs: dict[str, Path], name: str) -> None:
    found = opened(runs, name).explain(TEXTS[2], target="g f")
    assert [each.use for each in found.maps] == ["cross", "encoder", "target"]
    for each in found.maps:
        rows, columns = found.sides(each)
        assert each.weights.shape[1:] == (len(rows.tokens), len(columns.tokens))
    assert found.passes and not found.tree
    assert document(found)["passes"]


def test_a_path_is_shown_with_its_blanks(runs: dict[str, Path]) -> None:
    translator = opened(runs, "nat-ctc")
    for search in ("ctc", "ctc_beam"):
        (path,) = translator.explain(TEXTS[2], target="g f", search=search).passes
        assert len(path.tokens) == 2 * 7 and all(path.written)  # two positions for each of six words and the end


def test_a_server_answers_with_it(runs: dict[str, Path]) -> None:
    models = Models([ModelLocation((str(runs["nat-ctc"]),), ("en", "de"))], device="cpu")
    expected = [each.text for each in opened(runs, "nat-ctc").translate(TEXTS)]
    with running(models) as server:
        assert [each["text"] for each in server.translate(TEXTS)] == expected


def test_int8_translates(runs: dict[str, Path]) -> None:
    assert len(opened(runs, "nat-ctc").translate(TEXTS, precision="int8")) == 3


def test_the_teacher_ranks_the_candidates(runs: dict[str, Path], reverse_run: Path) -> None:
    """The winner is the candidate that the teacher finds most probable per token."""
    translator, teacher = opened(runs, "nat-ctc"), load(reverse_run, device="cpu").translation_predictor("test")
    beam = {"kind": "ctc_beam", "width": 6}
    rerank = {"kind": "model", "run": str(reverse_run), "weight": 1.0, "candidates": 6}
    for text in TEXTS:
        first = translator.translate(text, search=beam, n_best=6)
        candidates = [each.text for each in (first, *first.alternatives)]
        scores = [logp / length for logp, length in teacher.log_likelihoods(text, candidates)]
        assert translator.translate(text, search=beam, rerank=rerank).text == candidates[scores.index(max(scores))]
        alone = {**rerank, "candidates": 1}
        assert (
            translator.translate(text, search="ctc_beam", rerank=alone).text
            == translator.translate(text, search="ctc_beam").text
        )


def test_a_teacher_counts_fertilities(reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention links each word with one word, and no alignment is counted from the corpus."""
    monkeypatch.setattr(TranslationTable, "count", lambda *_: pytest.fail("the teacher aligns"))
    train_run.train(
        "nat-fertility", out=tmp_path / "x", data=tiny.generated("reverse", 60), teacher=reverse_run, set=settings(1)
    )
    (found,) = np.load(tmp_path / "x" / FILE).values()
    sources = sum(len(json.loads(line)["source"].split()) + 1 for line in (tmp_path / "x" / DISTILLED).open())
    assert len(found) == sources
    assert (found == 1).mean() > 0.6, "all but the end of each source, if the attention were perfect"


def test_the_teachers_own_translation_always_wins(reverse_run: Path) -> None:
    """Among candidates that contain the teacher's beam output, the teacher prefers it."""
    teacher = load(reverse_run, device="cpu").translation_predictor("test", beam=4)
    for text in TEXTS:
        own = next(teacher.predict([teacher.parse_input(text)])).text
        others = ["a", "a b", text, " ".join(reversed(own.split()[1:]))]
        scores = [logp / length for logp, length in teacher.log_likelihoods(text, [own, *others])]
        assert max(scores) == scores[0]


def test_what_does_not_fit_is_refused(runs: dict[str, Path], weft: tiny.Shell) -> None:
    translator = opened(runs, "nat-length")
    for options, says in [
        ({"prefix": "a"}, "a forced prefix"),
        ({"terms": Terms(use=("a",))}, "terms that must be used"),
        ({"beam": 2}, "writes one token after the other"),
    ]:
        with pytest.raises(ConfigError, match=says):
            translator.translate("a b", **options)
    with pytest.raises(ConfigError, match="leave out --influence"):
        translator.explain("a b", influence=True)
    data = ("--data", tiny.generated("reverse", 60), "--out", runs["nat-ctc"].parent / "x")
    weft.fails("train", "nat-ctc", *data, "--set", "task=translation", says=["set task: parallel_translation"])
    weft.fails("train", "transformer-tiny", *data, "--set", "task=parallel_translation", says=["writes all tokens at once"])


@pytest.mark.parametrize(("name", "search"), [("nat-length", "one_pass"), ("nat-ctc", "ctc"), ("nat-ctc", "ctc_beam")])
def test_avoided_terms_do_not_occur(runs: dict[str, Path], name: str, search: str) -> None:
    translator = opened(runs, name)
    free = [each.text.split() for each in translator.translate(TEXTS, search=search)]
    terms = [Terms(avoid=tuple(words[:1])) for words in free]
    for words, found in zip(free, translator.translate(TEXTS, search=search, terms=terms), strict=True):
        assert not words or words[0] not in found.text.split()


def test_the_blank_moves_behind_new_tokens(runs: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "new.tsv"
    data.write_text("a b qa\tqa b a\nb qa\tqa b\n" * 20)
    changes = {"start.extend": 3, "data.hold_out": 0, "train.steps": 1, "train.schedule": {"kind": "constant", "rate": 1e-9}}
    train_run.train(start=runs["nat-length"], data=str(data), out=tmp_path / "run", set=changes)
    old, new = (read_tensors(run / "model.safetensors") for run in (runs["nat-length"], tmp_path / "run"))
    longer = [name for name in old if len(new[name]) == len(old[name]) + 1]
    assert longer and all(torch.allclose(new[name][-1], old[name][-1], atol=1e-6) for name in longer)
    assert all(torch.allclose(new[name][: len(old[name]) - 1], old[name][:-1], atol=1e-6) for name in longer)
