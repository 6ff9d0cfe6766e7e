"""Explains the label of a text: the weights of its sentences and words, as a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from weft.errors import DataError
from weft.explain.page import asset
from weft.explain.text import Weights, right_to_left, shown
from weft.inference.classification import ClassificationPredictor
from weft.inference.labels import Label

SHOWN = 10
"""The most labels whose probabilities are listed."""


@dataclass(frozen=True)
class WeightedSentence:
    """Words with their weights, which sum to 1 in a sentence, and the weight of the sentence; None: there are no weights."""

    words: list[tuple[str, float | None]]
    weight: float | None = None


@dataclass(frozen=True)
class LabelExplanation:
    """A text, its label, and the weights that the poolings of the model give to its sentences and words."""

    run: str
    label: Label
    sentences: list[WeightedSentence]
    notes: list[str] = field(default_factory=list)

    def _repr_html_(self) -> str:
        """Shows the page in a notebook, isolated from the notebook's styles."""
        return (
            f'<iframe srcdoc="{escape(label_page([self]))}" title="weft explain" '
            'style="width:100%;height:30em;border:0" sandbox=""></iframe>'
        )


def explain_label(predictor: ClassificationPredictor, text: str, run: str = "") -> LabelExplanation:
    """Explains the label of a text. Weights of several pooled vectors are averaged."""
    (label,) = predictor.predict([predictor.parse(text, attention=True)])
    if not label.source_tokens:
        raise DataError("there is nothing to explain in an empty text; give a text or a document")
    pooling, words = (_mean(label.attention.get(name)) for name in ("pooling", "words"))
    if label.sentences:
        upper = [None] * len(label.sentences) if pooling is None else pooling[0].tolist()
        sentences = [
            WeightedSentence(_pair(tokens, None if words is None else words[place]), upper[place])
            for place, tokens in enumerate(label.sentences)
        ]
    else:
        sentences = [WeightedSentence(_pair(label.source_tokens, None if pooling is None else pooling[0]))]
    missing = ["sentences"] * (bool(label.sentences) and pooling is None)
    missing += ["words"] * ((words if label.sentences else pooling) is None)
    notes = [f"the pooling over {what} has no weights, so all {what} look alike" for what in missing]
    return LabelExplanation(run, label, sentences, notes)


def label_page(explanations: Sequence[LabelExplanation], title: str = "weft explain") -> str:
    """An HTML page with one section per text. A bar shows the weight of a sentence, the shade of a word its own weight."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{asset('base.css')}{asset('labels.css')}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1></header>\n<main>\n{''.join(map(_section, explanations))}</main>\n</body>\n</html>\n"
    )


def _section(each: LabelExplanation) -> str:
    label = each.label
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td>{share:.3f}</td><td><meter min="0" max="1" value="{share:.4f}"></meter></td></tr>'
        for name, share in list(label.probabilities.items())[:SHOWN]
    )
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in each.notes)
    sentences = "".join(map(_sentence, each.sentences))
    heading = f"{escape(label.text) or '(no label)'} <small>{escape(each.run)}</small>"
    return f"<section>\n<h2>{heading}</h2>\n<table>{rows}</table>\n{notes}\n<ol>{sentences}</ol>\n</section>\n"


def _sentence(sentence: WeightedSentence) -> str:
    """A sentence; the words of one without weight stay pale, as √(sentence · word) does in Yang et al. 2016."""
    share = 1.0 if sentence.weight is None else sentence.weight
    words = " ".join(
        f"<span>{escape(shown(word))}</span>"
        if weight is None
        else f'<span style="background:rgba(var(--heat),{math.sqrt(share) * weight:.3f})" title="{weight:.3f}">'
        f"{escape(shown(word))}</span>"
        for word, weight in sentence.words
    )
    bar = "" if sentence.weight is None else f'<meter min="0" max="1" value="{share:.4f}"></meter><small>{share:.3f}</small>'
    direction = ' dir="rtl"' if right_to_left(" ".join(word for word, _ in sentence.words)) else ""
    return f"<li>{bar}<p{direction}>{words}</p></li>\n"


def _mean(weights: Weights | None) -> Weights | None:
    """[rows, pooled vectors, positions] → [rows, positions]."""
    if weights is None:
        return None
    mean: Weights = weights.mean(1)
    return mean


def _pair(tokens: Sequence[str], weights: Weights | None) -> list[tuple[str, float | None]]:
    values = [None] * len(tokens) if weights is None else weights[: len(tokens)].tolist()
    return list(zip(tokens, values, strict=True))
