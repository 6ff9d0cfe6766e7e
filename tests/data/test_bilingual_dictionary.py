"""Word vectors, their mapping without translated text, and dictionaries as files."""

from __future__ import annotations

import math
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tests.helpers.generated_texts import sentences, twin
from weft.cli import run
from weft.config.corpus_entries import absolute, files_of
from weft.data.word_vectors import mapping
from weft.data.word_vectors.bilingual_dictionary import Dictionary, channel, learn_dictionary
from weft.data.word_vectors.mapping import (
    MappedVectors,
    MappingOptions,
    adversarial_pairs,
    align,
    csls,
    find_seeds,
    map_vectors,
    mutual,
)
from weft.data.word_vectors.vectors import WordVectors, learn_vectors
from weft.errors import DataError
from weft.tasks.unsupervised.data import disjoint_halves, open_languages


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def gold_of(lines: list[str]) -> Dictionary:
    return Dictionary({word: [(twin(word), 0.0)] for line in lines for word in line.split()})


def test_a_dictionary_is_learnt_from_separate_texts() -> None:
    here, there = sentences(3000, seed=1), [twin(line) for line in sentences(3000, seed=2)]
    forth, back = learn_dictionary(here, there)
    gold = gold_of(here)
    assert forth.precision(gold).percent >= 50  # chance: 3
    assert sum(back.entries[twin(word)][0][0] == word for word in gold.entries) >= 0.5 * len(gold.entries)


def test_procrustes_finds_a_rotation() -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((50, 8)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    rotation = np.linalg.qr(draw.standard_normal((8, 8)))[0].astype(np.float32)
    pairs = np.stack([np.arange(20)] * 2, 1)
    first, second = align(x, x @ rotation, pairs, 0.0)
    assert np.allclose(first, second, atol=1e-5)
    assert (mutual(csls(first, second)) == np.stack([np.arange(50)] * 2, 1)).all()


def test_a_map_is_learnt_against_a_discriminator() -> None:
    draw = np.random.default_rng(0)
    x = unit(draw.gamma(0.3, size=(400, 10)) * np.linspace(2, 1, 10))
    x = unit(x - x.mean(0))
    change = draw.standard_normal((10, 10))
    cayley = 0.25 * (change - change.T)
    rotation = np.linalg.solve(np.eye(10) + cayley / 2, np.eye(10) - cayley / 2)
    y = (x @ rotation).astype(np.float32)

    def right(pairs: np.ndarray) -> float:
        return float((pairs[:, 0] == pairs[:, 1]).mean())

    assert right(mutual(csls(x, y))) < 0.4
    state = torch.get_rng_state()
    assert right(adversarial_pairs(x, y, 400, epochs=1)) > 0.9
    assert torch.equal(torch.get_rng_state(), state), "what is learnt inside does not change the draws of a training"


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_csls_holds_hubs_back() -> None:
    """A word that is near to everything is nobody's translation: the formula, written out."""
    draw = np.random.default_rng(1)
    x, y = (draw.standard_normal((12, 3)).astype(np.float32) for _ in range(2))
    cosine = x @ y.T
    near = [np.sort(cosine, axis)[-10:] if axis == 0 else np.sort(cosine, axis)[:, -10:] for axis in (0, 1)]
    expected = 2 * cosine - near[0].mean(0)[None] - near[1].mean(1)[:, None]
    assert np.allclose(csls(x, y), expected, atol=1e-6)


def test_seeds_are_words_spelt_alike() -> None:
    seeds = find_seeds(["paris", "nation", "dog"], ["chien", "nations", "paris"], 0.6)
    assert {tuple(pair) for pair in seeds.tolist()} == {(0, 2), (1, 1)}
    assert {tuple(pair) for pair in find_seeds(["paris", "nation"], ["nations", "paris"], 1.0).tolist()} == {(0, 1)}


def test_words_of_different_frequency_are_no_translations() -> None:
    draw = np.random.default_rng(2)
    counts = [4000, 1000, 400, 100], [1000, 4000, 400, 30]
    made = [
        WordVectors(words, some, unit(draw.standard_normal((4, 3))), words)
        for words, some in zip((["a", "in", "paris", "orange"], ["einen", "in", "paris", "a"]), counts, strict=True)
    ]
    mapped = map_vectors(made[0], made[1], MappingOptions(rounds=1, frequency=0.3))
    assert mapped.seeds.tolist() == [[1, 1], [2, 2]], "a is over a hundred times as frequent in one as in the other"
    first, second = made[0].counts[0] / 5500, made[1].counts[2] / 5430
    expected = csls(mapped.source.vectors, mapped.target.vectors)[0, 2] - 0.3 * abs(np.log(first) - np.log(second))
    assert mapped.scores()[0, 2] == pytest.approx(expected, abs=1e-5)
    assert np.allclose(mapped.reversed().scores(), mapped.scores().T, atol=1e-5)


def rotated(words: int, alike: int) -> tuple[WordVectors, WordVectors]:
    """Vectors and the same, turned and with a little noise; some words are spelt alike."""
    draw = np.random.default_rng(4)
    x = unit(draw.standard_normal((words, 16)))
    y = unit(x @ np.linalg.qr(draw.standard_normal((16, 16)))[0] + 0.05 * draw.standard_normal((words, 16)))
    names = [f"w{n}" for n in range(words)], [f"{'w' if n < alike else 'v'}{n}" for n in range(words)]
    first, second = (WordVectors(some, [10] * words, side, some) for some, side in zip(names, (x, y), strict=True))
    return first, second


def test_rounds_of_self_learning_improve_a_map_of_few_seeds() -> None:
    sides = rotated(200, 4)

    def right(rounds: int) -> int:
        pairs = mutual(map_vectors(*sides, MappingOptions(rounds=rounds)).scores())
        return int((pairs[:, 0] == pairs[:, 1]).sum())

    assert right(0) < 100 < 190 < right(10)


def test_seeds_stay_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(5)
    names = [f"w{n}" for n in range(60)]
    sides = [WordVectors(names, [10] * 60, unit(draw.standard_normal((60, 8))), names) for _ in range(2)]  # nothing in common
    rounds: list[set[tuple[int, int]]] = []

    def spy(x: np.ndarray, y: np.ndarray, pairs: np.ndarray, weight: float) -> tuple[np.ndarray, np.ndarray]:
        rounds.append({(int(one), int(other)) for one, other in pairs})
        return align(x, y, pairs, weight)

    monkeypatch.setattr(mapping, "align", spy)
    map_vectors(sides[0], sides[1], MappingOptions(rounds=3))
    assert len(rounds) == 4 and all({(n, n) for n in range(60)} <= pairs for pairs in rounds)
    assert rounds[1] > rounds[0]


def test_a_channel_inverts_translation_by_bayes_rule() -> None:
    draw = np.random.default_rng(3)
    words, counts = (["a", "b", "c"], ["x", "y", "z", "w"]), ([50, 30, 20], [40, 30, 20, 10])
    source, target = (
        WordVectors(some, many, unit(draw.standard_normal((len(some), 3))), some)
        for some, many in zip(words, counts, strict=True)
    )
    mapped = MappedVectors(source, target, np.zeros((0, 2), np.int64), 0.05)
    found, scores = channel(mapped, best=4, temperature=0.5), mapped.scores()
    for row, word in enumerate(words[0]):
        joint = []
        for column, frequency in enumerate(counts[1]):
            likely = [count * math.exp(scores[other, column] / 0.5) for other, count in enumerate(counts[0])]
            joint.append(frequency * likely[row] / sum(likely))
        expected = {other: value / sum(joint) for other, value in zip(words[1], joint, strict=True)}
        assert dict(found.entries[word]) == pytest.approx(expected, rel=1e-4)
    texts = [found.translate("a " * 20, Random(number)) for number in range(200)]
    share = sum(text.lower().split().count("x") for text in texts) / 4000
    assert share == pytest.approx(dict(found.entries["a"])["x"], abs=0.03)
    assert found.translate("a b", Random(1)) == found.translate("a b", Random(1))


def test_vectors_tell_contexts_apart() -> None:
    lines = ["the cat sleeps", "the dog sleeps", "a car drives", "a bus drives"] * 10
    learnt = learn_vectors(lines, width=4)
    place = {word: learnt.vectors[number] for number, word in enumerate(learnt.words)}
    assert place["cat"] @ place["dog"] > 10 * abs(place["cat"] @ place["bus"])


def test_texts_without_company_of_words_are_refused() -> None:
    with pytest.raises(DataError, match="no line in which two words occur"):
        learn_vectors(["dog", "cat"] * 5)
    nothing = np.zeros((3, 2), np.float32)
    with pytest.raises(DataError, match="have no word vectors"):
        align(nothing, nothing, np.array([[0, 0]]), 0.5)


def test_repeated_lines_count_once() -> None:
    here, there = sentences(400, seed=1), [twin(line) for line in sentences(400, seed=2)]
    once = learn_dictionary(here, there)
    often = learn_dictionary([*here, *here[:100], *here[:50]], [*there, *there[:200]])
    assert [each.entries for each in once] == [each.entries for each in often]


def test_word_by_word_translation_keeps_punctuation_and_capitals() -> None:
    known = Dictionary({"the": [("le", 1.0)], "dog": [("chien", 1.0), ("chat", 0.1)]})
    assert known.translate("The dog, Rex, barks.") == "Le chien, Rex, barks."


def test_words_have_the_case_of_their_language() -> None:
    known = Dictionary({"Hund": [("dog", 1.0)], "der": [("the", 1.0)], "Rot": [("red", 1.0)]})
    assert known.translate("Der Hund, der Hund. HUND") == "The dog, the dog. Dog"
    assert known.translate("Hund der Hund") == "Dog the dog"
    assert known.precision(Dictionary({"hund": [("Dog", 0.0)], "DER": [("a", 0.0)], "katze": [("cat", 0.0)]})).right == 1
    learnt = learn_vectors(["Ein Hund schläft", "Der hund schläft", "Hund und Hund", "Nur hier", "der Hund"] * 5, width=2)
    forms = dict(zip(learnt.words, learnt.forms, strict=True))
    assert forms == {
        "hund": "Hund",
        "schläft": "schläft",
        "der": "der",
        "ein": "ein",
        "und": "und",
        "nur": "nur",
        "hier": "hier",
    }


def test_parallel_texts_are_refused_and_equal_sizes_told(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = [" ".join(["word"] * int(length)) for length in draw.integers(1, 30, 100)]
    first = write(tmp_path / "a", lines)
    with pytest.raises(DataError, match="look like translations of each other"):
        open_languages([f"en={first}", f"fr={write(tmp_path / 'b', [f'{line}s' for line in lines])}"])
    shuffled = [f"{lines[row]}s" for row in draw.permutation(len(lines))]
    for name, some in (("all", shuffled), ("one fewer", shuffled[1:])):
        with pytest.raises(DataError, match="look like translations of each other, in another order"):
            open_languages([f"en={first}", f"fr={write(tmp_path / name, some)}"])
    told: list[str] = []
    others = [" ".join(["mot"] * int(length)) for length in draw.integers(1, 30, 100)]
    open_languages([f"en={first}", f"fr={write(tmp_path / 'd', others[:60])}"], told.append)
    assert not told
    open_languages([f"en={first}", f"fr={write(tmp_path / 'e', others)}"], told.append)
    assert len(told) == 1 and "the same number of lines" in told[0]
    parts = [[line * times for times in (1, 20) for line in some] for some in (lines, others)]
    both = [f"{name}={write(tmp_path / name, part)}" for name, part in zip(("en", "fr"), parts, strict=True)]
    open_languages(both, told.append)  # short lines, then long ones
    assert len(told) == 2


def test_translations_in_another_order_are_found_by_names_and_halves_are_not(tmp_path: Path) -> None:
    """Each line has a name of its own, and its translation has other numbers of words, but is long if the line is."""
    draw = np.random.default_rng(1)
    lengths = draw.integers(2, 30, 400)
    here = [f"name{row} {'word ' * int(length)}" for row, length in enumerate(lengths)]
    there = [f"{'mot ' * int(length * 1.2 + draw.integers(0, 4))} name{row}" for row, length in enumerate(lengths)]
    order = draw.permutation(400).tolist()
    first = write(tmp_path / "a", here)
    for name, rows in (("one fewer", order[1:]), ("half", order[:200]), ("few", order[:20])):
        with pytest.raises(DataError, match="look like translations of each other, in another order"):
            open_languages([f"en={first}", f"fr={write(tmp_path / name, [there[row] for row in rows])}"])
    told: list[str] = []
    strangers = [there[row].replace(f"name{row}", f"name{order[row]}") for row in range(400)]  # names are all that is common
    open_languages([f"en={first}", f"fr={write(tmp_path / 'b', [strangers[row] for row in order])}"], told.append)
    assert len(told) == 1


def test_texts_that_are_parallel_but_for_a_few_lines_are_refused(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = [" ".join(["word"] * int(length)) for length in draw.integers(1, 30, 100)]
    first, other = write(tmp_path / "a", lines), [f"{line}s" for line in lines]
    for name, some in (("last", other[:-1]), ("first", other[1:])):
        with pytest.raises(DataError, match="look like translations of each other"):
            open_languages([f"en={first}", f"fr={write(tmp_path / name, some)}"])


def test_short_texts_are_reported_and_equal_or_empty_ones_refused(tmp_path: Path) -> None:
    first, told = write(tmp_path / "a", ["a dog", "a cat"]), list[str]()
    open_languages([f"en={first}", f"fr={write(tmp_path / 'b', ['un chat', 'un chien'])}"], told.append)
    assert len(told) == 1 and "the same number of lines" in told[0]
    with pytest.raises(DataError, match="contain the same text"):
        open_languages([f"en={first}", f"en={tmp_path / 'b'}", f"fr={write(tmp_path / 'copy', ['a dog', 'a cat'])}"])
    for name, lines in (("none", []), ("spaces", ["", "  "])):
        with pytest.raises(DataError, match=f"{name}: there is no text"):
            open_languages([f"en={first}", f"fr={write(tmp_path / name, lines)}"])


def test_names_of_languages_are_no_marks_and_differ(tmp_path: Path) -> None:
    files = write(tmp_path / "a", ["a"]), write(tmp_path / "b", ["b", "c"])
    for names, problem in ((("en", "blank"), "the mark of a blank"), (("en", "EN"), "differ only in case")):
        with pytest.raises(DataError, match=problem):
            open_languages([f"{name}={file}" for name, file in zip(names, files, strict=True)])


def test_halves_have_no_partners_also_if_sentences_have_several_translations() -> None:
    plain = [(f"s{row}", f"t{row}") for row in range(10)]
    sources, targets = disjoint_halves(plain)
    assert len(sources) == len(targets) == 5
    assert not {text[1:] for text in sources} & {text[1:] for text in targets}
    draw = np.random.default_rng(0)
    pairs = [(f"s{draw.integers(300)}", f"t{draw.integers(900)} ") for _ in range(400)]
    sources, targets = disjoint_halves(pairs)
    for source, target in pairs:
        assert source not in sources or target not in targets
    assert min(len(sources), len(targets)) > 100
    assert not set(sources) & {source for source, target in pairs if target in targets}


def test_languages_are_named_before_files(tmp_path: Path) -> None:
    assert files_of("en=a.txt") == ["a.txt"]
    assert absolute("en=a.txt", tmp_path) == f"en={tmp_path / 'a.txt'}"
    file = write(tmp_path / "a.txt", ["a"])
    with pytest.raises(DataError, match="names no language"):
        open_languages([str(file)])
    with pytest.raises(DataError, match="two languages are needed"):
        open_languages([f"en={file}"])


def test_the_command_learns_scores_and_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = sentences(600, seed=1), [twin(line) for line in sentences(700, seed=2)]
    files = [f"en={write(tmp_path / 'a', here)}", f"fr={write(tmp_path / 'b', there)}"]
    out, gold = tmp_path / "d.tsv", write(tmp_path / "gold.tsv", list(gold_of(here).lines()))
    assert run(["dictionary", str(out), "--data", files[0], "--data", files[1], "--gold", str(gold)]) == 0
    assert "precision at 1" in capsys.readouterr().out
    text = tmp_path / "text"
    write(text, here[:2])
    assert run(["dictionary", str(out), "--translate", str(text)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run(["dictionary", str(out)]) == 1


def test_scores_of_a_file_are_finite_and_there_are_some(tmp_path: Path) -> None:
    for score in ("nan", "inf", "much"):
        with pytest.raises(DataError, match=f"line 2: the score '{score}' is not a finite number"):
            Dictionary.read(write(tmp_path / "d.tsv", ["a\tb\t1.0", f"c\td\t{score}"]))
    with pytest.raises(DataError, match="no words in it"):
        Dictionary.read(write(tmp_path / "empty.tsv", []))


def test_the_command_never_replaces_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {name: write(tmp_path / name, lines) for name, lines in (("a", ["a dog"]), ("b", ["un chien", "un chat"]))}
    data = ["--data", f"en={texts['a']}", "--data", f"fr={texts['b']}"]
    known, gold = (write(tmp_path / name, ["a\tb"]) for name in ("d.tsv", "gold.tsv"))
    os.link(texts["b"], tmp_path / "link")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (
        [texts["a"], *data],
        [tmp_path / "link", *data],
        [gold, *data, "--gold", gold],
        [texts["a"], *data, "--translate", texts["a"]],
        [known, "--translate", texts["a"], "-o", texts["a"]],
        [known, "--translate", texts["a"], "-o", known],
        [known, "--gold", gold, "--translate", texts["a"], "-o", gold],
    ):
        assert run(["dictionary", *map(str, arguments)]) == 1
        assert "choose another file" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_gold_words_that_the_dictionary_lacks_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, gold = write(tmp_path / "d.tsv", ["dog\tchien"]), write(tmp_path / "gold.tsv", ["chat\tcat"])
    assert run(["dictionary", str(known), "--gold", str(gold)]) == 1
    said = capsys.readouterr()
    assert "translates none of its 1 words" in said.err and not said.out


def test_texts_without_common_words_need_the_switch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    greek = str.maketrans({chr(97 + n): chr(0x3B1 + n) for n in range(26)})
    here, there = sentences(200, seed=1), [line.translate(greek) for line in sentences(220, seed=2)]
    files = [f"en={write(tmp_path / 'a', here)}", f"fr={write(tmp_path / 'b', there)}"]
    arguments = ["dictionary", str(tmp_path / "d.tsv"), "--data", files[0], "--data", files[1]]
    monkeypatch.setattr(
        "weft.data.word_vectors.bilingual_dictionary.adversarial_pairs", lambda x, y, frequent: np.array([[0, 0], [1, 1]])
    )
    assert run(arguments) == 1
    said = capsys.readouterr().err
    assert all(remedy in said for remedy in ("--adversarial", "task.dictionary_steps=0 task.vectors=false"))
    assert run([*arguments, "--adversarial"]) == 0


def test_mapped_vectors_are_saved_with_their_seeds(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    sides = [
        WordVectors(words, np.array(counts), unit(draw.normal(size=(2, 4)).astype(np.float32)), forms)
        for words, counts, forms in ((["a", "b"], [3, 1], ["A", "b"]), (["x", "y"], [2, 2], ["x", "Y"]))
    ]
    mapped = mapping.MappedVectors(sides[0], sides[1], np.array([[0, 1]]), 0.25)
    mapped.save(tmp_path)
    loaded = mapping.MappedVectors.load(tmp_path)
    assert np.allclose(loaded.scores(), mapped.scores()) and loaded.frequency == 0.25 and loaded.seeds.tolist() == [[0, 1]]
    for found, given in zip((loaded.source, loaded.target), sides, strict=True):
        assert (list(found.words), list(found.counts), list(found.forms)) == (
            list(given.words),
            list(given.counts),
            list(given.forms),
        )
    assert mapped.reversed().seeds.tolist() == [[1, 0]] and np.allclose(mapped.reversed().scores(), mapped.scores().T)
