"""Phrase-based translation: n-gram models, phrase tables and the decoder against plain loops; and learning without pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.helpers.generated_texts import sentences, twin
from weft.cli import run
from weft.data.ibm_model_2 import TranslationTable
from weft.data.phrases import stack_decoder
from weft.data.phrases.ngram_language_model import LEAST, NgramModel
from weft.data.phrases.phrase_table import PhraseTable, lexical_weight, lexicon, phrases, symmetrized
from weft.data.phrases.phrase_translation import PhraseTranslator, learn_phrases
from weft.data.phrases.stack_decoder import DecodingWeights, StackDecoder
from weft.data.word_vectors.mapping import MappedVectors
from weft.data.word_vectors.vectors import WordVectors, learn_vectors
from weft.errors import DataError

SIZE, ENDING = 6, 5
EXACT = DecodingWeights(reach=99, beam=10_000, choices=99, considered=100_000)
"""Weights of a search that drops nothing."""


def random_texts(count: int, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [[*draw.integers(0, 4, draw.integers(1, 7)).tolist(), ENDING] for _ in range(count)]


def kneser_ney(texts: Sequence[Sequence[int]], context: tuple[int, ...], token: int, highest: bool = True) -> float:
    """p(token | context) by Chen & Goodman 1999, equations 20 to 26, from counts of whole n-grams. SIZE marks beginnings."""
    n = len(context) + 1
    grams: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        marked = [SIZE] * 4 + list(text)
        for end in range(4, len(marked)):
            grams[tuple(marked[end - n + 1 : end + 1] if highest else marked[end - n : end + 1])] += 1
    counts = grams if highest else Counter(gram[1:] for gram in grams)
    number = [sum(count == times for count in counts.values()) or 1 for times in range(5)]
    share = number[1] / (number[1] + 2 * number[2])
    discount = [0.0, *(max(LEAST, k - (k + 1) * share * number[k + 1] / number[k]) for k in (1, 2, 3))]
    own = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == context}
    lower = kneser_ney(texts, context[1:], token, False) if context else 1 / SIZE
    if not own:
        return lower
    taken = {word: min(discount[min(count, 3)], count) for word, count in own.items()}
    seen = own.get(token, 0) - taken.get(token, 0.0)
    return (seen + sum(taken.values()) * lower) / sum(own.values())


@pytest.mark.parametrize("order", [1, 2, 3])
def test_an_ngram_model_equals_its_formula(order: int) -> None:
    texts = random_texts(40)
    model = NgramModel(texts, SIZE, order)
    text = random_texts(1, seed=7)[0]
    for place, (token, found) in enumerate(zip(text, model.text_log_probs(text), strict=True)):
        context = tuple(([SIZE] * order + text)[place + 1 : place + order])
        assert math.exp(found) == pytest.approx(kneser_ney(texts, context, token))


def test_probabilities_of_an_ngram_model_sum_to_one(tmp_path: Path) -> None:
    model = NgramModel(random_texts(40), SIZE, 3)
    model.save(tmp_path / "model.npz")
    for some in (model, NgramModel.load(tmp_path / "model.npz")):
        for context in product(range(-1, SIZE + 1), repeat=2):
            scores = some.log_probs(np.array([context] * SIZE), np.arange(SIZE))
            assert np.exp(scores).sum() == pytest.approx(1), context


WORDS = "abcd"
IDS = {word: number for number, word in enumerate("wxyz")}


def random_table(seed: int) -> PhraseTable:
    draw = Random(seed)
    some = [*WORDS[:3], *("".join(pair) for pair in product(WORDS[:3], repeat=2))]
    entries = {}
    for phrase in some:
        written = {" ".join(draw.choices("wxyz", k=draw.choice((1, 1, 2, 3)))) for _ in range(2)}
        entries[" ".join(phrase)] = [(each, [-draw.random() * 3, -draw.random() * 3]) for each in sorted(written)]
    return PhraseTable(entries)


def exhaustive(text: Sequence[str], table: PhraseTable, model: NgramModel, weights: DecodingWeights) -> list[str]:
    """The best translation of all: every order of every way to cut the text into phrases, scored by the formula."""
    best: tuple[float, list[str]] = (-math.inf, [])

    def extend(covered: frozenset[int], end: int, written: list[str], score: float) -> None:
        nonlocal best
        if len(covered) == len(text):
            ids = [*(IDS.get(word, 4) for word in written), ENDING]
            best = max(best, (score + weights.language * float(model.text_log_probs(ids).sum()), written))
        gap = next((place for place in range(len(text)) if place not in covered), 0)
        for first in range(len(text)):
            for last in range(first + 1, len(text) + 1):
                own = set(range(first, last))
                if covered & own or abs(first - end) > weights.reach or (first != gap and last - gap > weights.reach):
                    continue
                phrase = " ".join(text[first:last])
                unknown = [(phrase, [0.0])] if last == first + 1 else []
                for target, features in table.entries.get(phrase, unknown):
                    more = weights.translation * sum(features) / len(features) - weights.distortion * abs(first - end)
                    more += weights.words * len(target.split()) - weights.phrases
                    extend(covered | own, last, [*written, *target.split()], score + more)

    extend(frozenset(), 0, [], 0.0)
    return best[1]


@pytest.mark.parametrize("reach", [99, 2])
def test_the_decoder_finds_what_an_exhaustive_search_finds(reach: int) -> None:
    model = NgramModel([[draw % 4 for draw in text[:-1]] + [ENDING] for text in random_texts(30, seed=3)], SIZE, 3)
    draw = Random(5)
    for seed in range(6):
        table, weights = random_table(seed), replace(EXACT, reach=reach)
        texts = [draw.choices(WORDS, k=length) for length in (1, 2, 4, 4)]
        found = StackDecoder(table, model, IDS, 4, ENDING, weights).translate([*texts, []])
        assert found == [*(exhaustive(text, table, model, weights) for text in texts), []]


def test_a_text_does_not_depend_on_its_batch_and_long_ones_are_translated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw = NgramModel(random_texts(30), SIZE, 3), Random(1)
    decoder = StackDecoder(random_table(0), model, IDS, 4, ENDING, DecodingWeights())
    texts = [draw.choices(WORDS, k=draw.randint(1, 9)) for _ in range(20)]
    assert decoder.translate(texts) == [decoder.translate([text])[0] for text in texts]
    monkeypatch.setattr(stack_decoder, "LONGEST", 4)
    assert decoder.translate([list("abcabca")])[0] == [
        *decoder.translate([list("abca")])[0],
        *decoder.translate([list("bca")])[0],
    ]


def test_phrases_are_those_that_no_link_leaves() -> None:
    """All pairs of spans, checked one by one by the definition (Och & Ney 2004)."""
    draw = Random(2)
    for _ in range(30):
        sources, targets = draw.randint(1, 5), draw.randint(1, 5)
        links = frozenset((i, j) for i in range(sources) for j in range(targets) if draw.random() < 0.3)
        wanted = set()
        for first, last, begin, end in product(range(sources), range(1, sources + 1), range(targets), range(1, targets + 1)):
            inside = [(first <= i < last, begin <= j < end) for i, j in links]
            if first < last and begin < end and (True, True) in inside and all(one == other for one, other in inside):
                wanted.add(((first, last), (begin, end)))
        found = [(one, other) for one, other, _ in phrases(sources, targets, links)]
        assert set(found) == wanted and len(found) == len(wanted)


def test_links_of_both_directions_are_kept_and_neighbours_added() -> None:
    # Both agree on 0-0 and 2-2. 1-1 is beside both; 1-2 too, but its words are linked by then; 4-0 is beside none.
    assert symmetrized([0, 1, 2], [0, 2, 2, 2, 0]) == {(0, 0), (1, 1), (2, 2), (3, 2)}


def test_lexical_weights_are_products_of_means() -> None:
    pairs = [(["a", "b"], ["x", "y"], frozenset({(0, 0), (1, 0)})), (["a"], ["z"], frozenset({(0, 0)}))]
    weights = lexicon(pairs)
    assert weights == {("a", "x"): 0.5, ("a", "z"): 0.5, ("b", "x"): 1.0, ("", "y"): 1.0}
    assert lexical_weight(["a", "b"], ["x", "y"], frozenset({(0, 0), (1, 0)}), weights) == pytest.approx((0.5 + 1) / 2 * 1.0)


def test_a_table_from_pairs_has_relative_frequencies() -> None:
    table = PhraseTable.from_pairs([(["a", "b"], ["x", "y"])] * 3 + [(["a"], ["x"]), (["a"], ["z"]), (["b"], ["y"])])
    forth = {written: math.exp(features[0]) for written, features in table.entries["a"]}
    assert forth == pytest.approx({"x": 4 / 5, "z": 1 / 5})
    assert {written: math.exp(features[1]) for written, features in table.entries["a"]} == pytest.approx({"x": 1, "z": 1})
    assert [written for written, _ in table.entries["a b"]] == ["x y"]


def test_a_table_from_vectors_has_softmaxes_of_similarities() -> None:
    draw = np.random.default_rng(0)
    sides = [
        WordVectors([f"{side}{n}" for n in range(12)], [5] * 12, (rows := draw.standard_normal((12, 4)).astype(np.float32))
                    / np.linalg.norm(rows, axis=1, keepdims=True), [""] * 12)
        for side in "st"
    ]  # fmt: skip
    mapped = MappedVectors(sides[0], sides[1], np.zeros((0, 2), np.int64), 0.1)
    table, scores = PhraseTable.from_vectors(mapped, best=3), mapped.scores() / 0.03
    for number, (phrase, found) in enumerate(table.entries.items()):
        assert phrase == f"s{number}" and len(found) == 3
        assert {written for written, _ in found} == {f"t{place}" for place in np.argsort(-scores[number])[:3]}
        for written, (forth, back) in found:
            place = int(written[1:])
            assert math.exp(forth) == pytest.approx(np.exp(scores[number, place]) / np.exp(scores[number]).sum(), rel=1e-3)
            assert math.exp(back) == pytest.approx(np.exp(scores[number, place]) / np.exp(scores[:, place]).sum(), rel=1e-3)


def test_ngrams_have_vectors_by_their_contexts_and_words_keep_theirs() -> None:
    draw, lines = Random(0), []
    for line in sentences(400, seed=1):
        place, words = draw.randrange(line.count(" ") + 1), line.split()
        lines.append(" ".join([*words[:place], draw.choice(("big dog", "hound")), *words[place + 1 :]]))
    alone, both = learn_vectors(lines), learn_vectors(lines, ngrams=2)
    assert both.singles == len(alone.words) and np.array_equal(both.vectors[: both.singles], alone.vectors)
    cosine = {name: vector / np.linalg.norm(vector) for name, vector in zip(both.words, both.vectors, strict=True)}
    near = sorted(cosine, key=lambda name: -float(cosine[name] @ cosine["big dog"]))
    assert "hound" in near[:4], near[:6]


def test_words_are_aligned_by_model_2() -> None:
    draw = np.random.default_rng(0)
    pairs = [(some, some + 10) for some in (draw.integers(0, 10, draw.integers(2, 7)) for _ in range(200))]
    table = TranslationTable.count(pairs, 20)
    assert table.links(np.array([3, 7, 1]), np.array([11, 13, 17])).tolist() == [2, 0, 1]


@pytest.fixture(scope="module")
def learnt() -> PhraseTranslator:
    texts = sentences(1500, seed=1), [twin(line) for line in sentences(1500, seed=2)]
    return learn_phrases(("en", "xx"), texts, rounds=1)


def share_right(found: Sequence[str], wanted: Sequence[str]) -> float:
    pairs = [(Counter(one.split()), Counter(other.split())) for one, other in zip(found, wanted, strict=True)]
    return sum((one & other).total() for one, other in pairs) / sum(other.total() for _, other in pairs)


def test_phrases_are_learnt_from_separate_texts(learnt: PhraseTranslator, tmp_path: Path) -> None:
    lines = sentences(60, seed=3)
    wanted = [twin(line) for line in lines]
    assert share_right(lines, wanted) < 0.4
    found = learnt.translate(lines, "xx"), learnt.translate(wanted, "en")
    assert share_right(found[0], wanted) > 0.6 and share_right(found[1], lines) > 0.6
    learnt.save(tmp_path / "phrases")
    assert PhraseTranslator.load(tmp_path / "phrases").translate(lines, "xx") == learnt.translate(lines, "xx")


def test_words_that_nobody_knows_stay_and_first_words_keep_their_case(learnt: PhraseTranslator) -> None:
    (line,) = sentences(1, seed=9)
    plain, capital = learnt.translate([line, line[:1].upper() + line[1:]], "xx")
    assert capital == plain[:1].upper() + plain[1:]
    assert "Qwertz" in learnt.translate([f"Qwertz {line}"], "xx")[0]
    assert learnt.translate(["", " "], "xx") == ["", ""]
    with pytest.raises(DataError, match="between en and xx"):
        learnt.translate([line], "fr")


def test_the_command_learns_and_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lines in (("en", sentences(600, seed=1)), ("xx", [twin(line) for line in sentences(700, seed=2)])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    folder = str(tmp_path / "phrases")
    data = [part for name in ("en", "xx") for part in ("--data", f"{name}={tmp_path / name}.txt")]
    assert run(["phrases", folder, *data, "--rounds", "0"]) == 0
    assert "pairs of phrases into xx" in capsys.readouterr().err
    out = tmp_path / "out.txt"
    assert run(["phrases", folder, "--translate", str(tmp_path / "en.txt"), "-o", str(out)]) == 0
    assert out.read_text().splitlines() == PhraseTranslator.load(Path(folder)).translate(sentences(600, seed=1), "xx")
    for arguments, message in (
        ([folder], "give --data to learn phrases"),
        ([str(tmp_path / "none"), "--translate", str(out)], "there are no phrases in it"),
        ([folder, "--translate", str(out), "--into", "fr"], "between en and xx"),
    ):
        assert run(["phrases", *arguments]) == 1
        assert message in capsys.readouterr().err
