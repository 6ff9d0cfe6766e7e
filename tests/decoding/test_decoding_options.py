"""Decoding on a trained model: a sentence's text depends on the sentence alone, and every option does what it says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers import tiny
from weft.attention.core.weight_recorder import record
from weft.config.sections import DecodeSection
from weft.data.batch import BOS, EOS, Source
from weft.data.formats import open_pairs
from weft.data.tokenizers.word_character_byte import CharacterTokenizer
from weft.decoding.decoding_options import resolve_options
from weft.errors import DataError
from weft.runs.translator import Translator
from weft.tasks.translation.segmenter import split_long


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return weft.load(reverse_run, device="cpu")


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """32 unseen sequences, some of them longer than any that was trained on, so that the model is in doubt now and then."""
    pairs = open_pairs(tiny.generated("reverse", 32, "test", longest=12))
    return [source for source, _ in pairs]


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "sample": {"sample": True, "temperature": 1.3, "seed": 7},
    "samples": {"sample": True, "n_best": 3, "temperature": 1.3, "top_k": 10, "top_p": 0.95},
    "no repeat": {"beam": 3, "no_repeat_ngram": 2, "min_length": 4},
}

BUDGETS = (1, 60, 120, 10_000)
"""Tokens of a batch: from one sentence at a time to all 32."""


@pytest.mark.parametrize("search", SEARCHES)
def test_a_text_does_not_depend_on_its_batch_or_place(translator: Translator, sentences: list[str], search: str) -> None:
    options = SEARCHES[search]
    alone = [translator.translate(sentence, **options) for sentence in sentences]
    shuffled = random.Random(3).sample(range(32), 32)
    for budget in BUDGETS:
        for order in (range(32), shuffled):
            found = translator.translate([sentences[place] for place in order], batch_tokens=budget, **options)
            for place, each in zip(order, found, strict=True):
                assert each.ids == alone[place].ids, (budget, sentences[place])
                assert each.text == alone[place].text
                assert each.score == pytest.approx(alone[place].score, abs=1e-4)
                assert [other.text for other in each.alternatives] == [other.text for other in alone[place].alternatives]


def test_batches_of_these_budgets_have_one_to_32_sentences(translator: Translator, sentences: list[str]) -> None:
    """The test above would show nothing if the budgets did not change the batches."""
    predictor = translator.predictor(batch_tokens=10_000)
    pieces = [
        piece for group in predictor.encode_input([predictor.parse_input(text) for text in sentences], 1) for piece in group
    ]
    sizes = {}
    for budget in BUDGETS:
        sizes[budget] = [len(batch) for batch in translator.predictor(batch_tokens=budget)._batches(pieces)]
    assert set(sizes[1]) == {1}
    assert 2 <= max(sizes[60]) < max(sizes[120]) < 32
    assert sizes[10_000] == [32]


def test_the_samples_differ_and_depend_on_the_seed(translator: Translator, sentences: list[str]) -> None:
    options = {"sample": True, "temperature": 2.0}
    one, again, other = ([each.text for each in translator.translate(sentences, seed=seed, **options)] for seed in (1, 1, 2))
    assert one == again
    assert one != other
    drawn = translator.translate(sentences[0], n_best=8, **options)
    assert len({drawn.text, *(each.text for each in drawn.alternatives)}) > 1
    cold = translator.translate(sentences, sample=True, temperature=0.0)
    greedy = translator.translate(sentences, beam=1)
    assert [each.text for each in cold] == [each.text for each in greedy]
    barely = translator.translate(sentences, sample=True, temperature=1e-30)
    assert [each.text for each in barely] == [each.text for each in greedy]


def test_lines_come_back_in_order_and_blank_ones_stay_blank(translator: Translator) -> None:
    lines = ["a b c", "", "d", "   ", "e f g h i", "\t"]
    found = translator.translate(lines, beam=1)
    assert [bool(each.text) for each in found] == [True, False, True, False, True, False]
    assert found[2].text == "d"
    assert [translator.translate(line, beam=1).text for line in lines] == [each.text for each in found]


def test_more_lines_than_a_window_come_back_in_order(translator: Translator) -> None:
    letters = [chr(ord("a") + number % 26) for number in range(700)]
    assert [each.text for each in translator.translate(letters, beam=1)] == letters


def test_lines_are_read_as_they_are_needed(translator: Translator) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "a b"

    found = translator.stream(endless(), beam=1)
    next(found)
    assert read <= 32


def test_n_best_are_different_and_sorted(translator: Translator, sentences: list[str]) -> None:
    for found in translator.translate(sentences[:20], beam=5, n_best=5):
        every = [found, *found.alternatives]
        assert len(every) == 5
        assert len({tuple(each.ids) for each in every}) == 5
        assert all(first.score >= second.score for first, second in pairwise(every))


def test_n_best_may_be_more_than_the_beam(translator: Translator) -> None:
    assert len(translator.translate("a b c", beam=1, n_best=3).alternatives) == 2


def test_a_wide_beam_scores_no_worse_than_greedy(translator: Translator, sentences: list[str]) -> None:
    greedy = translator.translate(sentences, beam=1, length_penalty=0.0)
    beam = translator.translate(sentences, beam=8, length_penalty=0.0)
    assert sum(b.score for b in beam) >= sum(g.score for g in greedy) - 1e-4


@pytest.mark.parametrize("beam", [1, 4])
def test_a_forced_prefix_comes_first_and_each_line_has_its_own(translator: Translator, beam: int) -> None:
    lines, prefixes = ["a b c", "d e f g", "h", ""], ["q", "", "x y z", ""]
    found = translator.translate(lines, prefix=prefixes, beam=beam)
    assert [each.text.startswith(prefix) for each, prefix in zip(found, prefixes, strict=True)] == [True] * 4
    assert found[1].text == translator.translate(lines[1], beam=beam).text
    for line, prefix, each in zip(lines, prefixes, found, strict=True):
        assert translator.translate(line, prefix=prefix, beam=beam).text == each.text


def test_a_right_prefix_is_continued_rightly(translator: Translator) -> None:
    whole = translator.translate("a b c d", beam=1)
    assert whole.text == "d c b a"
    assert translator.translate("a b c d", prefix="d c", beam=1).ids == whole.ids


def test_prefixes_and_lines_have_to_be_as_many(translator: Translator) -> None:
    with pytest.raises(DataError, match="line 2 has no prefix"):
        list(translator.stream(["a", "b"], prefixes=["a"]))
    with pytest.raises(DataError, match="more prefixes than lines"):
        list(translator.stream(["a"], prefixes=["a", "b"]))


def test_no_sequence_of_tokens_comes_twice(translator: Translator) -> None:
    lines = ["a a a a a", "a b a b a b", "c c d d c c"]
    plain = translator.translate(lines, beam=1)
    assert plain[0].text.startswith("a a a")
    for size in (1, 2, 3):
        for beam in (1, 4):
            for found in translator.translate(lines, no_repeat_ngram=size, beam=beam):
                grams = [tuple(found.ids[start : start + size]) for start in range(len(found.ids) - size + 1)]
                assert len(grams) == len(set(grams)), (size, beam, found.text)
    assert [each.text for each in translator.translate(lines, no_repeat_ngram=5000, beam=1)] == [each.text for each in plain]


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4}, {"sample": True}])
def test_shortest_and_longest_lengths(translator: Translator, options: dict[str, Any]) -> None:
    assert len(translator.translate("a b c d e", max_length=3, **options).ids) == 3
    longer = translator.translate("a b", min_length=5, max_length=9, **options)
    assert 6 <= len(longer.ids) <= 9
    assert EOS not in longer.ids[:5]
    assert len(translator.translate("a b", min_length=50, max_length=4, **options).ids) <= 4
    assert len(translator.translate("a", min_length=100, max_ratio=2.0, **options).ids) == 14  # twice "a" and its end, and ten


def test_a_long_line_is_cut_into_parts_and_said(reverse_run: Path) -> None:
    warnings: list[str] = []
    translator = weft.load(reverse_run, device="cpu", warn=warnings.append)
    lines = ["a b", "c d e f g h", "i"]
    found = [each.text for each in translator.translate(lines, beam=1, max_source=4)]
    assert warnings == ["line 2 has 6 tokens, more than 3: translated in 2 parts"]
    assert found == ["b a", "e d c h g f", "i"]


def test_a_line_of_100_000_words_is_translated(reverse_run: Path) -> None:
    warnings: list[str] = []
    translator = weft.load(reverse_run, device="cpu", warn=warnings.append)
    found = translator.translate(["b", " ".join("abcde" * 20_000), "c"], beam=1, max_ratio=0.1)
    assert len(warnings) == 1 and "line 2 has 100,000 tokens" in warnings[0]
    assert (found[0].text, found[2].text) == ("b", "c")
    assert found[1].text


def test_a_line_without_spaces_is_cut_too(translator: Translator) -> None:
    for room in (1, 2, 7):
        for line in ("x" * 1000, "a " * 50, "b" * 9 + " c d " + "e" * 30):
            parts = split_long(line, translator.source, room)
            assert all(0 < len(part) <= room for part in parts)
    assert split_long("a b c d e f", translator.source, 4) == [translator.source.encode(part) for part in ("a b c d", "e f")]


def test_a_line_is_cut_where_spaces_are_tokens() -> None:
    tokenizer = CharacterTokenizer()
    tokenizer.train(["abcdefg "], 300)
    parts = split_long("abc de fg a bcdefga", tokenizer, 6)
    assert [tokenizer.decode(part) for part in parts] == ["abc de", "fg a", "bcd", "efga"]


def test_learned_positions_follow_the_same_rule(tmp_path: Path) -> None:
    settings = {"model.position": "learned", "model.max_length": 9, "data.max_length": 8, "train.steps": 30}
    tiny.train(tmp_path / "run", "copy", settings, valid=())
    warnings: list[str] = []
    translator = weft.load(tmp_path / "run", device="cpu", warn=warnings.append)
    line = " ".join("abcdefghijklmnopqrst")
    for beam in (1, 3):
        found = translator.translate(line, beam=beam, min_length=50)
        assert len(found.source_tokens) == 20 + found.source_tokens.count(translator.source.tokens([EOS])[0])
    assert warnings == ["line 1 has 20 tokens, more than 8: translated in 3 parts"] * 2
    prefixed = translator.translate("a", prefix=" ".join("abcdefg"), beam=1)
    assert prefixed.text.startswith("a b c d e f g")
    with pytest.raises(DataError, match="line 1: its prefix has 8 tokens, and the model has 9 positions"):
        translator.translate("a", prefix=" ".join("abcdefgh"), beam=1)


def test_attention_is_that_of_the_steps(translator: Translator) -> None:
    found = translator.translate("a b c d e", attention=True, beam=2)
    assert found.ids[-1] == EOS
    shapes = {name: weights.shape for name, weights in found.attention.items()}
    assert len(found.tokens) == len(found.ids) == 6
    assert {shape for name, shape in shapes.items() if "cross" in name} == {(2, 6, len(found.source_tokens))}
    assert all(len(shape) == 3 and shape[0] == 2 for shape in shapes.values())
    for weights in found.attention.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    model = translator.model
    source = torch.tensor([[*translator.source.encode("a b c d e"), EOS]])
    with torch.inference_mode(), record(model) as tape:
        state = model.decoder.init_state(model.encode(Source(source)))
        for token in [BOS, *found.ids[:-1]]:
            state = model.decoder(torch.tensor([[token]]), state).state
    for name, weights in found.attention.items():
        if "cross" in name:
            rows = torch.cat(tape[name], dim=2)[0]
            np.testing.assert_allclose(weights, rows.numpy(), atol=1e-5)


def test_attention_is_there_only_on_demand(translator: Translator) -> None:
    assert translator.translate("a b", beam=1).attention == {}
    both = translator.translate(["a b c", "", "d"], beam=1, attention=True)
    assert [bool(each.attention) for each in both] == [True, False, True]
    assert [each.text for each in both] == [each.text for each in translator.translate(["a b c", "", "d"], beam=1)]


def test_inference_within_training_reads_the_weights_of_now() -> None:
    layer, x = torch.nn.Linear(8, 8, bias=False), torch.ones(1, 8)
    resolved = resolve_options(DecodeSection(precision="bf16"), torch.device("cpu"))

    def infer() -> torch.Tensor:
        with resolved.arithmetic(layer.weight.dtype):
            assert not torch.is_autocast_cache_enabled()  # older versions of torch use it in inference mode too
            return layer(x)

    with torch.autocast("cpu", torch.bfloat16):
        first = infer()
        with torch.no_grad():
            layer.weight.mul_(2)
        second = infer()
        trained = layer(x)
    assert first.dtype == torch.bfloat16 and torch.equal(second, 2 * first)
    trained.sum().backward()  # type: ignore[no-untyped-call]
    assert layer.weight.grad is not None
