"""Texts from the outputs of connectionist temporal classification: the best path, and prefix beam search.

Shapes: B rows · T vectors · V symbols, the blank included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.search.tables import Hypothesis

Bonus = Callable[[tuple[int, ...], int], float]
"""What is added to the score of a text when a token is appended to it, such as a language model's log-probability."""

Text = tuple[int, ...]
NEVER = -float("inf")


@dataclass
class Ends:
    """The log-probabilities of the paths of a text that end with a blank, and of those that end with its last token."""

    blank: float = NEVER
    token: float = NEVER

    @property
    def total(self) -> float:
        return _add(self.blank, self.token)


Beam = dict[Text, Ends]


def collapse(path: Sequence[int], blank: int) -> list[int]:
    """The text of a path: repeated symbols are merged, then blanks are removed."""
    return [symbol for symbol, _ in groupby(path) if symbol != blank]


def best_paths(logits: Tensor, lengths: Tensor, *, blank: int) -> list[Hypothesis]:
    """The text of the most probable path of each row (greedy decoding). A score is the log-probability of that path."""
    logp, path = logits.float().log_softmax(-1).max(-1)
    inside = torch.arange(logits.size(1), device=logits.device) < lengths[:, None]
    scores, counts = logp.where(inside, 0.0).sum(1).tolist(), lengths.tolist()
    rows = zip(scores, path.tolist(), counts, strict=True)
    return [Hypothesis(score, collapse(symbols[:count], blank)) for score, symbols, count in rows]


def prefix_beams(
    logits: Tensor, lengths: Tensor, *, blank: int, width: int, best: int = 1, bonus: Bonus | None = None
) -> list[list[Hypothesis]]:
    """The `best` texts of each row, by `prefix_beam`."""
    logp, counts = logits.float().log_softmax(-1).double().cpu().numpy(), lengths.tolist()
    return [
        prefix_beam(row[:count], blank=blank, width=width, bonus=bonus)[:best] for row, count in zip(logp, counts, strict=True)
    ]


def prefix_beam(logp: NDArray[np.float64], *, blank: int, width: int, bonus: Bonus | None = None) -> list[Hypothesis]:
    """The most probable texts given log-probabilities [T, V], best first (Graves 2006; Hannun et al. 2014).

    It sums the probabilities of all paths of a text, as far as the beam keeps its prefixes, and so it can find a text whose
    best path is not the best one. A text is extended by the `width + 1` most probable symbols of each vector.
    """
    beam: Beam = {(): Ends(blank=0.0)}
    extra: dict[Text, float] = {(): 0.0}

    def score(text: Text) -> float:
        return beam[text].total + extra[text]

    def ranked() -> list[Text]:
        return sorted(beam, key=lambda text: (-score(text), text))

    for frame in logp:
        likely = [int(symbol) for symbol in np.argsort(-frame, kind="stable")[: width + 1] if symbol != blank]
        beam = _extended(beam, frame, blank, likely)
        for text in beam.keys() - extra.keys():
            extra[text] = extra[text[:-1]] + (bonus(text[:-1], text[-1]) if bonus else 0.0)
        beam = {text: beam[text] for text in ranked()[:width]}
    return [Hypothesis(score(text), list(text)) for text in ranked()]


def _extended(beam: Beam, frame: NDArray[np.float64], blank: int, likely: Sequence[int]) -> Beam:
    """The texts after one more vector: each as it is, and extended by each of the `likely` symbols."""
    longer: defaultdict[Text, Ends] = defaultdict(Ends)
    for text, ends in beam.items():
        same = longer[text]
        same.blank = _add(same.blank, ends.total + frame[blank])
        if text:
            same.token = _add(same.token, ends.token + frame[text[-1]])
        for symbol in likely:
            # The same token again is a new one only after a blank.
            begun = ends.blank if text and symbol == text[-1] else ends.total
            if begun > NEVER:
                more = longer[(*text, symbol)]
                more.token = _add(more.token, begun + frame[symbol])
    return longer


def _add(one: float, other: float) -> float:
    """log(exp(one) + exp(other))."""
    return float(np.logaddexp(one, other))
