"""decode.rules: searches against all texts that obey the rules, batches against single texts, and what a user may switch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest
import torch

from tests.decoding.test_search_loop import CHOOSERS, encode, limits, log_probability, make
from weft.config.sections import DecodeSection
from weft.data.batch import BOS, EOS, PAD, UNK, Layout
from weft.data.tokenizers.word_character_byte import CharacterTokenizer
from weft.decoding.beam_search import BeamSelector
from weft.decoding.decoding_options import resolve_options
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.search_loop import SearchRequest, run_search
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.tasks.translation.generation_request import make_rules
from weft.tasks.translation.predictor import TranslationPredictor
from weft_studies.couplets import SourceRules

ALL = ("same_length", "mirror_repeats", "no_shared")
USUAL = ForbidTokens([PAD, BOS, UNK])


def obeys(rules: Sequence[str], source: Sequence[Any], text: Sequence[Any]) -> bool:
    """Whether the tokens of a text, without EOS, obey the rules."""
    pairs = list(itertools.combinations(zip(source, text, strict=False), 2))
    return (
        ("same_length" not in rules or len(text) == len(source))
        and ("mirror_repeats" not in rules or all(a[1] == b[1] for a, b in pairs if a[0] == b[0]))
        and ("no_shared" not in rules or not set(source) & set(text))
    )


@pytest.mark.parametrize("rules", [chosen for count in range(4) for chosen in itertools.combinations(ALL, count)])
def test_a_wide_search_with_rules_equals_exhaustive_search(rules: tuple[Any, ...]) -> None:
    size, model = 8, make(8, eos=1.0)
    for g, source, prefix in ((0, [4, 5, 4], []), (1, [6, 6, 6], [5]), (2, [7], [])):
        encoded, longest = encode(model, size, slice(g, g + 1)), len(source) + 1 - len(prefix)
        texts = [
            list(text)
            for n in range(1, longest + 1)
            for text in itertools.product([EOS, *range(4, size)], repeat=n)
            if EOS not in text[:-1] and (text[-1] == EOS or n == longest)
        ]
        right = [text for text in texts if obeys(rules, source, [token for token in [*prefix, *text] if token != EOS])]
        scored = sorted(((log_probability(model, encoded, text, (BOS, *prefix)), text) for text in right), reverse=True)[:5]
        found, _ = run_search(
            model.decoder,
            encoded,
            BeamSelector(400, 0.0, keep=5),
            SearchRequest(
                prefix=torch.tensor([[BOS, *prefix]]),
                limits=limits(1, longest),
                constraints=[USUAL, SourceRules(rules, [source], [source])],
            ),
        )
        assert [each.tokens for each in found[0]] == [text for _, text in scored]
        assert [each.score for each in found[0]] == pytest.approx([score for score, _ in scored], abs=1e-4)


@pytest.mark.parametrize("selector", ["greedy", "beam", "sample"])
def test_a_batch_with_rules_equals_its_sentences_alone(selector: str) -> None:
    """Sources and prefixes of different lengths in one call, rows leaving early."""
    size, model = 13, make(13, eos=1.0)
    read = [[4, 5, 4, 6, 5], [7], [8, 8, 8, 9, 4, 5, 6, 8], [10, 11], [4, 4], []]
    prefix, count = torch.tensor([[BOS, 9], [BOS, PAD], [BOS, 7], [BOS, PAD], [BOS, 7], [BOS, PAD]]), [2, 1, 2, 1, 2, 1]

    def search(rows: slice) -> list[list[list[int]]]:
        sources, numbers = read[rows], torch.arange(6)[rows]
        longest = torch.tensor([len(source) + 2 - length for source, length in zip(sources, count[rows], strict=True)])
        found, _ = run_search(
            model.decoder,
            encode(model, size, rows),
            CHOOSERS[selector](),
            SearchRequest(
                prefix=prefix[rows],
                prefix_layout=Layout.padded(count[rows], 2),
                limits=limits(len(sources), longest, ids=numbers),
                constraints=[USUAL, SourceRules(ALL, sources, sources)],
                check=1,
            ),
        )
        return [[each.tokens for each in texts] for texts in found]

    for g, texts in enumerate(search(slice(None))):
        for text in texts:
            assert text[-1] == EOS and obeys(ALL, read[g], [*prefix[g, 1 : count[g]].tolist(), *text[:-1]])
        assert texts and search(slice(g, g + 1))[0] == texts


def predictor(*, rules: Sequence[str] = ALL, shared: bool = True, **options: Any) -> TranslationPredictor:
    """An untrained model over characters."""
    tokenizer = CharacterTokenizer(byte_fallback=False)
    tokenizer.train(["天地人山水花月，风云"], 100)
    other = tokenizer if shared else copy(tokenizer)
    torch.manual_seed(2)
    spec = {"kind": "transformer", "dim": 16, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 1}
    network = build_model(
        {**spec, "share_embeddings": "output", **options.pop("model", {})}, Sizes(tokenizer.size, other.size, shared=shared)
    ).eval()
    section = DecodeSection(**{"sentences": "off", "rules": rules, **options})
    return TranslationPredictor(network, tokenizer, other, resolve_options(section, network.device))


def texts(found: TranslationPredictor, *lines: str, **fields: Any) -> list[str]:
    return [each.text for each in found.predict([found.parse_input(line, **fields) for line in lines])]


def test_every_text_has_the_length_of_its_source() -> None:
    lines = ["天", "天地人", "山水花月风云山水花月风云", "龙虎龙", ""]
    for options in ({}, {"search": "sample"}, {"search": "greedy"}, {"max_length": 2, "min_length": 30}):
        assert [len(text) for text in texts(predictor(**options), *lines)] == [len(line) for line in lines]
    assert [len(text) for text in texts(predictor(rules=[]), *lines)] != [len(line) for line in lines]
    # A line with more characters than the model has positions is written in parts, each to its end.
    found = predictor(model={"position": "learned", "max_length": 8})
    (whole,) = found.predict([found.parse_input("山水花月风云人" * 2)])
    assert len(whole.text.replace(" ", "")) == 14 and whole.score > -100


def test_unknown_characters_differ_and_punctuation_may_be_shared() -> None:
    found = predictor()
    (rules,) = make_rules(found.options, found.source, found.segments("龙虎龙，天，"))
    assert rules.origin.tolist() == [[0, 1, 0, 3, 4, 3]]
    known = {found.source.tokens([token])[0] for token in rules.barred.flatten().tolist() if token not in (PAD, UNK)}
    assert known == {"天"}


def test_repeats_of_a_prefix_are_mirrored() -> None:
    (text,) = texts(predictor(), "天地天地", prefix="山天")
    assert text == "山天山天"
    assert texts(predictor(), "天地", prefix="山水花月") == ["山水花月"]
    (text,) = texts(predictor(), "天地天", prefix="龙")
    assert len(text) == 2, "what an unknown character of the prefix was is not known, so nothing is repeated"


def test_what_cannot_follow_rules_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"noisy does not support decode\.rules"):
        predictor(search="noisy")
    with pytest.raises(ConfigError, match="no_shared compares the tokens of both sides"):
        predictor(shared=False)
    assert len(texts(predictor(shared=False, rules=["same_length", "mirror_repeats"]), "天地")[0]) == 2
