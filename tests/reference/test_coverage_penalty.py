"""Beam search with the length and coverage penalties of Wu et al. 2016, equation 14, against enumeration of all texts.

s(Y, X) = log P(Y | X) / lp(Y) + cp(X; Y), where lp(Y) = (5 + |Y|)^α / (5 + 1)^α and cp(X; Y) = β Σ_i log(min(Σ_j p_ij, 1)).
p_ij is the attention of target token j to source token i. The loops below compute it from teacher forcing, in float64.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from tests.reference.searching import Sources, small_model
from weft.attention.base import Attention
from weft.attention.core.weight_recorder import record
from weft.data.batch import BOS, EOS
from weft.decoding.beam_search import BeamSearch
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.search_loop import EAGER, StepRunner
from weft.errors import ConfigError
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.ensembles_and_wrapped_decoders import Ensemble

SIZE, LONGEST, LENGTHS = 5, 3, [4, 2, 3]
SOURCES = Sources(SIZE, LENGTHS, LONGEST)
ALPHA, BETA = 0.6, 0.3
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 2},
    "bahdanau": {"kind": "rnn"},
    "luong": {"kind": "rnn", "style": "luong", "attention": "general"},
    "monotonic": {"kind": "rnn", "attention": "monotonic"},
}


def make(name: str, seed: int = 4) -> Model:
    return small_model(MODELS[name], SIZE, seed)


def search(
    model: Model, rows: list[int], runner: StepRunner = EAGER, prefix: list[list[int]] | None = None, **options: Any
) -> list[list[Hypothesis]]:
    """The texts of some sources, in one batch."""
    method = BeamSearch(**{"width": 200, "length_penalty": ALPHA, "coverage_penalty": BETA, "length_offset": 5.0, **options})
    return SOURCES.find(method, model, rows, prefix, torch.tensor(rows), n_best=5, runner=runner, check=1)


def score(models: list[Model], row: int, text: tuple[int, ...], prefix: tuple[int, ...] = (), offset: float = 5.0) -> float:
    """Equation 14 for one text, from teacher forcing; the mean of the probabilities of several models."""
    source, logs, seen = SOURCES.one(row), [], []
    fed = torch.tensor([[BOS, *prefix, *text][:-1]])
    for model in models:
        with torch.inference_mode(), record(model) as tape:
            logs.append(model.decoder(fed, model.decoder.init_state(model.encode(source))).logits[0].softmax(-1))
        looks = {name for name, part in model.named_modules() if isinstance(part, Attention) and part.site.use == "cross"}
        for name in looks:
            seen.append(torch.cat(tape[name], 2)[0])
    logp = sum(math.log(sum(each[len(prefix) + j, token] for each in logs) / len(models)) for j, token in enumerate(text))
    covered = 0.0
    for i in range(LENGTHS[row]):
        paid = 0.0
        for weights in seen:
            heads, steps, _ = weights.shape
            paid += sum(float(weights[h, j, i]) for h in range(heads) for j in range(steps)) / heads / len(seen)
        covered += math.log(min(max(paid, 1e-6), 1.0))
    length = ((offset + len(text)) / (offset + 1)) ** ALPHA
    return logp / length + BETA * covered


TEXTS = [
    text
    for n in range(1, LONGEST + 1)
    for text in itertools.product(range(SIZE), repeat=n)
    if EOS not in text[:-1] and (text[-1] == EOS or n == LONGEST)
]


@pytest.mark.parametrize("name", MODELS)
def test_a_wide_beam_finds_the_best_of_all_texts(name: str) -> None:
    """A row of a padded batch, with its scores."""
    model = make(name)
    found = search(model, [0, 1, 2])[2]
    wanted = sorted(((score([model], 2, text), list(text)) for text in TEXTS), reverse=True)[:5]
    assert [each.score for each in found] == pytest.approx([value for value, _ in wanted], abs=1e-5)
    assert [each.tokens for each in found] == [text for _, text in wanted]


@pytest.mark.parametrize("name", ["transformer", "bahdanau"])
def test_the_penalty_changes_the_order_and_a_prefix_counts(name: str) -> None:
    model = make(name)
    plain, covered = search(model, [0, 1, 2], coverage_penalty=0.0), search(model, [0, 1, 2], coverage_penalty=3.0)
    assert [[each.tokens for each in texts] for texts in plain] != [[each.tokens for each in texts] for texts in covered]
    prefixes = [[4, 4], [3], []]
    found = search(model, [0, 1, 2], prefix=prefixes, width=3, length_offset=0.0)
    for row, texts in enumerate(found):
        for each in texts[:2]:
            expected = score([model], row, tuple(each.tokens), tuple(prefixes[row]), offset=0.0)
            assert each.score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("width", [1, 3])
def test_a_text_does_not_depend_on_its_batch_and_a_recorded_step_is_the_step(name: str, width: int) -> None:
    model, recorder = make(name), SearchGraphs(lambda work: work)
    together = search(model, [0, 1, 2], width=width)
    for row in range(3):
        alone = search(model, [row], width=width)[0]
        assert [each.tokens for each in alone] == [each.tokens for each in together[row]]
        assert [each.score for each in alone] == pytest.approx([each.score for each in together[row]], abs=1e-6)
    for _ in range(3):
        assert search(model, [0, 1, 2], recorder.runner("one"), width=width) == together


def test_an_ensemble_averages_the_attention_of_its_models() -> None:
    models = [make("transformer"), make("bahdanau", seed=7)]
    for each in search(Ensemble(models), [1])[0]:
        assert each.score == pytest.approx(score(models, 1, tuple(each.tokens)), abs=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "transformer", "cross": "linear"}, "LinearAttention shows no attention weights"),
        ({"kind": "bytenet"}, "does not attend to a source"),
    ],
)
def test_models_without_weights_are_refused(model: dict[str, Any], message: str) -> None:
    built = build_model(model, Sizes(SIZE, SIZE, shared=True))
    assert isinstance(built, Model)
    with pytest.raises(ConfigError, match=f"coverage_penalty: .*{message}.*; set it to 0|coverage_penalty: .*{message}"):
        BeamSearch(coverage_penalty=0.2).wrap_decoder(built.decoder)
