"""A classifier in which each label attends to the text on its own, against a loop over labels (Rios & Kavuluru 2018)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.loops_over_words import embed, linear, mean, relu, softmax, sources
from weft.models.base import Sizes
from weft.tasks.classification.model import LabelAttentiveClassifier, build_classifier

WORDS, WIDTH = 11, 6
TEXTS = [[4, 5, 6], [8], [4, 9, 10, 5, 6]]
LABELS = [[7], [5, 9, 4], [6, 6]]
"""The token ids of the text of each label."""


def make(queries: str) -> LabelAttentiveClassifier:
    torch.manual_seed(0)
    encoder, pooling = {"kind": "identity", "dim": WIDTH}, {"kind": "label_attentive", "queries": queries}
    spec = {"kind": "composed", "encoder": encoder}
    model = build_classifier(spec, Sizes(WORDS), pooling, len(LABELS), 0.5, lambda: LABELS)
    assert isinstance(model, LabelAttentiveClassifier)
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) / 2)
    return model


def vector(model: LabelAttentiveClassifier, label: int) -> Tensor:
    if model.pooling.labels is not None:
        return model.pooling.labels[label]
    front: Any = model.encoder.front
    words = [front.table.weight[word] * front.scale for word in LABELS[label]]
    return linear(model.project, sum(words) / len(words))


@pytest.mark.parametrize("queries", ["learned", "text"])
def test_scores_are_those_of_a_loop(queries: str) -> None:
    model = make(queries)
    given, _ = sources([(text, [4]) for text in TEXTS])
    with torch.no_grad():
        found = model(given)
        for row, text in enumerate(TEXTS):
            states = embed(model.encoder, text)
            for label in range(len(LABELS)):
                e = vector(model, label)
                alpha = softmax([torch.tanh(linear(model.pooling.keys, state)) @ e for state in states])
                score = e @ relu(linear(model.output, mean(alpha, states)))
                torch.testing.assert_close(found.logits[row, label], score)
                torch.testing.assert_close(found.weights[row, label, : len(text)], torch.stack([*alpha]))


def test_labels_share_all_weights() -> None:
    """With texts as queries, no parameter has a row for each label, and labels with the same text have the same scores."""
    model = make("text")
    assert not [name for name, each in model.named_parameters() if "encoder" not in name and len(LABELS) in each.shape]
    model.texts = [LABELS[0], LABELS[1], LABELS[1]]
    given, _ = sources([(text, [4]) for text in TEXTS])
    logits = model(given).logits
    assert torch.equal(logits[:, 1], logits[:, 2])
    assert not torch.allclose(logits[:, 0], logits[:, 1])
