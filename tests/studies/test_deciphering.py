"""Ciphers, their losses, and CipherGAN, which resumes exactly with two optimisers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import Adam, AdamW

import weft
from tests.helpers.generated_texts import CIPHER, LETTERS, write_letters
from weft.config.sections import TrainSection, load_config
from weft.data.batch import Position
from weft.decoding.decoding_options import resolve_options
from weft.errors import ConfigError, DataError
from weft.runs.weight_files import read_tensors
from weft.tasks.base import build_task
from weft.training.gradual_unfreezing import LayerGroups
from weft.training.optimizer import take_step
from weft_studies.deciphering.cipher_gan import CipherGan, Tables, gradient_penalty, replay_fakes, straight_through_sample
from weft_studies.deciphering.data import Cipher, compare_frequencies, divide_windows, make_cipher
from weft_studies.deciphering.task import DecipheringTask, count_pairs, divergence

SETTINGS: dict[str, Any] = {
    **CIPHER,
    "model.dim": 32,
    "model.layers": 1,
    "model.kernel": 3,
    "train.schedule": {"kind": "constant", "rate": 1e-2},
}


def inverse(cipher: Cipher) -> Cipher:
    """The cipher that turns its texts back."""
    return Cipher(np.argsort(cipher.table, 1))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(tmp_path_factory.mktemp("cipher") / "text.txt")


def prepared(text: Path, folder: Path, settings: dict[str, Any], recipe: str = "cipher-shift") -> DecipheringTask:
    """The task of a new run in `folder` that reads a text."""
    over = {**SETTINGS, "data.cache": str(folder / "cache"), "data.train": [str(text)], **settings}
    task = build_task(load_config(recipe, over=over), folder)
    assert isinstance(task, DecipheringTask)
    task.prepare()
    return task


def knowing(task: DecipheringTask, cipher: Cipher) -> CipherGan:
    """A model that is sure of a cipher."""
    model = task.build(task.config.model, task.reopen())
    assert isinstance(model, CipherGan) and isinstance(model.encipher, Tables) and isinstance(model.decipher, Tables)
    for tables, learnt in ((model.encipher, cipher.table), (model.decipher, inverse(cipher).table)):
        tables.logits.data = 40 * torch.nn.functional.one_hot(torch.from_numpy(learnt), len(task.symbols)).float()
    return model


@pytest.mark.parametrize(("kind", "key"), [("shift", [3]), ("vigenere", [3, 4, 5]), ("substitution", [7])])
def test_the_inverse_of_a_cipher_restores_the_text(kind: Any, key: list[int]) -> None:
    plain = np.random.default_rng(0).integers(0, 11, (4, 9))
    cipher = make_cipher(kind, key, 11)
    assert (cipher(plain) != plain).any()
    assert (inverse(cipher)(cipher(plain)) == plain).all()
    assert (np.sort(cipher.table, 1) == np.arange(11)).all()


def test_a_vigenere_cipher_shifts_by_the_key_in_turn() -> None:
    assert make_cipher("vigenere", [1, 2], 5)(np.array([0, 0, 4, 4])).tolist() == [1, 2, 0, 1]


def test_half_of_the_windows_are_plain() -> None:
    assert [side.tolist() for side in divide_windows(7, "halves")] == [[0, 1, 2], [3, 4, 5]]
    assert [side.tolist() for side in divide_windows(7, "alternate")] == [[0, 2, 4], [1, 3, 5]]


def test_tables_begin_with_symbols_of_equal_frequency() -> None:
    plain = np.random.default_rng(0).permuted(np.repeat(np.arange(5), 3 * 4 ** np.arange(5))).reshape(-1, 3)
    cipher = make_cipher("vigenere", [3, 1, 2], 5)
    likely = compare_frequencies(plain, cipher(plain), 5, places=3, spread=0.3)
    assert (likely.argmax(2).numpy() == cipher.table).all()
    model = CipherGan(5, generator="table", dim=8, width=4, blocks=1, layers=1, kernel=3, places=3)
    model.begin(likely)
    assert (model.solve(torch.from_numpy(cipher(plain))).argmax(-1).numpy() == plain).all()


def test_what_one_table_has_learnt_is_read_without_the_other() -> None:
    cipher, plain = make_cipher("shift", [2], 5), np.arange(5)[None]
    for name in ("encipher", "decipher"):
        model = CipherGan(5, generator="table", dim=8, width=4, blocks=1, layers=1, kernel=3, places=1)
        learnt = cipher.table if name == "encipher" else inverse(cipher).table
        with torch.no_grad():
            getattr(model, name).logits[0, torch.arange(5), torch.from_numpy(learnt[0])] += 5
        assert (model.solve(torch.from_numpy(cipher(plain))).argmax(-1).numpy() == plain).all()


def test_the_divergence_of_pairs_is_its_formula() -> None:
    texts, other = np.array([[0, 1, 1], [0, 1, 0]]), np.array([[1, 0, 0]])
    assert count_pairs(texts, 2).tolist() == [[0, 2], [1, 1]]
    assert divergence(count_pairs(texts, 2), count_pairs(texts[::-1], 2)) == 0
    assert divergence(np.array([1, 0]), np.array([0, 3])) == 1
    # Pairs 01 01 10 11 against 10 00: only 10 occurs in both.
    expected = (0.5 + 0.25 + 0.25 * np.log2(0.25 / 0.375) + 0.5 + 0.5 * np.log2(0.5 / 0.375)) / 2
    assert divergence(count_pairs(texts, 2), count_pairs(other, 2)) == pytest.approx(expected)


def test_the_penalty_of_a_linear_critic_is_its_formula() -> None:
    weights = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    real, fake = torch.randn(2, 6, 2, 2)
    found = gradient_penalty(lambda x: (x * weights).sum((1, 2)), real, fake)
    assert torch.allclose(found, torch.full((6,), (5.0 - 1) ** 2))


def test_a_pool_exchanges_fakes_and_loses_none() -> None:
    torch.manual_seed(0)
    first, second = torch.arange(4.0)[:, None], torch.arange(10.0, 14.0)[:, None]
    _, pool = replay_fakes(None, first, 4)
    shown, after = replay_fakes(pool, second, 4)
    assert sorted(torch.cat([shown, after]).flatten().tolist()) == sorted(torch.cat([pool, second]).flatten().tolist())
    assert set(shown.flatten().tolist()) & set(pool.flatten().tolist())


def test_fakes_of_a_skipped_step_do_not_spoil_the_pool() -> None:
    torch.manual_seed(0)
    broken, fine = torch.full((4, 2), torch.nan), torch.ones(4, 2)
    _, pool = replay_fakes(None, broken, 4)
    _, pool = replay_fakes(pool, fine, 4)
    _, pool = replay_fakes(pool, broken, 4)
    shown, pool = replay_fakes(pool, fine, 4)
    assert shown.isfinite().all() and pool.isfinite().all()


@pytest.mark.parametrize("generator", ["table", "network"])
def test_generators_never_move_the_vectors_of_symbols(generator: Any) -> None:
    torch.manual_seed(0)
    model = CipherGan(6, generator=generator, dim=8, width=4, blocks=1, layers=1, kernel=3, places=2)
    written = model(*torch.randint(0, 6, (2, 3, 5)))
    with model.without_judges():
        model.of_plain(model.embed(written.plain)).sum().backward()
    assert all(parameter.grad is None for parameter in model.judges())
    assert any(parameter.grad is not None for parameter in model.writers())


def test_symbols_are_drawn_with_the_gradient_of_their_probabilities() -> None:
    torch.manual_seed(0)
    chances = torch.tensor([0.7, 0.2, 0.1]).expand(1, 4000, 3).clone().requires_grad_()
    symbols = straight_through_sample(chances)
    assert torch.allclose(symbols.sum(-1), torch.ones(1, 4000)) and torch.allclose(symbols.max(-1).values, torch.ones(1, 4000))
    assert torch.allclose(symbols.mean(1), chances.mean(1), atol=0.03)
    (symbols * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.equal(chances.grad[0, 0], torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("places", [1, 3])
def test_tables_read_symbols_as_they_read_certain_probabilities(places: int) -> None:
    tables, text = Tables(places, 5), torch.randint(0, 5, (2, 7))
    sure = torch.nn.functional.one_hot(text, 5).float()
    assert torch.allclose(tables(text), tables(sure))
    assert torch.allclose(tables(text)[0, 4], tables.tables()[4 % places, text[0, 4]])


def test_no_two_symbols_of_a_table_become_the_same_one() -> None:
    tables = Tables(2, 6)
    with torch.no_grad():
        tables.logits[:, :, 3] += 0.05  # all rows want the same symbol
    chances = tables.tables().exp()
    assert torch.allclose(chances.sum(2), torch.ones(2, 6)) and torch.allclose(chances.sum(1), torch.ones(2, 6), atol=0.05)


def test_slopes_below_one_cost_nothing() -> None:
    weights = torch.tensor([[0.3, 0.0], [0.0, 0.4]])
    real, fake = torch.randn(2, 6, 2, 2)
    assert gradient_penalty(lambda x: (x * weights).sum((1, 2)), real, fake).eq(0).all()


def test_a_key_must_fit(text: Path, tmp_path: Path) -> None:
    for settings, says in (
        ({"task.key": [1, 2]}, "give one number"),
        ({"task.cipher": "vigenere", "task.key": [1] * 3}, "multiple"),
        ({"task.cipher": "vigenere", "task.key": [1, 2], "model.places": 3}, r"places: 3: set it to a multiple .* \(2\)"),
        ({"model.places": 21}, r"places: 21: .* at most task.extent \(20\)"),
        ({"task.key": [0]}, "changes none of the 11 symbols"),
        ({"task.cipher": "vigenere", "task.key": [11, 22], "model.places": 2}, "changes none of the 11 symbols"),
    ):
        with pytest.raises(ConfigError, match=says):
            knowing(task := prepared(text, tmp_path, settings), task.cipher)


def test_texts_are_read_in_windows_and_written_symbol_by_symbol(text: Path, tmp_path: Path) -> None:
    few = {**SETTINGS, "train.steps": 1, "data.cache": str(tmp_path)}
    result = weft.train("cipher-shift", data=str(text), out=tmp_path / "run", set=few)
    assert 0 <= result.scores["accuracy"] <= 100
    solver = weft.load(tmp_path / "run", device="cpu")
    assert isinstance(solver.task, DecipheringTask)
    cipher, plain = solver.task.examples([str(text)])[0]
    assert len(cipher) == len(plain) == 20 and cipher != plain
    alphabet = ["�", *LETTERS]
    counts = Counter(text.read_text())
    alphabet[1:] = sorted(LETTERS, key=lambda letter: -counts[letter])
    assert [alphabet[(alphabet.index(letter) + 3) % 11] for letter in plain] == list(cipher)
    found = next(iter(solver.stream([cipher + cipher[:7]]))).text
    assert len(found) == 27 and found[20:] == found[:7]
    page = solver.explain_sentences(cipher)[0]._repr_html_()
    assert "place 1 of the key" in page and "data:image/png" in page and "place 2" not in page


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"kind": "words"},
        {"kind": "words", "lowercase": True},
        {"kind": "words", "line_ends": True},
        {"kind": "words", "punctuation": False},
        {"kind": "characters", "byte_fallback": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("marks", ["", " <unk> ����"])
def test_the_known_key_scores_100_percent(tokenizer: dict[str, Any], marks: str, tmp_path: Path) -> None:
    """Also if the text contains what usually stands for UNK."""
    rarely, often = " ".join("zyxwvutsrqponmlkj"), f"\nOh, no: “twenty-two” (or 20?) İs Σίσυφος'…{marks}"
    (tmp_path / "text.txt").write_text(rarely + 40 * often)
    small = {"data.tokenizer": tokenizer, "data.vocabulary": 19, "task.key": [5, 1, 3], "task.extent": 21, "model.places": 3}
    task = prepared(tmp_path / "text.txt", tmp_path, {**small, "task.cipher": "vigenere"})
    predictor = task.predictor(knowing(task, task.cipher), resolve_options(task.config.decode, torch.device("cpu")))
    ciphers, plain = zip(*task.examples([str(tmp_path / "text.txt")]), strict=True)
    found = [each.text for each in predictor.predict(map(predictor.parse_input, ciphers))]
    assert found == list(plain) != list(ciphers)
    (metric,) = task.metrics()
    assert metric.score(metric.count(found, plain)).value == 100
    assert metric.score(metric.count(ciphers, plain)).value < 50
    known = sum(symbol != 0 for text in plain for symbol in task.alphabet.read(text))
    assert metric.count(found, plain)[:, 1].sum() == known < 21 * len(plain)


def test_a_text_in_ordinary_writing_is_read_as_the_tokenizer_divides_it(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("oh, no, (oh)!\n" * 40)
    task = prepared(tmp_path / "text.txt", tmp_path, {"data.tokenizer": {"kind": "words"}})
    assert task.alphabet.write(task.alphabet.read("Oh, (no)! Never.")) == "oh ￭, (￭ no ￭) ￭! <unk> <unk>"


@pytest.mark.parametrize("tokenizer", [{"kind": "characters"}, {"kind": "bpe"}, {"kind": "bytes"}], ids=str)
def test_symbols_that_texts_do_not_show_are_refused(tokenizer: dict[str, Any], text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"use {kind: words}, .* or {kind: characters, byte_fallback: false}"):
        prepared(text, tmp_path, {"data.tokenizer": tokenizer})


def numbered(folder: Path, words: int) -> Path:
    """Writes a text of different words, five per line."""
    text = folder / "numbered.txt"
    text.write_text("".join(f"w{number}{' ' if number % 5 else chr(10)}" for number in range(1, words + 1)))
    return text


NUMBERED: dict[str, Any] = {"data.tokenizer": {"kind": "words"}, "data.vocabulary": 203, "task.extent": 2}


@pytest.mark.parametrize("split", ["halves", "alternate"])
def test_no_window_is_both_plain_and_in_the_cipher(split: str, tmp_path: Path) -> None:
    """All words are different, so that a pair would show."""
    task = prepared(numbered(tmp_path, 40), tmp_path, {**NUMBERED, "task.split": split})
    plain, hidden = set[int](), set[int]()
    for batch, following in task.batches(Position()):
        plain |= set(batch.plain.flatten().tolist())
        hidden |= set(inverse(task.cipher)(batch.cipher.numpy()).flatten().tolist())
        if following.epoch:
            break
    assert not plain & hidden and plain | hidden == set(range(1, 41))


@pytest.mark.parametrize("budget", [1, 7, 1000])
def test_windows_may_be_longer_than_a_batch(budget: int, tmp_path: Path) -> None:
    settings = {**NUMBERED, "task.extent": 8, "train.batch_tokens": budget, "train.validate_sentences": 0}
    task = prepared(numbered(tmp_path, 40), tmp_path, {**settings, "task.split": "halves"})
    model = knowing(task, task.cipher)
    assert torch.cat([batch.rows for batch in task.validation(model)]).tolist() == [2, 3]
    assert task.evaluate(model)["accuracy"] == 100


def test_the_vocabulary_is_that_of_the_text(tmp_path: Path) -> None:
    task = prepared(numbered(tmp_path, 40), tmp_path, NUMBERED)
    assert task.config.data.vocabulary == 44  # with four special ids


def test_messages_count_lines_and_windows(tmp_path: Path) -> None:
    task = prepared(numbered(tmp_path, 40), tmp_path, NUMBERED)
    assert task.train.report.describe() == "8 lines read, 20 windows made."


def test_a_text_is_too_short_for_training_or_for_evaluation(tmp_path: Path) -> None:
    task = prepared(numbered(tmp_path, 40), tmp_path, NUMBERED)
    short, one = tmp_path / "short.txt", tmp_path / "one.txt"
    short.write_text("w1")
    one.write_text("w1 w2 w3")
    assert len(task.examples([str(one)])) == 1
    with pytest.raises(DataError, match=r"short.txt: too little text for one window of 2 symbols"):
        task.examples([str(short)])
    for text in (short, one):
        with pytest.raises(DataError, match=rf"{text.name}: too little text for 2 windows of 2 symbols"):
            prepared(text, tmp_path / text.stem, NUMBERED)


def test_unknown_words_are_not_counted_in_a_validation(tmp_path: Path) -> None:
    """The model takes UNK for the most frequent word and the other way round. Only the latter counts."""
    (tmp_path / "text.txt").write_text("a a a b b rare1\na a a c c rare2\n" * 10)
    settings = {"data.tokenizer": {"kind": "words"}, "data.vocabulary": 7, "task.extent": 6, "task.key": [2]}
    task = prepared(tmp_path / "text.txt", tmp_path, settings)
    swapped = Cipher(task.cipher.table[:, [1, 0, 2, 3]])
    assert task.evaluate(knowing(task, swapped))["accuracy"] == pytest.approx(100 * 2 / 5)


def test_generators_learn_to_bring_texts_back(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path, {"task.cycle_weight": 4.0, "task.cycle_steps": 10})
    batch, _ = next(task.batches(Position()))
    texts = len(batch.plain)
    # Generators that are sure of two ciphers never bring back a symbol: |p − one-hot| is 2 on the way of each text.
    model = knowing(task, make_cipher("shift", [3], len(task.symbols)))
    other = knowing(task, make_cipher("shift", [4], len(task.symbols)))
    for decipher, apart in ((model.decipher, 0.0), (other.decipher, 4.0)):
        model.decipher = decipher
        for update, weight in ((1, 0.4), (5, 2.0), (10, 4.0), (50, 4.0)):
            loss = next(task.losses(model, batch, update))
            assert loss.metrics["cycle"].item() == pytest.approx(apart * texts, abs=1e-2)
            assert (loss.total - loss.metrics["fooled"]).item() == pytest.approx(weight * apart * texts, abs=1e-1)


def test_the_penalty_of_discriminators_has_its_weight(text: Path, tmp_path: Path) -> None:
    found = []
    for weight in (0.0, 1.0, 10.0):
        task = prepared(text, tmp_path / str(weight), {"task.penalty": weight})
        model = knowing(task, task.cipher)
        for parameter in model.judges():
            parameter.data = parameter.new_ones(parameter.shape).normal_(generator=torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        _, judged = task.losses(model, next(task.batches(Position()))[0], 1)
        assert judged.optimizer == "discriminator"
        found.append(float(judged.total.detach()))
    assert found[1] > found[0] + 1
    assert found[2] - found[0] == pytest.approx(10 * (found[1] - found[0]), rel=1e-3)


def test_discriminators_have_an_optimiser_of_their_own() -> None:
    model = CipherGan(6, generator="table", dim=8, width=4, blocks=1, layers=1, kernel=3, places=1)
    groups = {"model": model.writers(), "discriminator": model.judges()}
    config = TrainSection(optimizer={"kind": "adam", "eps": 1e-4})
    found = LayerGroups(model, config).optimizers(groups, {"discriminator": {"kind": "adamw", "eps": 1e-8, "factor": 0.5}})
    for name, kind, eps, rate in (("model", Adam, 1e-4, 0.1), ("discriminator", AdamW, 1e-8, 0.05)):
        take_step(found[name], 0.1, torch.zeros(()))
        assert type(found[name]) is kind
        assert all((group["eps"], group["lr"]) == (eps, rate) for group in found[name].param_groups)


def test_a_resumed_run_is_equal_bit_by_bit(text: Path, tmp_path: Path) -> None:
    few = {**SETTINGS, "train.steps": 6, "train.save_every": 3, "data.cache": str(tmp_path), "task.pool": 8}
    weft.train("cipher-shift", data=str(text), out=tmp_path / "whole", set=few)
    weft.train("cipher-shift", data=str(text), out=tmp_path / "halves", set={**few, "train.steps": 3})
    weft.train(out=tmp_path / "halves", resume=True, set={"train.steps": 6})
    whole, halves = (
        {file: read_tensors(tmp_path / run / "checkpoints/step-00000006" / file) for file in
         ("model.safetensors", "optimizer.safetensors", "carried.safetensors")} for run in ("whole", "halves")
    )  # fmt: skip
    assert any(name.startswith("discriminator/") for name in whole["optimizer.safetensors"])
    for file, tensors in whole.items():
        assert tensors and all(torch.equal(tensor, halves[file][name]) for name, tensor in tensors.items()), file
