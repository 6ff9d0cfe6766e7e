"""What labels and tags are based on: the weights of sentences, words and facts, and probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from weft.explain.explanation import Weights, right_to_left, shown
from weft.tasks.classification.predictor import Label, LabelPredictor
from weft.tasks.tagging.predictor import Tagged, TaggingPredictor

SHOWN = 10
"""The most labels whose probabilities are listed."""

Weighted = list[tuple[str, float | None]]
"""Words with their weights, which sum to 1 in a sentence; None: there are no weights."""


def label_body(predictor: LabelPredictor[object], label: Label, text: str) -> str:
    """The probabilities of labels, and the weights of facts, or of sentences and words. Several pooled vectors are averaged."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{share:.3f}</td><td>{_bar(share)}</td></tr>"
        for name, share in list(label.probabilities.items())[:SHOWN]
    )
    parts = _facts(label, text) if label.hops else _sentences(label)
    return f"<table>{rows}</table>\n{parts}\n"


def tags_body(predictor: TaggingPredictor, found: Tagged, text: str) -> str:
    """Each word with its tag and the probability that its own scores give to this tag."""
    rows = "".join(
        f"<tr><td>{escape(word)}</td><td>{escape(tag)}</td><td>{share:.3f}</td><td>{_bar(share)}</td></tr>"
        for word, tag, share in zip(found.words, found.tags, found.probabilities, strict=True)
    )
    note = "Probabilities are those of a word by itself; the tags are the best sequence." if predictor.model.chain else ""
    return f"<table>{rows}</table>\n{_notes([note] if note else [])}"


def _facts(label: Label, text: str) -> str:
    """The facts of a story in order, with a bar for each hop."""
    rows = "".join(
        f"<tr><td>{escape(fact)}</td>{''.join(f'<td>{_bar(weight)} {weight:.3f}</td>' for weight in weights)}</tr>"
        for fact, *weights in zip(label.facts, *label.hops, strict=True)
    )
    heads = "".join(f"<th>hop {number}</th>" for number in range(1, len(label.hops) + 1))
    return f"<table><tr><th>fact</th>{heads}</tr>{rows}</table>\n<p>{escape(text)}</p>"


def _sentences(label: Label) -> str:
    """A bar shows the weight of a sentence, the shade of a word its own weight."""
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
    notes = _notes([f"the pooling over {what} has no weights, so all {what} look alike" for what in missing])
    return f"{notes}<ol>{''.join(lines)}</ol>"


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
    bar = "" if weight is None else f"{_bar(share)}<small>{share:.3f}</small>"
    direction = ' dir="rtl"' if right_to_left(" ".join(word for word, _ in words)) else ""
    return f"<li>{bar}<p{direction}>{spans}</p></li>\n"


def _bar(share: float) -> str:
    return f'<meter min="0" max="1" value="{share:.4f}"></meter>'


def _notes(notes: Sequence[str]) -> str:
    return "".join(f"<p class=note>{escape(note)}</p>\n" for note in notes)


def _mean(weights: Weights | None) -> Weights | None:
    """[rows, pooled vectors, positions] → [rows, positions]."""
    if weights is None:
        return None
    mean: Weights = weights.mean(1)
    return mean


def _pair(tokens: Sequence[str], weights: Weights | None) -> Weighted:
    values = [None] * len(tokens) if weights is None else weights[: len(tokens)].tolist()
    return list(zip(tokens, values, strict=True))
