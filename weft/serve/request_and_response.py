"""Request bodies, which may be JSON or a form, and response bodies of the JSON API."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

import numpy as np
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import Response

from weft.data.batch import EOS
from weft.data.term_automata import token_texts
from weft.decoding.predictor import Prediction, json_number
from weft.explain.attention_heatmap import cross_attention
from weft.explain.explanation import Side, join_words, make_side
from weft.serve.served_model import ServedModel
from weft.tasks.translation.segmenter import Translation

if TYPE_CHECKING:
    from weft.serve.service import Service

Fields = dict[str, Any]


class PlainRoute(APIRoute):
    """Calls an endpoint that reads the request and returns the response itself without looking for its parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        plain = get_type_hints(self.endpoint) == {"request": Request, "return": Response}
        return self.endpoint if plain else super().get_route_handler()


async def read_fields(request: Request, files: int = 0) -> Fields:
    """The fields of a request: its query string, and its body, which is JSON or a form with at most `files` files."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields: Fields = dict(request.query_params)
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        try:
            form = await request.form(max_files=files)
        except FormParserError:  # earlier versions of Starlette leave it to others
            raise HTTPException(400, "Invalid request: the form is damaged") from None
        return fields | {name: value for name, value in form.items() if files or not isinstance(value, UploadFile)}
    raw = await request.body()
    if not raw.strip():
        return fields
    if kind not in ("application/json", ""):
        raise HTTPException(415, f"the content type {kind} is not supported; send application/json or a form")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise HTTPException(400, "Invalid request: the body is neither JSON nor a form") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "Invalid request: the body must be a JSON object")
    return fields | body


async def admitted_fields(request: Request, service: Service, files: int = 0) -> Fields:
    """Reads the fields of a request and checks its key first. The key is not among them."""
    try:
        fields = await read_fields(request, files)
    except HTTPException:
        service.admit(request)
        raise
    keys = [fields.pop(name, None) for name in ("api_key", "apiKey")]
    service.admit(request, keys[0] or keys[1])
    return fields


Body = TypeVar("Body", bound=BaseModel)


async def admitted_body(request: Request, service: Service, kind: type[Body]) -> Body:
    """Reads a request that has fields of this kind, and checks its key first."""
    fields = await admitted_fields(request, service)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None


def body_schema(schema: Fields, *kinds: str) -> Fields:
    """Describes a body for OpenAPI: one schema for all content types, by default JSON and forms."""
    kinds = kinds or ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


KEY_PLACES: Fields = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "api_key"},
}
"""Places of the API key in a request, as security schemes of OpenAPI. The field `api_key` of the body is one, too."""


def with_security(schema: Fields, required: bool, public: Collection[str]) -> None:
    """Adds the API key to a description: to all operations but those with a `public` path."""
    schema["components"]["securitySchemes"] = KEY_PLACES
    for path, operations in schema["paths"].items():
        for operation in operations.values() if path not in public else ():
            operation["security"] = [*({name: []} for name in KEY_PLACES), *([] if required else [{}])]


def with_choices(schema: Fields, choices: dict[str, list[str]]) -> Fields:
    """Returns a copy of a request schema that lists the allowed values of the named fields."""
    properties = dict(schema["properties"])
    for name, values in choices.items():
        if name in properties:
            # An optional field is a string or null.
            kinds = properties[name].get("anyOf")
            limited = {"anyOf": [{**kinds[0], "enum": values}, *kinds[1:]]} if kinds else {"enum": values}
            properties[name] = {**properties[name], **limited}
    return {**schema, "properties": properties}


CHARACTER_LEVEL = 1.5
"""Characters per token up to which an alignment is between tokens instead of words."""


class AlignmentDocument(BaseModel):
    """Units of the source and of the target, usually words, and the attention from each target unit to each source unit."""

    source: list[str] = Field(description="words or tokens of the text; the end of the text is an empty string")
    target: list[str] = Field(description="words or tokens of the translation")
    weights: list[list[float]] = Field(description="for each unit of the translation, its attention to each unit of the text")


class MatchDocument(BaseModel):
    """An entry of a translation memory."""

    score: float = Field(description="the similarity of its source and the text: 1, less the share of words that differ")
    source: str
    target: str


class WordDocument(BaseModel):
    """A word of a translation and the confidence in it."""

    text: str
    start: int = Field(description="where it begins in the translation, in characters")
    end: int
    confidence: float = Field(description="the probability that it is right, from 0 to 1")
    tag: Literal["OK", "BAD"]


class TranslationDocument(BaseModel):
    """One translation."""

    text: str = Field(description="the translation")
    score: float | None = Field(
        description="its log-probability, divided by its length as the length penalty says; null if it is not a number"
    )
    tokens: list[str] = Field(description="its tokens")
    source_tokens: list[str] | None = Field(default=None, description="the tokens of the text")
    alternatives: list[TranslationDocument] | None = Field(
        default=None, description="the next best translations, if n_best is above 1"
    )
    alignment: AlignmentDocument | None = Field(default=None, description="on request, if the model attends to the text")
    attention: dict[str, list[list[list[float]]]] | None = Field(
        default=None, description="on request, by layer: the weights of each head, target token and source token"
    )
    audio: str | None = Field(default=None, description="a wav file in base64, if the model speaks")
    unmet: list[str] | None = Field(
        default=None, description="terms that it should contain but does not, because it reached its longest length first"
    )
    unplaced: list[str] | None = Field(
        default=None,
        description="required terms for which no place was found, so that the text may contain their usual translation too, "
        "and terms to avoid for which the model has no other word",
    )
    memory: Literal["exact", "fuzzy"] | None = Field(
        default=None, description="exact: the text is that of the translation memory; fuzzy: it has a similar entry"
    )
    match: MatchDocument | None = Field(default=None, description="the entry of the translation memory, if memory is fuzzy")
    confidence: float | None = Field(
        default=None, description="the expected quality, from 0 to 1, if the server has a run of the task quality for the model"
    )
    words: list[WordDocument] | None = Field(default=None, description="the confidence in each word, if that run tags words")


class TranslateResponse(BaseModel):
    """The model that was used, and one translation for each text."""

    model: str = Field(description="name of the model")
    version: str = Field(description="version of the model: a hash of its weights, and the number of its adaptation")
    source: str = Field(description="source language; the detected one, if it was auto")
    target: str = Field(description="target language")
    translations: list[TranslationDocument] = Field(description="one for each text, in order")


class ModelDocument(BaseModel):
    """A model of this server."""

    name: str = Field(description="name of the model")
    version: str = Field(description="version of the model: a hash of its weights, and the number of its adaptation")
    source: str = Field(description="source language")
    target: str = Field(description="target language")
    kind: str = Field(description="kind of model")
    beam: int = Field(description="beam size, if a request sets none")
    most_beam: int = Field(description="largest beam that a request may set")


class ErrorDocument(BaseModel):
    """An error message."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    # The type is named, since routes that answer in plain text have the same errors.
    status: {"description": description, "content": {"application/json": {"schema": ErrorDocument.model_json_schema()}}}
    for status, description in {
        400: "the request is invalid",
        403: "the API key is missing or invalid",
        408: "the request body did not arrive in time",
        413: "the request is too large",
        422: "a field is missing or has an invalid value",
        429: "too many requests; see Retry-After",
        503: "the queue is full; see Retry-After",
        504: "the translation took too long",
    }.items()
}


def cells(predictions: Iterable[Prediction]) -> int:
    """The number of attention weights."""
    return sum(weights.size for each in predictions for weights in each.attention.values())


def document(model: ServedModel, text: str, best: Prediction, *, attention: bool, alignment: bool) -> TranslationDocument:
    """Converts a translation to a response, with its attention and alignment if requested."""
    response = TranslationDocument(
        text=best.text, score=json_number(best.score, None), tokens=best.tokens, source_tokens=best.source_tokens
    )
    others = [
        TranslationDocument(text=each.text, score=json_number(each.score, None), tokens=each.tokens)
        for each in best.alternatives
    ]
    response.alternatives = others or None
    if isinstance(best, Translation) and (known := best.memory_document()):
        response.memory = known["memory"]
        response.match = MatchDocument(**known["match"]) if "match" in known else None
    if isinstance(best, Translation) and (judged := best.confidence_document()):
        response.confidence = judged["confidence"]
        response.words = [WordDocument(**word) for word in judged["words"]] if "words" in judged else None
    if content := best.content():
        response.audio = base64.b64encode(content).decode()
    if alignment and "cross" in best.uses.values():
        response.alignment = _alignment(model, text, best)
    if attention:
        response.attention = {
            name: np.round(weights.astype(np.float64), 4).tolist() for name, weights in best.attention.items()
        }
    return response


def _alignment(model: ServedModel, text: str, translation: Prediction) -> AlignmentDocument | None:
    """Aligns words, or tokens where these are single characters. None if the model read other tokens than those of `text`."""
    if isinstance(translation, Translation) and translation.runs:
        return None  # what was put into the text afterwards has no tokens
    if isinstance(translation, Translation) and translation.parts:
        return _joined([_alignment(model, part.source, part) for part in translation.parts])
    translator, weights = model.translator, cross_attention(translation)
    ids = [*translator.source.encode(text), EOS]
    if weights.shape != (len(translation.ids), len(ids)):
        return None
    sides = (make_side(translator.source, ids), make_side(translator.target, translation.ids))
    if len(translation.text) > CHARACTER_LEVEL * len(translation.ids):
        rows, columns = sides[1].words, sides[0].words
        names = [_word_texts(sides[0], ids), _word_texts(sides[1], translation.ids)]
        weights = join_words(weights[None], rows, columns)[0]
    else:
        names = [token_texts(translator.source, ids), token_texts(translator.target, translation.ids)]
    count = len(names[1]) - (translation.ids[-1] == EOS)
    rows = np.round(weights[:count], 4).astype(float).tolist()
    return AlignmentDocument(source=names[0], target=names[1][:count], weights=rows)


def _joined(alignments: Sequence[AlignmentDocument | None]) -> AlignmentDocument | None:
    """Joins the alignments of sentences. No sentence is aligned with another."""
    known = [each for each in alignments if each is not None]
    if len(known) < len(alignments):
        return None
    rows: list[list[float]] = []
    before, after = 0, sum(len(each.source) for each in known)
    for each in known:
        after -= len(each.source)
        rows += [[0.0] * before + row + [0.0] * after for row in each.weights]
        before += len(each.source)
    source, target = _names(each.source for each in known), _names(each.target for each in known)
    return AlignmentDocument(source=source, target=target, weights=rows)


def _names(sides: Iterable[list[str]]) -> list[str]:
    """The words of several sentences, with a space before each sentence but the first."""
    names: list[str] = []
    for side in sides:
        names += [f" {side[0]}", *side[1:]] if names and side else side
    return names


def _word_texts(side: Side, ids: Sequence[int]) -> list[str]:
    """The words of a side, each with the space before it. EOS, which can be attended to, becomes an empty string."""
    names = [name if place == 0 else f" {name}" for place, name in enumerate(side.names)]
    return ["" if ids[first] == EOS else name for (first, _), name in zip(side.words, names, strict=True)]
