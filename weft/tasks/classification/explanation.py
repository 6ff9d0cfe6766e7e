"""Explanation of labels: their probabilities, and the weights of sentences and words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from weft.explain.explanation import Weights, right_to_left, shown
from weft.explain.html_parts import meter, notes
from weft.tasks.classification.predictor import Label

SHOWN = 10
"""The most labels whose probabilities are listed."""

Weighted = list[tuple[str, float | None]]
"""Words with their weights, which sum to 1 in a sentence; None: there are no weights."""


def probability_table(label: Label) -> str:
    """The likeliest labels with their probabilities."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{share:.3f}</td><td>{meter(share)}</td></tr>"
        for name, share in list(label.probabilities.items())[:SHOWN]
    )
    return f"<table>{rows}</table>\n"


def weighted_sentences(label: Label) -> str:
    """A bar shows the weight of a sentence, the shade of a word its own weight. Several pooled vectors are averaged."""
    pooling, words = (_mean(label.attention.get(name)) for name in ("pooling", "words"))
    if label.sentences:
        upper = [None] * len(label.sentences) if pooling is None else pooling[0].tolist()
        lines = [
            _sentence(_pair(tokens, None if words is None else words[place]), upper[place])
            for place, tokens in enumerate(label.sentences)
        ]
    else:
        lines = [_sentence(_pair(label.source_tokens, None if pooling is None else pooling[0]), None)]
    missing = ["sentences"] * (bool(label.sentences) and pooling is None)
    missing += ["words"] * ((words if label.sentences else pooling) is None)
    remarks = notes([f"the pooling over {what} has no weights, so all {what} look alike" for what in missing])
    return f"{remarks}<ol>{''.join(lines)}</ol>\n"


def _sentence(words: Weighted, weight: float | None) -> str:
    """A sentence; the words of one without weight stay pale, as √(sentence · word) does in Yang et al. 2016."""
    share = 1.0 if weight is None else weight
    spans = " ".join(
        f"<span>{escape(shown(word))}</span>"
        if own is None
        else f'<span style="background:rgba(var(--heat),{math.sqrt(share) * own:.3f})" title="{own:.3f}">'
        f"{escape(shown(word))}</span>"
        for word, own in words
    )
    bar = "" if weight is None else f"{meter(share)}<small>{share:.3f}</small>"
    direction = ' dir="rtl"' if right_to_left(" ".join(word for word, _ in words)) else ""
    return f"<li>{bar}<p{direction}>{spans}</p></li>\n"


def _mean(weights: Weights | None) -> Weights | None:
    """[rows, pooled vectors, positions] → [rows, positions]."""
    if weights is None:
        return None
    mean: Weights = weights.mean(1)
    return mean


def _pair(tokens: Sequence[str], weights: Weights | None) -> Weighted:
    values = [None] * len(tokens) if weights is None else weights[: len(tokens)].tolist()
    return list(zip(tokens, values, strict=True))
