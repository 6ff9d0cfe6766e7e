"""Plain loops over the words of two texts, for tests that compare a model with the formulas of its paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.data.batch import Source
from weft.tasks.two_texts import two_sources


def sources(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[Source, Source]:
    ids = np.array([word for pair in pairs for text in pair for word in text])
    return two_sources(ids, np.array([len(text) for pair in pairs for text in pair]))


def linear(layer: Any, x: Tensor) -> Tensor:
    return layer.weight @ x + layer.bias


def relu(x: Tensor) -> Tensor:
    return torch.stack([each if each > 0 else torch.zeros_like(each) for each in x])


def softmax(scores: Sequence[Tensor]) -> list[Tensor]:
    exps = [score.exp() for score in scores]
    return [each / sum(exps) for each in exps]


def mean(weights: Sequence[Tensor], vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([weight * vector for weight, vector in zip(weights, vectors, strict=True)]).sum(0)


def largest(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([max(vector[c] for vector in vectors) for c in range(len(vectors[0]))])


def embed(encoder: Any, text: Sequence[int], extra: Sequence[Tensor] | None = None) -> list[Tensor]:
    """The normalised embedding of each word: the memory of the encoder `identity`."""
    vectors = []
    for place, word in enumerate(text):
        x = encoder.front.table.weight[word] * encoder.front.scale + (0 if extra is None else extra[place])
        vectors.append(normalise(encoder.norm, x))
    return vectors


def normalise(norm: Any, x: Tensor) -> Tensor:
    """Layer normalisation (Ba et al. 2016)."""
    away = x - x.mean()
    return away / ((away**2).mean() + 1e-5).sqrt() * norm.weight + norm.bias


def both_ways(vectors: Sequence[Tensor], rnn: nn.GRU) -> list[Tensor]:
    """The states of a GRU in both directions, side by side (Cho et al. 2014)."""
    ways = []
    for (wi, wh, bi, bh), order in zip(rnn.all_weights, (vectors, vectors[::-1]), strict=True):
        h, states = torch.zeros(wh.size(1), dtype=torch.float64), []
        for x in order:
            (ir, iz, ih), (hr, hz, hh) = (wi @ x + bi).chunk(3), (wh @ h + bh).chunk(3)
            keep = (iz + hz).sigmoid()
            h = (1 - keep) * (ih + (ir + hr).sigmoid() * hh).tanh() + keep * h
            states.append(h)
        ways.append(states)
    return [torch.cat(pair) for pair in zip(ways[0], ways[1][::-1], strict=True)]
