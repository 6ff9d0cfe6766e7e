"""Joins the translations of the pieces of a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from weft.data.sentence_splitting import join_texts
from weft.decoding.hypotheses import RefinementPass
from weft.inference.predictor import Prediction, Weights
from weft.tasks.translation.markup_projection import Run
from weft.tasks.translation.segmenter import TextSegment

CELLS = 1 << 22
"""The most weights per layer that the attention of several pieces is joined to; `parts` has the weights in any case."""


@dataclass
class Translation(Prediction):
    """A translation. Its score is that of the search, such as the log-probability divided by lengthᵅ, or of the reranker.

    parts: the translations of its sentences, if there are several · source: the text that was read · runs: the text in parts
    that are markup and parts that are not, if the source has marks · passes: see `Hypothesis`.
    """

    parts: list[Translation] = field(default_factory=list)
    source: str = ""
    runs: list[Run] = field(default_factory=list)
    passes: list[RefinementPass] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Plain data, for JSON. It has the translations of several sentences one by one as well."""
        plain = super().document()
        return plain if not self.parts else {**plain, "sentences": [part.document() for part in self.parts]}


def best_first(scores: Sequence[Sequence[float]], count: int) -> list[tuple[int, ...]]:
    """The `count` best ways to choose one candidate per piece, by the sum of their scores; each list is best first."""
    first = (0,) * len(scores)
    queue, seen = [(0.0, first)], {first}
    found: list[tuple[int, ...]] = []
    while queue and len(found) < count:
        loss, choice = heappop(queue)
        found.append(choice)
        for place, number in enumerate(choice):
            following = (*choice[:place], number + 1, *choice[place + 1 :])
            if number + 1 < len(scores[place]) and following not in seen:
                seen.add(following)
                heappush(queue, (loss + scores[place][number] - scores[place][number + 1], following))
    return found


def join_segments(pieces: Sequence[TextSegment], parts: Sequence[Translation], length_penalty: float | None) -> Translation:
    """The translation of a line from those of its pieces.

    Its score is that of one text: the log-probabilities are added, and divided by the total lengthᵅ. A reranker's scores
    (length_penalty: None) are averaged.
    """
    if len(parts) < 2:
        return parts[0] if parts else Translation("", 0.0)
    whole = Translation(join_texts([part.text for part in parts], [piece.gap for piece in pieces]), 0.0, parts=list(parts))
    for part in parts:
        whole.ids += part.ids
        whole.tokens += part.tokens
        whole.source_tokens += part.source_tokens
    if length_penalty is None:
        whole.score = sum(part.score for part in parts) / len(parts)
    else:
        lengths = [max(1, len(part.ids) - len(piece.prefix)) for piece, part in zip(pieces, parts, strict=True)]
        logp = sum(part.score * length**length_penalty for part, length in zip(parts, lengths, strict=True))
        whole.score = logp / sum(lengths) ** length_penalty
    whole.uses = dict(parts[0].uses)
    for name in parts[0].attention:
        layers = [part.attention[name] for part in parts if name in part.attention]
        if len(layers) == len(parts) and np.prod(np.sum([layer.shape[1:] for layer in layers], 0)) <= CELLS:
            whole.attention[name] = _diagonal(layers)
    return whole


def _diagonal(layers: Sequence[Weights]) -> Weights:
    """[H, rows, columns]: the weights of several pieces along the diagonal. No piece attends to another."""
    rows, columns = np.cumsum([layer.shape[1:] for layer in layers], 0).T
    joined = np.zeros((layers[0].shape[0], rows[-1], columns[-1]), np.float32)
    for layer, row, column in zip(layers, rows, columns, strict=True):
        joined[:, row - layer.shape[1] : row, column - layer.shape[2] : column] = layer
    return joined
