"""Models of two texts against loops over their words, written from the papers: siamese vectors (Conneau et al. 2017),
decomposable attention (Parikh et al. 2016), ESIM (Chen et al. 2017), and both texts in one stream (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.loops_over_words import both_ways, embed, largest, linear, mean, relu, softmax, sources
from weft.models.base import Sizes
from weft.tasks.pairs.model import PairModel, build_pair_model

WORDS, LABELS, HIDDEN, WIDTH = 11, 3, 5, 6
IDENTITY = {"kind": "identity", "dim": WIDTH}
RNN = {"kind": "rnn", "cell": "gru", "dim": WIDTH, "dropout": 0.0}
PAIRS = [([4, 5, 6], [7, 5]), ([8], [4, 9, 10, 5, 6]), ([6, 6], [6])]
"""Both texts of each row."""


def make(comparison: dict[str, Any], encoder: dict[str, Any] = IDENTITY) -> PairModel:
    torch.manual_seed(0)
    spec = {"kind": "composed", "encoder": encoder}
    model = build_pair_model(spec, Sizes(WORDS), comparison, LABELS, HIDDEN, 0.5).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) / 2)
    return model


def siamese(model: PairModel, first: list[int], second: list[int]) -> Tensor:
    u, v = (largest(embed(model.comparison.encoder, text)) for text in (first, second))
    return torch.cat([u, v, abs(u - v), u * v])


def decomposable(model: PairModel, first: list[int], second: list[int]) -> Tensor:
    """Equations 1 to 4 of Parikh et al."""
    made: Any = model.comparison

    def feed(network: Any, x: Tensor) -> Tensor:
        return relu(linear(network.upper, relu(linear(network.lower, x))))

    a, b = (embed(model.comparison.encoder, text) for text in (first, second))
    scores = [[feed(made.attend, x) @ feed(made.attend, y) for y in b] for x in a]
    sides = []
    for own, other, rows in ((a, b, scores), (b, a, [*zip(*scores, strict=True)])):
        seen = [mean(softmax(row), other) for row in rows]
        sides.append(sum(feed(made.compare, torch.cat([x, y])) for x, y in zip(own, seen, strict=True)))
    return torch.cat(sides)


def esim(model: PairModel, first: list[int], second: list[int]) -> Tensor:
    """Equations 11 to 20 of Chen et al., with GRUs in the place of LSTMs."""
    made: Any = model.comparison
    encoder: Any = made.encoder
    a, b = (
        both_ways([encoder.front.table.weight[word] * encoder.front.scale for word in text], encoder.stack.layers[0].rnn)
        for text in (first, second)
    )
    scores = [[x @ y for y in b] for x in a]
    sides = []
    for own, other, rows in ((a, b, scores), (b, a, [*zip(*scores, strict=True)])):
        seen = [mean(softmax(row), other) for row in rows]
        joined = [torch.cat([x, y, x - y, x * y]) for x, y in zip(own, seen, strict=True)]
        again = both_ways([relu(linear(made.project, m)) for m in joined], made.composition.stack.layers[0].rnn)
        sides += [torch.stack(again).sum(0) / len(again), largest(again)]
    return torch.cat(sides)


def joined(model: PairModel, first: list[int], second: list[int]) -> Tensor:
    made: Any = model.comparison
    segments = [made.segments.weight[0]] * len(first) + [made.segments.weight[1]] * len(second)
    vectors = embed(made.encoder, [*first, *second], segments)
    return torch.stack(vectors).sum(0) / len(vectors)


Loop = Callable[[PairModel, list[int], list[int]], Tensor]
FORMS: dict[str, tuple[Loop, dict[str, Any], dict[str, Any]]] = {
    "siamese": (siamese, {}, IDENTITY),
    "decomposable": (decomposable, {"hidden": 4}, IDENTITY),
    "esim": (esim, {"composition": RNN}, RNN),
    "joined": (joined, {}, IDENTITY),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", FORMS)
def test_a_comparison_is_its_loop(kind: str) -> None:
    loop, options, encoder = FORMS[kind]
    model = make({"kind": kind, **options}, encoder)
    found = model(*sources(PAIRS))
    for row, (first, second) in enumerate(PAIRS):
        vector = loop(model, first, second)
        torch.testing.assert_close(found.logits[row], linear(model.output, linear(model.hidden, vector).tanh()))


@torch.no_grad()
@pytest.mark.parametrize("kind", FORMS)
def test_the_other_rows_and_padding_change_nothing(kind: str) -> None:
    _, options, encoder = FORMS[kind]
    model = make({"kind": kind, **options}, encoder)
    together = model(*sources(PAIRS)).logits
    for row, pair in enumerate(PAIRS):
        torch.testing.assert_close(model(*sources([pair])).logits[0], together[row])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decomposable", "esim"])
def test_weights_between_texts_sum_to_one_over_real_words(kind: str) -> None:
    _, options, encoder = FORMS[kind]
    between = make({"kind": kind, **options}, encoder)(*sources(PAIRS)).between
    for row, (first, second) in enumerate(PAIRS):
        for name, mine, others in (("first", first, second), ("second", second, first)):
            weights = between[name][row, : len(mine)]
            torch.testing.assert_close(weights[:, : len(others)].sum(1), torch.ones(len(mine), dtype=torch.float64))
            assert not weights[:, len(others) :].any()
