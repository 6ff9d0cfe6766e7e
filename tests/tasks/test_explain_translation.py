"""Explanations of one sentence: attention maps of every model family, words, the beam tree, and a given target."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.font_manager import fontManager
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.full import FullAttention
from weft.config.sections import DecodeSection
from weft.data.batch import Layout
from weft.data.term_automata import token_texts
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.bpe_and_unigram import BpeTokenizer
from weft.data.tokenizers.word_character_byte import ByteTokenizer, CharacterTokenizer, WordTokenizer
from weft.decoding.decoding_options import resolve_options
from weft.errors import ConfigError, DataError
from weft.explain import attention_heatmap as picture
from weft.explain.attention_heatmap import View, cross_attention, draw, view_of, views
from weft.explain.explanation import fed, find_words, join_words, make_side, right_to_left
from weft.explain.inside import StepOperand
from weft.layers.decoder_state import State
from weft.models.base import Encoded, HiddenStates, LinearDecoder, Sizes
from weft.models.encoder_decoder import build_model
from weft.tasks.translation.explanation import explain_translation
from weft.tasks.translation.predictor import TranslationPredictor

TEXT = "a b c d"
SMALL = {"dim": 16, "heads": 2, "feedforward": 16, "encoder_layers": 2, "decoder_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", **SMALL},
    "linear": {"kind": "transformer", **SMALL, "encoder_self": "fnet", "decoder_self": "linear", "cross": "linear"},
    "rnn": {"kind": "rnn", "dim": 16},
    "rnn without attention": {"kind": "rnn", "dim": 16, "style": "fixed"},
    "convs2s": {"kind": "convs2s", "dim": 16, "channels": 16, "encoder_layers": 1, "decoder_layers": 2},
    "bytenet": {"kind": "bytenet", "dim": 16, "dilations": (1, 2), "encoder_sets": 1, "decoder_sets": 1},
    "pointer": {"kind": "pointer", "base": {"kind": "rnn", "dim": 16}},
}


def letters() -> WordTokenizer:
    tokenizer = WordTokenizer()
    tokenizer.train(["a b c d e f g"], 100)
    return tokenizer


def decoding(
    model: str | dict[str, Any] = "transformer", tokenizer: Tokenizer | None = None, **options: Any
) -> TranslationPredictor:
    """An untrained model over letters, with a search of its own."""
    chosen = tokenizer or letters()
    torch.manual_seed(1)
    spec = MODELS[model] if isinstance(model, str) else model
    network = build_model(spec, Sizes(chosen.size, chosen.size, shared=True)).eval()
    section = DecodeSection(**{"beam": 3, "n_best": 3, "max_length": 12, **options})
    return TranslationPredictor(network, chosen, chosen, resolve_options(section, network.device))


@pytest.mark.parametrize("model", MODELS)
def test_every_family_has_attention_maps(model: str) -> None:
    found = explain_translation(decoding(model), TEXT)
    count = len(found.target.tokens)
    assert found.source.tokens == ["a", "b", "c", "d", "</s>"]
    assert len(found.steps) == count
    assert found.views("cross"), "every model has a map over the source"
    for each in found.maps:
        rows, columns = found.sides(each)
        assert each.weights.shape[1:] == (len(rows.tokens), len(columns.tokens))
        assert np.allclose(each.weights.sum(-1), 1, atol=1e-4) or each.note
        assert each.weights.min() >= 0
        assert found.joined(each).shape[1:] == (len(rows.words), len(columns.words))
    has_weights = model in ("transformer", "rnn", "convs2s", "pointer")
    assert {each.how for each in found.views("cross")} == {"weights" if has_weights else "influence"}


def test_maps_of_a_transformer_and_their_titles() -> None:
    found = explain_translation(decoding("transformer"), TEXT)
    titles = [(each.use, each.title, each.kind, each.weights.shape[0]) for each in found.maps]
    assert titles == [(use, f"layer {layer}", "full", 2) for use in ("cross", "encoder", "causal") for layer in (1, 2)]
    assert np.triu(found.views("causal")[0].mean, 1).max() == 0
    assert found.notes == []


def test_mechanisms_without_weights_show_influence_and_say_so() -> None:
    found = explain_translation(decoding("linear"), TEXT)
    assert {each.how for each in found.maps} == {"influence"}
    assert all("has no weights to show" in each.note for each in found.maps if each.name)
    assert np.triu(found.views("causal")[0].mean, 1).max() == 0, "no token depends on later ones"
    bytenet = explain_translation(decoding("bytenet"), TEXT)
    assert any("no attention to the source" in note for note in bytenet.notes)


def test_influence_finds_the_token_that_matters() -> None:
    """A ByteNet with convolutions of width 1 depends only on the token in its own column."""
    model = {**MODELS["bytenet"], "width": 1, "dilations": (1,)}
    found = explain_translation(decoding(model), TEXT, target="e f g a")
    assert np.allclose(found.views("cross")[0].mean[:5], np.eye(5), atol=1e-3)


def test_a_copying_model_reports_its_copy_probability() -> None:
    found = explain_translation(decoding("pointer"), "a b zebra d", target="zebra b")
    assert found.source.tokens[2] == "zebra"
    assert [step.token for step in found.steps] == ["zebra", "b", "end"]
    assert all(step.copied is not None and 0 < step.copied < 1 for step in found.steps)
    assert explain_translation(decoding("rnn"), "a b zebra d").notes[0] == "not in the vocabulary, so read as <unk>: zebra"


@pytest.mark.parametrize("model", MODELS)
def test_the_steps_lead_from_the_output_back_to_the_source(model: str) -> None:
    """Each step names those that it is computed from, so that a reader gets from the probabilities to the tokens."""
    inside = explain_translation(decoding(model), TEXT, inside=True).inside
    assert inside is not None
    last = list(inside)[-1]
    assert last.endswith("probabilities")
    found, ahead = set[str](), [last]
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += [each.step for each in inside[name].operands.values() if isinstance(each, StepOperand) and each.step]
    assert {"encoder.front.ids", "decoder.embedding.ids"} <= {name.replace(".base", "") for name in found}
    assert all(f"{layer}.residual" in found for layer in ("encoder.blocks.0", "decoder.layers.1") if model == "convs2s")


@pytest.mark.parametrize("tokenizer", [None, ByteTokenizer()], ids=["words", "bytes"])
def test_the_steps_of_a_copying_model_name_the_words_that_it_copies(tokenizer: Tokenizer | None) -> None:
    """Its probabilities have a column for each token of the source; the columns of known tokens are empty."""
    inside = explain_translation(decoding("pointer", tokenizer), "a b zebra d", target="b a", inside=True).inside
    assert inside is not None
    names = inside["decoder.mixture"].labels["vocabulary"]
    assert len(names) == inside["decoder.mixture"].values.shape[-1]
    assert ("zebra" in names) == (tokenizer is None) and names[-1] == "·"


class ForeignDecoder(LinearDecoder):
    """A decoder as somebody else may write it: no module is called "cross"."""

    def __init__(self, vocabulary: int, dim: int) -> None:
        super().__init__()
        self.dim = self.hidden = dim
        self.table, self.output = nn.Embedding(vocabulary, dim), nn.Linear(dim, vocabulary)
        self.lookup = FullAttention(Site("cross", dim, heads=2))

    def init_state(self, source: Encoded, *, room: int | None = None) -> State:
        return self.lookup.init_state(source.memory, source.layout)

    def hidden_states(self, tokens: Tensor, state: State, layout: Layout | None = None) -> HiddenStates:
        attended = self.lookup(self.table(tokens), state, layout=layout)
        return HiddenStates(attended.context, attended.state)


def test_cross_attention_is_found_by_its_use_not_by_its_name() -> None:
    predictor = decoding("transformer")
    predictor.model.decoder = ForeignDecoder(predictor.target.size, 16).eval()
    (found,) = predictor.predict([predictor.parse_input(TEXT, attention=True)])
    assert found.uses["decoder.lookup"] == "cross"
    assert set(found.uses) == set(found.attention)
    assert np.allclose(cross_attention(found), found.attention["decoder.lookup"].mean(0))
    assert [view.title for view in views(found)] == ["encoder", "cross"]
    assert [each.name for each in explain_translation(predictor, TEXT).views("cross")] == ["decoder.lookup"]


def test_scores_and_probabilities_are_those_of_the_search() -> None:
    found = explain_translation(decoding(length_penalty=1.0), TEXT)
    assert found.score == found.best[0].score
    assert sum(step.logp for step in found.steps) / len(found.steps) == pytest.approx(found.score, abs=1e-4)
    again = explain_translation(decoding(length_penalty=1.0), TEXT, target=found.target.text)
    if found.target.tokens[-1] == "</s>":
        assert again.score == pytest.approx(found.score, abs=1e-4)
    for step in found.steps:
        assert [option.logp for option in step.options] == sorted((option.logp for option in step.options), reverse=True)


def test_tokens_that_a_search_never_outputs_are_not_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("weft.tasks.translation.explanation")
    monkeypatch.setattr(module, "OPTIONS", 100)
    for step in explain_translation(decoding(), TEXT).steps:
        assert sorted(option.token for option in step.options) == sorted([*"abcdefg", "end"])


def test_the_beam_tree_has_every_hypothesis_and_the_reason_it_was_dropped() -> None:
    found = explain_translation(decoding(), TEXT)
    tree = found.tree
    paths = {}
    for place, node in enumerate(tree):
        assert node.parent < place
        assert node.parent < 0 or tree[node.parent].step == node.step - 1
        assert node.parent < 0 or node.score <= tree[node.parent].score + 1e-5
        paths[place] = [*paths.get(node.parent, []), node.token]
        assert node.why or node.fate == "kept"
    finals = sorted((node.final for node in tree if node.fate == "finished" and node.final is not None), reverse=True)
    assert finals[0] == pytest.approx(found.best[0].score)
    best = [place for place, node in enumerate(tree) if node.best]
    assert paths[best[-1]] == [step.token for step in found.steps]
    for step in {node.step for node in tree}:
        scores = {
            fate: [node.score for node in tree if node.step == step and node.fate == fate] for fate in ("kept", "dropped")
        }
        assert len(scores["kept"]) <= 3
        running = [node for node in tree if node.step == step and node.fate == "dropped" and node.final is None]
        assert all(node.score <= min(scores["kept"], default=math.inf) for node in running)
    assert explain_translation(decoding(beam=1, n_best=1), TEXT).tree == []


def test_a_given_target_is_forced_and_the_models_continuation_is_shown() -> None:
    own = explain_translation(decoding(), TEXT, target="e f g")
    assert own.forced
    assert [step.token for step in own.steps] == ["e", "f", "g", "end"]
    for place, step in enumerate(own.steps):
        if step.instead is not None:
            beginning = " ".join([*(each.token for each in own.steps[:place]), step.options[0].token])
            assert step.instead.startswith(beginning.removesuffix(" end").removesuffix("end"))
        assert (step.instead is not None) == (step.options[0].token != step.token)


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("", None, "empty text"),
        ("  ", None, "empty text"),
        ("a " * 40, None, "more than 19 tokens"),
        ("a", "b " * 40, "30 positions"),
    ],
)
def test_errors_for_texts_that_cannot_be_explained(text: str, target: str | None, message: str) -> None:
    model = {**MODELS["transformer"], "position": "learned", "max_length": 30}
    with pytest.raises(DataError, match=message):
        explain_translation(decoding(model, max_source=20), text, target=target)


def test_words_of_every_tokenizer() -> None:
    words = WordTokenizer()
    words.train(["Oh, no (really)"], 100)
    assert _names(words, "Oh, no (really)") == ["Oh,", "no", "(really)"]
    bpe = BpeTokenizer()
    bpe.train(["the lower the newer the wider"] * 4, 275)
    assert _names(bpe, "the lowest, newer") == ["the", "lowest,", "newer"]
    assert _names(ByteTokenizer(), "é ü 年月") == ["é", "ü", "年", "月"]
    characters = CharacterTokenizer()
    characters.train(["3 mars 1999"], 300)
    assert _names(characters, "3 mars 1999é") == ["3", "mars", "1999é"]
    ids = ByteTokenizer().encode("é 年月")
    pieces = token_texts(ByteTokenizer(), ids)
    assert "".join(pieces) == "é 年月"
    assert find_words(ids, pieces, apart=False) == [(0, 2), (2, 9)]


def _names(tokenizer: Tokenizer, text: str) -> list[str]:
    side = make_side(tokenizer, [*tokenizer.encode(text), 2])
    assert side.names[-1] == "end"
    assert [span for first, last in side.words for span in range(first, last)] == list(range(len(side.tokens)))
    return side.names[:-1]


def test_joined_weights_are_sums_over_keys_and_means_over_queries() -> None:
    weights = np.array([[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]], np.float32)
    assert np.allclose(join_words(weights, [(0, 2)], [(0, 2), (2, 3)]), [[[0.45, 0.55]]])


def test_the_decoder_input_is_the_target_shifted_by_one() -> None:
    bpe = BpeTokenizer()
    bpe.train(["the lower the newer the wider"] * 4, 275)
    side = make_side(bpe, [*bpe.encode("the lowest"), 2])
    before = fed(side)
    assert before.tokens == ["<s>", *side.tokens[:-1]]
    assert before.names == ["begin", "the", "lowest"]
    assert before.words[-1][1] == len(before.tokens)


def test_writing_direction() -> None:
    assert right_to_left("٣ مارس ١٩٩٩")
    assert right_to_left("ה-3 במרץ 2026")
    assert not right_to_left("3 mars 1999")
    assert not right_to_left("2026年3月3日")
    assert not right_to_left("")


def test_pictures_of_any_map(tmp_path: Path) -> None:
    found = explain_translation(decoding("transformer"), TEXT, target="e f")
    view = view_of(found, use="causal", layer=2, head=1)
    assert np.array_equal(view.weights, found.views("causal")[1].weights[0])
    assert view.columns == ["begin", "e", "f"]
    assert np.array_equal(view_of(found, layer=1, head="max").weights, found.views("cross")[0].weights.max(0))
    for ending in ("png", "svg", "pdf"):
        draw(view, tmp_path / f"look.{ending}")
        assert (tmp_path / f"look.{ending}").stat().st_size > 1000
    with pytest.raises(ConfigError, match="no layer 3: cross has 2"):
        view_of(found, layer=3)
    with pytest.raises(ConfigError, match="no head 9"):
        view_of(found, head=9)
    with pytest.raises(ConfigError, match="nothing to draw for encoder"):
        view_of(explain_translation(decoding("rnn"), TEXT), use="encoder")


def test_missing_glyphs_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    view = View("x", np.eye(2, dtype=np.float32), ["a", "$x$"], ["مارس", "年"])
    monkeypatch.setattr(picture, "_glyphs", lambda path: frozenset("abcxmrs$مارس"))
    draw(view, tmp_path / "a.svg", warn=warnings.append)
    assert len(warnings) == 1
    assert "no installed font has '年'" in warnings[0]
    other = next(entry for entry in fontManager.ttflist if not entry.name.startswith((picture.FIRST, picture.NO_FONT)))
    monkeypatch.setattr(picture, "_glyphs", lambda path: frozenset("a年" if path == other.fname else "a"))
    assert picture.fonts_for("a年") == ([picture.FIRST, other.name], "")
