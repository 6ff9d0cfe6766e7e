"""Translation without translated text: its batches, its back-translations, and that it resumes exactly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers.generated_texts import SAME, sentences, twin
from tests.helpers.monolingual_pair import settings, write_texts
from weft.cli import run
from weft.config.sections import load_config
from weft.data.batch import BOS, EOS, PAD, Source
from weft.data.text_lines import read_lines
from weft.data.word_noise import text_of
from weft.data.word_vectors.bilingual_dictionary import nearest
from weft.errors import ConfigError, DataError, RunError
from weft.evaluation.metrics import make_metrics, score
from weft.runs.weight_files import read_tensors
from weft.tasks.base import build_task, decoded_texts, optimizer_groups
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.unsupervised.data import TOKENS, WORDS, UnpairedBatch, foreign_tokens
from weft.tasks.unsupervised.losses import back_translations, denoising_loss
from weft.tasks.unsupervised.model import BilingualModel
from weft.tasks.unsupervised.task import UnsupervisedTask


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_texts(tmp_path_factory.mktemp("texts"))


def prepared(files: list[str], folder: Path, **changes: Any) -> tuple[UnsupervisedTask, BilingualModel]:
    sets = [f"{key}={value}" for key, value in settings(folder, **changes).items() if not isinstance(value, dict)]
    config = load_config("unsupervised", sets).replaced({"data.train": files})
    folder.mkdir(exist_ok=True)
    task = build_task(config, folder)
    assert isinstance(task, UnsupervisedTask)
    torch.manual_seed(0)
    model = task.build(config.model, task.prepare())
    assert isinstance(model, BilingualModel)
    return task, model


def test_batches_hold_texts_noise_and_translations_word_by_word(files: list[str], tmp_path: Path) -> None:
    task, _ = prepared(files, tmp_path / "run")
    batch, _ = next(task.batches(weft.data.batch.Position()))
    english, other = task.two.first, task.two.second
    for row in range(len(batch.rows)):
        target = [token for token in batch.target[row].tolist() if token != PAD]
        labels = [token for token in batch.labels[row].tolist() if token != PAD]
        clean = [token for token in batch.clean.values[row].tolist() if token != PAD]
        assert target[0] == BOS and target[1] in (english, other) and target[1] != batch.other[row]
        assert labels == clean == [*target[2:], EOS]
        assert batch.labels[row, 0] == PAD
    assert (batch.source.values == task.marked.added_id("blank")).any()


def test_noise_follows_from_the_position(files: list[str], tmp_path: Path) -> None:
    task, _ = prepared(files, tmp_path / "run")
    stream = task.batches(weft.data.batch.Position())
    _, second = next(stream)
    ahead, _ = next(stream)
    again, _ = next(task.batches(second))
    assert all(torch.equal(one, other) for one, other in zip(ahead.tensors(), again.tensors(), strict=True))


def test_back_translations_are_what_the_predictor_writes(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, model = prepared(files, tmp_path / "run")
    batch, _ = next(task.batches(weft.data.batch.Position()))
    model.train()
    with monkeypatch.context() as without_text:
        without_text.setattr(type(task.marked), "decode", None)  # nobody reads the texts, and decoding them takes long
        found = back_translations(task, model, batch, task.two)
    assert model.training and not found.values.requires_grad
    model.eval()
    row = next(n for n, mark in enumerate(batch.other.tolist()) if mark == task.two.second)
    text = task.marked.decode([token for token in batch.clean.values[row].tolist() if token > EOS])
    written = decoded_texts(task, model, [text], {**task.quick, "into": "xx"})[0]
    ids = [token for token in found.values[row].tolist() if token not in (PAD, EOS)]
    assert task.marked.decode(ids) == written


def test_back_translations_may_avoid_tokens_of_the_other_language(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, model = prepared(files, tmp_path / "run", **{"task.own_tokens": "true"})
    foreign = torch.from_numpy(foreign_tokens(task.train, task.marked.size))
    lines = [spec.partition("=")[2] for spec in files]
    counts = [Counter(token for line in read_lines(file) for token in task.marked.encode(line)) for file in lines]
    for language, (own, other) in enumerate((counts, counts[::-1])):
        for token in {*own, *other} - {EOS}:
            often = other[token] / other.total() >= 10 * own[token] / own.total()
            assert abs(other[token] * own.total() / other.total() - 10 * own[token]) < 3 or foreign[language, token] == often
    batch, _ = next(task.batches(weft.data.batch.Position()))
    logits, bias = model.decoder.logits, task._bias(model)
    monkeypatch.setattr(model.decoder, "logits", lambda hidden: logits(hidden) + 9.0 * foreign[1])  # as if it copied
    found = {
        name: back_translations(task, model, batch, task.two, some).values for name, some in (("any", None), ("own", bias))
    }
    into = (batch.other == task.two.second).long()
    wrong = {name: foreign[into[:, None].expand_as(tokens), tokens].any() for name, tokens in found.items()}
    assert wrong["any"] and not wrong["own"]
    assert torch.equal(sources(task, model, batch, 9)["nll"].values, found["own"])


def sources(task: UnsupervisedTask, model: BilingualModel, batch: UnpairedBatch, update: int) -> dict[str, Source]:
    """What the model reads in an update, by the name of the loss. Its searches have losses of their own."""
    read: list[Source] = []
    encode = model.encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "encode", lambda source: (read.append(source), encode(source))[1])
        return {name: read[-1] for loss in task.losses(model, batch, update) for name in loss.metrics}


def test_the_weight_of_denoising_falls(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run")
    batch, _ = next(task.batches(weft.data.batch.Position()))
    model.eval()
    whole, nll = denoising_loss(model, model.encode(batch.source), batch, task.two, task.smoothing)
    for update, weight in ((1, 1.0), (5, 0.5), (8, 0.125)):
        loss, last = task.losses(model, batch, update)
        assert torch.isclose(loss.total, weight * whole, rtol=1e-5) and torch.isclose(loss.metrics["denoising"], nll)
        assert loss.count == 0 and last.count == (batch.labels != PAD).sum()
    assert [name for loss in task.losses(model, batch, 9) for name in loss.metrics] == ["nll"]


def test_translations_come_from_the_dictionary_first_and_then_from_the_model(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run", **{"task.own_tokens": False})
    batch, _ = next(task.batches(weft.data.batch.Position()))
    own = back_translations(task, model, batch, task.two).values
    assert not torch.equal(own, batch.words.values) and not torch.equal(batch.source.values, batch.words.values)
    for update, expected in ((1, batch.words.values), (4, batch.words.values), (5, own), (9, own)):
        read = sources(task, model, batch, update)
        assert torch.equal(read["nll"].values, expected)
        assert update == 9 or torch.equal(read["denoising"].values, batch.source.values)


def test_back_translations_are_without_dropout(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run", **{"model.dropout": 0.5})
    batch, _ = next(task.batches(weft.data.batch.Position()))
    expected = back_translations(task, model.eval(), batch, task.two).values
    assert torch.equal(back_translations(task, model.train(), batch, task.two).values, expected)
    assert model.training


def test_language_models_come_before_all_else(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run", **{"task.language_model_steps": 2})
    batch, _ = next(task.batches(weft.data.batch.Position()))
    names = [[name for loss in task.losses(model, batch, update) for name in loss.metrics] for update in (1, 2, 3)]
    assert names == [["filled in", "nll"]] * 2 + [["denoising", "nll"]]
    torch.manual_seed(0)
    filled, written = task.losses(model, batch, 1)
    filled.total.backward()
    layers = [{name.split(".")[0] for name, each in model.named_parameters() if each.grad is not None}]
    written.total.backward()
    layers.append({name.split(".")[0] for name, each in model.named_parameters() if each.grad is not None})
    assert layers == [{"encoder"}, {"encoder", "decoder"}]  # the output layer is the encoder's table


def test_the_judge_learns_what_the_encoder_hides(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run", **{"task.adversarial_weight": 1.0})
    batch, _ = next(task.batches(weft.data.batch.Position()))
    groups, _ = optimizer_groups(task, model)
    assert set(groups) == {"model", "judge"} and model.judge is not None
    assert {id(each) for each in groups["judge"]} == {id(each) for each in model.judge.parameters()}
    assert not {id(each) for each in groups["model"]} & {id(each) for each in groups["judge"]}
    for loss in task.losses(model, batch, 1):
        model.zero_grad()
        loss.total.backward()
        touched = {name: any(each.grad is not None for each in group) for name, group in groups.items()}
        assert touched == {"model": loss.optimizer == "model", "judge": loss.optimizer == "judge"}
    encoded = model.eval().encode(batch.clean)
    judge = torch.optim.Adam(model.judge.parameters(), 1e-4)
    language = task.two.of(batch)
    before = model.discriminator_loss(encoded, language).item()
    for _ in range(20):
        judge.zero_grad()
        model.discriminator_loss(encoded, language).backward()
        judge.step()
    assert model.discriminator_loss(encoded, language).item() < before < model.confusion_loss(encoded, language).item()


def test_the_weight_of_the_judge_scales_its_part_of_the_loss(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run", **{"task.adversarial_weight": 0.5})
    batch, _ = next(task.batches(weft.data.batch.Position()))
    encoded = model.eval().encode(batch.source)
    plain, _ = denoising_loss(model, encoded, batch, task.two, task.smoothing)
    loss, *_ = task.losses(model, batch, 1)
    confused = model.confusion_loss(encoded, task.two.of(batch))
    assert torch.isclose(loss.total, plain + 0.5 * confused, rtol=1e-5) and torch.isclose(loss.metrics["confused"], confused)


def test_two_decoders_write_a_language_each(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run", **{"task.decoders": 2})
    first, second = model.decoders
    own = {id(each) for each in first.parameters()}
    both = [name for name, each in second.named_parameters() if id(each) in own]
    assert both and all("table" in name or "output" in name for name in both)
    batch, _ = next(task.batches(weft.data.batch.Position()))
    encoded = model.eval().encode(batch.clean)
    _, nll = denoising_loss(model, encoded, batch, task.two, 0.0)
    parts = 0.0
    for language, decoder in enumerate(model.decoders):
        rows = (task.two.of(batch) == language).nonzero()[:, 0]
        hidden = decoder.hidden_states(batch.target, decoder.init_state(encoded), batch.target_layout).hidden
        parts += float(decoder.loss(hidden[rows], batch.labels[rows])[1])
    assert torch.isclose(nll, torch.tensor(parts), rtol=1e-4)
    found = back_translations(task, model, batch, task.two)
    for row in (int((batch.other == mark).nonzero()[0]) for mark in (task.two.first, task.two.second)):
        text = task.marked.decode([token for token in batch.clean.values[row].tolist() if token > EOS])
        into = "en" if batch.other[row] == task.two.first else "xx"
        ids = [token for token in found.values[row].tolist() if token not in (PAD, EOS)]
        assert task.marked.decode(ids) == decoded_texts(task, model, [text], {**task.quick, "into": into})[0]


def test_vectors_of_the_dictionary_are_the_first_embeddings(files: list[str], tmp_path: Path) -> None:
    _, plain = prepared(files, tmp_path / "plain")
    task, model = prepared(files, tmp_path / "run", **{"task.vectors": True})
    tokens, vectors = task.words.vectors(task.marked)
    table = model.decoder.embedding.table.weight
    width = min(table.size(1), vectors.size(1))
    expected = torch.nn.functional.normalize(vectors[:, :width])
    assert len(tokens) and torch.allclose(torch.nn.functional.normalize(table[tokens, :width]), expected, atol=1e-5)
    others = torch.ones(len(table), dtype=torch.bool).index_fill(0, tokens, False)
    assert torch.equal(table[others], plain.decoder.embedding.table.weight[others])


def test_vectors_are_learnt_once_for_the_same_texts(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = {"data.cache": str(tmp_path / "cache")}
    first, _ = prepared(files, tmp_path / "first", **cache)
    learnt = first.words.mapped
    monkeypatch.setattr("weft.tasks.unsupervised.model.map_texts", None)
    again, _ = prepared(files, tmp_path / "again", **cache, **{"task.vectors": True})
    assert [again.words.mapped.source.words, again.words.mapped.target.forms] == [learnt.source.words, learnt.target.forms]
    assert np.array_equal(again.words.mapped.target.vectors, learnt.target.vectors)
    assert nearest(again.words.mapped, best=1).entries == nearest(learnt, best=1).entries


def test_purity_counts_words_of_the_wrong_language(files: list[str], tmp_path: Path) -> None:
    task, _ = prepared(files, tmp_path / "run")
    line = "dog sees cat at house"
    assert task.purity(line.split(), 0) == 100
    assert task.purity(line.split(), 1) <= 20
    assert task.purity(twin(line).split(), 1) == 100


def test_held_out_lines_are_not_trained_on(files: list[str], tmp_path: Path) -> None:
    task, _ = prepared(files, tmp_path / "run")
    for text, held, spec in zip(task.texts, task.held, files, strict=True):
        lines = list(read_lines(spec.partition("=")[2]))
        assert [*held.lines()] == lines[:4] and [*text.lines()] == lines[4:]
    assert task.valid is not None and (len(task.train), len(task.valid)) == (612, 8)
    begins = [bytes(corpus.gather(text_of(TOKENS), np.array([0]))[0]).decode() for corpus in (task.train, task.valid)]
    assert begins == [next(task.texts[0].lines()), next(task.held[0].lines())]


def test_validation_goes_there_and_back(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = prepared(files, tmp_path / "run")
    texts = [list(held.lines()) for held in task.held]

    def evaluated(translate: Callable[[str, str], str]) -> dict[str, float]:
        monkeypatch.setattr(task, "translated", lambda model, lines, language: [translate(line, "") for line in lines])
        return task.evaluate(model)

    found = evaluated(lambda line, into: " ".join(word if word in SAME else word[::-1] for word in line.split()))
    assert [found[key] for key in ("round_trip", "purity", "pure_round_trip")] == pytest.approx([100] * 3)

    def shorter(line: str, into: str) -> str:
        return line.rpartition(" ")[0]  # a copy without its last word

    found = evaluated(shorter)
    trips, pure = [], []
    for language, lines in enumerate(texts):
        away = [shorter(line, "") for line in lines]
        (bleu,) = score([shorter(line, "") for line in away], lines, make_metrics(["bleu"])).values()
        trips.append(bleu.value)
        pure.append(task.purity([word for line in away for word in line.split()], 1 - language))
    assert max(pure) < 80 and max(trips) < 80
    assert found["round_trip"] == pytest.approx(sum(trips) / 2) and found["purity"] == pytest.approx(sum(pure) / 2)
    assert found["pure_round_trip"] == pytest.approx((trips[0] * pure[0] + trips[1] * pure[1]) / 200)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data.valid": "[a.en,a.fr]"}, "data.valid: this task validates without translated text"),
        ({"data.hold_out": 300}, "data.hold_out: 300 lines of en=.* which has 300"),
    ],
)
def test_unsuitable_data_settings_are_refused(files: list[str], tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        prepared(files, tmp_path / "run", **changes)


def test_languages_keep_their_order(files: list[str], tmp_path: Path) -> None:
    prepared(files, tmp_path / "run")
    german = [files[0], files[1].replace("xx=", "de=")]
    for others, named in ((files[::-1], "xx and en"), (german, "en and de")):
        with pytest.raises(ConfigError, match=f"trained with texts of en and xx, in this order, not with texts of {named}"):
            prepared(others, tmp_path / "run")
    prepared(files, tmp_path / "run")


def test_a_dictionary_may_begin_without_common_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greek = str.maketrans({chr(97 + n): chr(0x3B1 + n) for n in range(26)})
    texts = {"en": sentences(100, seed=1), "el": [line.translate(greek) for line in sentences(110, seed=2)]}
    for language, lines in texts.items():
        (tmp_path / language).write_text("".join(f"{line}\n" for line in lines))
    files, pairs = [f"{language}={tmp_path / language}" for language in texts], np.array([[0, 0], [1, 1]])
    monkeypatch.setattr("weft.data.word_vectors.bilingual_dictionary.adversarial_pairs", lambda x, y, frequent: pairs)
    with pytest.raises(DataError, match=r"task\.adversarial_dictionary=true"):
        prepared(files, tmp_path / "run")
    task, _ = prepared(files, tmp_path / "run", **{"task.adversarial_dictionary": True})
    batch, _ = next(task.batches(weft.data.batch.Position()))
    english, words = task.two.of(batch) == 0, [task.marked.decode(row) for row in batch.words.values.tolist()]
    assert all(max(text) > "z" for text, first in zip(words, english.tolist(), strict=True) if first)


def test_a_resumed_run_is_equal_bit_by_bit_and_translates_both_ways(files: list[str], tmp_path: Path) -> None:
    changes = settings(tmp_path)
    weft.train("unsupervised", data=files, out=tmp_path / "whole", set=changes)
    weft.train("unsupervised", data=files, out=tmp_path / "halves", set={**changes, "train.steps": 3})
    weft.train(out=tmp_path / "halves", resume=True, set={"train.steps": 6})
    whole, halves = (
        read_tensors(tmp_path / run / "checkpoints/step-00000006/model.safetensors") for run in ("whole", "halves")
    )
    assert all(torch.equal(tensor, halves[name]) for name, tensor in whole.items())
    trained = weft.load(tmp_path / "whole", device="cpu")
    assert isinstance(trained.task, UnsupervisedTask)
    english, other = trained.task.two.first, trained.task.two.second
    for options, mark in (({}, other), ({"into": "en"}, english)):
        predictor = trained.predictor(**options)
        assert isinstance(predictor, TranslationPredictor) and predictor.begin_ids == [mark]
    assert len(list(trained.stream(["dog sees cat", "ekil"], into="en"))) == 2
    with pytest.raises(ConfigError, match="between en and xx"):
        trained.predictor(into="de")


def test_judge_and_decoders_resume_bit_by_bit(files: list[str], tmp_path: Path) -> None:
    own = {"task.decoders": 2, "task.adversarial_weight": 1.0, "task.dictionary_steps": 1, "train.save_every": 1}
    changes = settings(tmp_path, **own, **{"train.steps": 2, "train.batch_tokens": 128})
    weft.train("unsupervised", data=files, out=tmp_path / "whole", set=changes)
    weft.train("unsupervised", data=files, out=tmp_path / "halves", set={**changes, "train.steps": 1})
    weft.train(out=tmp_path / "halves", resume=True, set={"train.steps": 2})
    whole, halves = (
        read_tensors(tmp_path / run / "checkpoints/step-00000002/model.safetensors") for run in ("whole", "halves")
    )
    assert {"judge", "second"} < {name.partition(".")[0] for name in whole}
    assert all(torch.equal(tensor, halves[name]) for name, tensor in whole.items())


RECURRENT = {"kind": "rnn", "style": "luong", "dim": 16, "embedding": 16, "attention": {"kind": "general"}}


@pytest.fixture(scope="module")
def recurrent(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a recurrent model, which has read translations by the dictionary and by itself."""
    folder = tmp_path_factory.mktemp("recurrent")
    changes = {key: value for key, value in settings(folder).items() if not key.startswith("model.")}
    changes |= {"model": RECURRENT, "train.steps": 3, "task.dictionary_steps": 2, "data.hold_out": 2}
    weft.train("unsupervised", data=files, out=folder / "run", set=changes)
    return folder / "run"


def test_a_recurrent_model_trains_and_translates_both_ways(recurrent: Path) -> None:
    trained = weft.load(recurrent, device="cpu")
    assert isinstance(trained.task, UnsupervisedTask)
    trained.task.prepare()
    untrained = math.log(trained.task.marked.size)
    assert trained.task.mean_loss(trained.model)[0] < 0.9 * untrained
    scores = [trained.translate("dog sees cat", into=into, min_length=3).score for into in ("en", "xx")]
    assert math.isfinite(sum(scores)) and scores[0] != scores[1]


def test_tags_are_refused(recurrent: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tags.*decode\.into=en"):
        weft.load(recurrent, device="cpu").translate("dog sees cat", tag="en")


def test_evaluation_says_which_language_is_scored(recurrent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("dog sees cat\n" * 2)
    arguments = ["evaluate", str(recurrent), "--data", f"{tmp_path / 'a'},{tmp_path / 'b'}", "--samples", "10"]
    for more, expected in (([], 1), (["--set", "decode.into=en"], 0)):
        assert run([*arguments, *more]) == 0
        assert capsys.readouterr().err.count("translations into xx are scored; --set decode.into=en") == expected


def test_parallel_data_is_refused(tmp_path: Path) -> None:
    lines = sentences(100, seed=1)
    texts = {"en": [" ".join([line] * (1 + n % 5)) for n, line in enumerate(lines)]}
    texts["xx"] = [" ".join(twin(line) for _ in range(1 + n % 5)) for n, line in enumerate(lines)]
    for language, those in texts.items():
        (tmp_path / language).write_text("".join(f"{line}\n" for line in those))
    files = [f"{language}={tmp_path / language}" for language in texts]
    with pytest.raises(DataError, match="line by line"):
        weft.train("unsupervised", data=files, out=tmp_path / "run", set=settings(tmp_path))


def test_an_ensemble_is_refused(recurrent: Path) -> None:
    with pytest.raises(RunError, match="cannot form an ensemble"):
        weft.load([recurrent, recurrent], device="cpu")


def test_first_translations_may_be_by_phrases(files: list[str], tmp_path: Path) -> None:
    """Each text has the translation of the phrases that are learnt from the same texts, in both directions."""
    task, _ = prepared(files, tmp_path / "run", **{"task.phrase_rounds": 1})
    phrases, corpus = task.words.phrases, task.train
    assert [language.name for language in phrases.languages] == task.languages
    for row in (0, 1, len(corpus) - 2, len(corpus) - 1):
        text, words = (corpus.row(text_of(name), row).tobytes().decode() for name in (TOKENS, WORDS))
        other = task.languages[1 - int(corpus.row("language", row)[0])]
        assert phrases.translate([text], other) == [words] and words != text
    with pytest.raises(ConfigError, match="dictionary_steps"):
        prepared(files, tmp_path / "none", **{"task.phrase_rounds": 1, "task.dictionary_steps": 0})
