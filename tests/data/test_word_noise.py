"""Noise on words and segmentations: what it leaves alone, how far words move, and that it follows from its key."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from weft.config import registry
from weft.data.batch import EOS
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import BLANK, ExtendedTokenizer
from weft.data.tokenizers.bpe_dropout import POOL, bpe_dropout, unigram_sample
from weft.data.word_noise import NoisyEncoder, WordNoise
from weft.errors import ConfigError

LINE = [
    "the",
    "old",
    "man",
    "sees",
    "a",
    "small",
    "boat",
    "and",
    "two",
    "birds",
    "near",
    "the",
    "red",
    "house",
    "by",
    "the",
    "sea",
]
TEXTS = [" ".join(LINE[start : start + count]) for start in range(10) for count in (1, 3, 6)] * 3


def drawn(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def trained(kind: str, texts: list[str] = TEXTS, **options: Any) -> Tokenizer:
    tokenizer: Tokenizer = registry.build("weft.data:TOKENIZERS", {"kind": kind, **options})
    tokenizer.train(texts, 400)
    return tokenizer


def test_no_noise_is_the_identity() -> None:
    texts = [text.split(" ") for text in TEXTS]
    assert WordNoise()(texts, drawn()) == texts
    bpe = trained("bpe")
    plain = [[*ids, EOS] for ids in bpe.encode_batch(TEXTS)]
    assert NoisyEncoder(bpe, WordNoise())(TEXTS, drawn()) == plain
    assert NoisyEncoder(bpe, variants=bpe.variants(0.0))(TEXTS, drawn()) == plain


@pytest.mark.parametrize("most", [1, 3])
def test_no_word_moves_more_than_k_places(most: int) -> None:
    texts = [[str(place) for place in range(count)] for count in (1, 2, 9, 40)] * 50
    moves = [
        abs(int(str(word)) - place) for words in WordNoise(shuffle=most)(texts, drawn()) for place, word in enumerate(words)
    ]
    assert max(moves) == most and min(moves) == 0
    assert all(sorted(map(str, words), key=int) == text for words, text in zip(WordNoise(shuffle=most)(texts, drawn()), texts))


def test_words_are_dropped_and_blanked_out_as_often_as_the_options_say() -> None:
    texts = [LINE] * 400
    found = WordNoise(drop=0.1)(texts, drawn())
    assert sum(map(len, found)) / (400 * len(LINE)) == pytest.approx(0.9, abs=0.01)
    assert all([word for word in LINE if word in words] for words in found)
    found = WordNoise(blank=0.2)(texts, drawn())
    assert sum(words.count(None) for words in found) / (400 * len(LINE)) == pytest.approx(0.2, abs=0.015)
    assert all(word in (None, true) for words in found for word, true in zip(words, LINE, strict=True))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("tags", ["", "de"])
def test_noise_on_ids_equals_noise_on_texts(kind: str, tags: str) -> None:
    tokenizer = ExtendedTokenizer(trained(kind), ["de", BLANK])
    noiser = NoisyEncoder(tokenizer, WordNoise(0.2, 0.2, 3), None, tokenizer.added_id(BLANK), tokenizer.tags(tags))
    plain = [[*tokenizer.tags(tags), *ids, EOS] for ids in tokenizer.encode_batch(TEXTS)]
    lengths = np.array([len(ids) for ids in plain])
    ids, counts = noiser.on_ids(np.concatenate(plain), lengths, drawn())
    expected = noiser(TEXTS, drawn())
    assert [some.tolist() for some in np.split(ids, counts.cumsum()[:-1])] == expected != plain


def test_one_word_always_stays() -> None:
    assert all(len(words) >= 1 for words in WordNoise(drop=0.99)([["a"], ["a", "b"]] * 100, drawn()))


def test_noise_follows_from_its_key() -> None:
    noiser = NoisyEncoder(bpe := trained("bpe"), WordNoise(0.2, 0, 3), bpe.variants(0.2))
    assert noiser(TEXTS, drawn(1)) == noiser(TEXTS, drawn(1)) != noiser(TEXTS, drawn(2))
    again = NoisyEncoder(bpe, WordNoise(0.2, 0, 3), trained("bpe").variants(0.2))
    assert noiser(TEXTS, drawn(1)) == again(TEXTS, drawn(1)), "it depends on what was drawn before"


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
def test_a_blank_is_a_token_that_no_text_gives(kind: str) -> None:
    inner = trained(kind)
    tokenizer = ExtendedTokenizer(inner, ["de", BLANK])
    blank = tokenizer.tags(BLANK)[0]
    ids = NoisyEncoder(tokenizer, WordNoise(blank=0.5), None, blank, tokenizer.tags("de"))(TEXTS[-6:], drawn())
    assert all(row[0] == inner.size for row in ids) and any(inner.size + 1 in row for row in ids)
    assert max(max(row) for row in tokenizer.encode_batch([*TEXTS, "<blank> <de> blank"])) < inner.size
    assert tokenizer.decode(ids[0]) == inner.decode([token for token in ids[0] if token < inner.size])
    assert tokenizer.tokens([inner.size, inner.size + 1]) == ["<de>", "<blank>"] and tokenizer.size == inner.size + 2


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_bpe_without_dropout_equals_the_library(byte_fallback: bool) -> None:
    bpe = trained("bpe", byte_fallback=byte_fallback)
    variants = bpe.variants(0.0)
    for word in [*LINE, "boats,", "Übermut", "日本", "x-y", "</s>"]:
        assert list(variants(word, 0)) == bpe.encode(word), word


@pytest.mark.parametrize(("kind", "strength"), [("bpe", 0.3), ("unigram", 0.2)])
def test_random_segmentations_have_the_same_text(kind: str, strength: float) -> None:
    tokenizer = trained(kind)
    variants = tokenizer.variants(strength)
    found = {variants("house", number) for number in range(POOL)}
    assert len(found) > 1
    assert {tokenizer.decode(ids) for ids in found} == {"house"}


def test_bpe_dropout_has_the_distribution_of_the_paper() -> None:
    """With one merge, it is skipped with probability p; then nothing is left to merge."""
    draw = Random(1)
    found = Counter(len(bpe_dropout("ab", {("a", "b"): 0}, 0.3, draw)) for _ in range(4000))
    assert found[2] / 4000 == pytest.approx(0.3, abs=0.03)
    # After a b, ab c: both merges have to be kept in the same step or one after the other.
    found = Counter("|".join(bpe_dropout("abc", {("a", "b"): 0, ("ab", "c"): 1}, 0.5, draw)) for _ in range(4000))
    assert {text: count / 4000 for text, count in found.items()} == pytest.approx(
        {"a|b|c": 0.5, "ab|c": 0.25, "abc": 0.25}, abs=0.03
    )


def test_unigram_samples_have_the_probabilities_of_enumeration() -> None:
    scores = {"a": -1.0, "b": -2.0, "ab": -2.2, "ba": -2.5, "aba": -3.0}
    power, text = 0.5, "aba"
    ways = {"a|b|a": -4.0, "ab|a": -3.2, "a|ba": -3.5, "aba": -3.0}
    weights = {way: np.exp(power * score) for way, score in ways.items()}
    draw, count = Random(2), 6000
    found = Counter("|".join(unigram_sample(text, scores, 3, -20.0, power, draw)) for _ in range(count))
    expected = {way: weight / sum(weights.values()) for way, weight in weights.items()}
    assert {way: found[way] / count for way in ways} == pytest.approx(expected, abs=0.025)


def test_other_tokenizers_refuse_to_draw_segmentations() -> None:
    with pytest.raises(ConfigError, match="only the tokenizers bpe and unigram"):
        trained("words").variants(0.1)
