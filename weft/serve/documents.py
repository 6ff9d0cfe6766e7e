"""What the server's own interface answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from weft.batch import EOS
from weft.explain.picture import cross_attention
from weft.explain.text import Side, join_words, make_side, token_texts
from weft.inference.predictor import Prediction
from weft.serve.models import Served

LETTERS = 1.5
"""Letters a token, up to which words are shown letter by letter."""


class AlignmentDocument(BaseModel):
    """Pieces of both texts, words as a rule, and how much each target piece looked at each source piece.

    The last source piece is the end of the text; it is empty.
    """

    source: list[str]
    target: list[str]
    weights: list[list[float]]


class TranslationDocument(BaseModel):
    """One translation, with attention [heads][tokens][tokens] by layer where it was asked for."""

    text: str
    score: float
    tokens: list[str]
    source_tokens: list[str] | None = None
    alternatives: list[TranslationDocument] | None = None
    alignment: AlignmentDocument | None = None
    attention: dict[str, list[list[list[float]]]] | None = None


class TranslateResponse(BaseModel):
    """The model that was used and a translation for each text."""

    model: str
    source: str
    target: str
    translations: list[TranslationDocument]


class ModelDocument(BaseModel):
    """A model that is served. `beam` is the run's own, `most_beam` the widest that may be asked for."""

    name: str
    source: str
    target: str
    kind: str
    beam: int
    most_beam: int


class ErrorDocument(BaseModel):
    """What went wrong."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument, "description": about}
    for status, about in {
        400: "something in the request is not right",
        403: "a key is missing or wrong",
        408: "the request came too slowly",
        413: "the request is too large",
        422: "a field is missing or not what it should be",
        429: "too many requests; see Retry-After",
        503: "too many texts wait; see Retry-After",
        504: "the translation took too long",
    }.items()
}


def document(model: Served, text: str, found: Prediction, *, attention: bool, alignment: bool) -> TranslationDocument:
    """A translation as data, with as much of it as was asked for."""
    plain = TranslationDocument(text=found.text, score=found.score, tokens=found.tokens, source_tokens=found.source_tokens)
    if found.alternatives:
        plain.alternatives = [
            TranslationDocument(text=each.text, score=each.score, tokens=each.tokens) for each in found.alternatives
        ]
    if alignment and any(".cross" in name for name in found.attention):
        plain.alignment = _aligned(model, text, found)
    if attention:
        plain.attention = {name: weights.tolist() for name, weights in found.attention.items()}
    return plain


def _aligned(model: Served, text: str, found: Prediction) -> AlignmentDocument | None:
    """Between words; between tokens where they are letters. Nothing where the text was read otherwise than it is written."""
    translator, weights = model.translator, cross_attention(found)
    ids = [*translator.source.encode(text), EOS]
    if weights.shape != (len(found.ids), len(ids)):
        return None
    sides = (make_side(translator.source, ids), make_side(translator.target, found.ids))
    if len(found.text) > LETTERS * len(found.ids):
        rows, columns = sides[1].words, sides[0].words
        names = [_whole(sides[0], ids), _whole(sides[1], found.ids)]
        weights = join_words(weights[None], rows, columns)[0]
    else:
        names = [token_texts(translator.source, ids), token_texts(translator.target, found.ids)]
    written = len(names[1]) - (found.ids[-1] == EOS)
    return AlignmentDocument(
        source=names[0], target=names[1][:written], weights=np.round(weights[:written], 4).astype(float).tolist()
    )


def _whole(side: Side, ids: Sequence[int]) -> list[str]:
    """The words of a side, each with the space before it; its end, which is looked at too, adds nothing to the text."""
    names = [name if place == 0 else f" {name}" for place, name in enumerate(side.names)]
    return ["" if ids[first] == EOS else name for (first, _), name in zip(side.words, names, strict=True)]
