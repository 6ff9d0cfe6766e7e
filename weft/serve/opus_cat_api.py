"""The HTTP API of OPUS-CAT's engine, so that its plugins for Trados, memoQ, Wordfast and OmegaT work with a weft server.

A text is one segment. `tokenCode`, which OPUS-CAT ignores, is the API key if the server has keys; `modelTag` is the name of a
model. Beside the fields of OPUS-CAT, answers say which model and version answered, and whether from the translation memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from weft.decoding.predictor import Prediction
from weft.serve.request_and_response import ERRORS, Fields, read_fields
from weft.serve.served_model import ServedModel, TranslationQuery
from weft.serve.service import Service
from weft.tasks.translation.segmenter import Translation

PATH = "/MTRestService"

PARAMETERS = [
    {"name": name, "in": "query", "required": required, "schema": {"type": "string"}, "description": text}
    for name, required, text in (
        ("input", True, "a segment"),
        ("srcLangCode", True, "source language"),
        ("trgLangCode", True, "target language"),
        ("modelTag", False, "name of a model"),
        ("tokenCode", False, "API key, if the server has keys"),
    )
]


def router(service: Service) -> APIRouter:
    """TranslateJson, TranslatePost, Translate, TranslateStream, PreOrderBatch and lists of models, under /MTRestService."""
    routes = APIRouter(prefix=PATH, tags=["OPUS-CAT API"], responses=ERRORS)
    described: Fields = {"parameters": PARAMETERS}

    async def answer(request: Request) -> Fields:
        fields = await _admitted(request, service)
        text = str(fields.get("input") or "")
        (document,) = await service.attend(request, _translate(service, request, fields, [text]))
        return document

    @routes.get("/TranslateJson", summary="Translate a segment", openapi_extra=described)
    async def translate_json(request: Request) -> Fields:
        return await answer(request)

    @routes.post("/TranslatePost", summary="Translate a segment", openapi_extra=described)
    async def translate_post(request: Request) -> Fields:
        return await answer(request)

    @routes.get("/Translate", summary="Translate a segment", openapi_extra=described, response_class=PlainTextResponse)
    async def translate(request: Request) -> Response:
        return PlainTextResponse((await answer(request))["translation"])

    @routes.get("/TranslateStream", summary="The same as Translate", openapi_extra=described, response_class=PlainTextResponse)
    async def translate_stream(request: Request) -> Response:
        return await translate(request)

    @routes.post("/PreOrderBatch", summary="Translate segments ahead, into the cache")
    async def pre_order(request: Request) -> Response:
        query = dict(request.query_params)
        service.admit(request, query.get("tokenCode"))
        try:
            texts = await request.json()
        except ValueError:
            texts = None
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise HTTPException(400, "Invalid request: the body must be a JSON list of texts")
        await service.attend(request, _translate(service, request, query, texts))
        return JSONResponse({})

    _add_lists(routes, service)
    return routes


def _add_lists(routes: APIRouter, service: Service) -> None:
    """Adds the routes that say which models there are, and Login."""

    @routes.get("/ListSupportedLanguagePairs", summary="The language pairs")
    async def pairs(request: Request) -> list[str]:
        await _admitted(request, service)
        return list(dict.fromkeys(f"{model.source}-{model.target}" for model in service.models.served))

    @routes.get("/GetLanguagePairModelTags", summary="The models of a language pair")
    async def tags(request: Request) -> list[str]:
        fields = await _admitted(request, service)
        first = _model(service, fields)
        return [model.name for model in service.models.served if (model.source, model.target) == (first.source, first.target)]

    @routes.get("/CheckModelStatus", summary="Whether a model is there", response_class=PlainTextResponse)
    async def status(request: Request) -> Response:
        model = _model(service, await _admitted(request, service))
        return PlainTextResponse(f"{model.name}, version {model.version}, is loaded")

    @routes.get("/Login", summary="The token of a user: the password, which is the API key", response_class=PlainTextResponse)
    async def login(request: Request) -> Response:
        fields = await read_fields(request)
        service.admit(request, fields.get("password"))
        return PlainTextResponse(str(fields.get("password") or "0"))


async def _admitted(request: Request, service: Service) -> Fields:
    """The fields of a request whose key is right."""
    fields = await read_fields(request)
    service.admit(request, fields.get("tokenCode"))
    return fields


def _model(service: Service, fields: Fields) -> ServedModel:
    """The model that a request names by its tag, if it has this language pair, or else the first of the pair."""
    codes = [fields.get(name) for name in ("srcLangCode", "trgLangCode")]
    if not all(isinstance(code, str) and code for code in codes):
        raise HTTPException(400, "Invalid request: send srcLangCode and trgLangCode")
    if tag := fields.get("modelTag"):
        return service.models.select(str(tag), None, None)
    return service.models.select(None, str(codes[0]), str(codes[1]))


async def _translate(service: Service, request: Request, fields: Fields, texts: list[str]) -> list[Fields]:
    """The answers for segments. Those without letters stay as they are."""
    service.check(texts)
    model = _model(service, fields)
    lines = [" ".join(text.split()) for text in texts]
    queries = {text: TranslationQuery(model, text) for text in lines if any(map(str.isalpha, text))}
    found = dict(zip(queries, await service.answer(request, list(queries.values())), strict=True))
    return await asyncio.to_thread(lambda: [_document(model, line, found.get(line)) for line in lines])


def _document(model: ServedModel, line: str, best: Prediction | None) -> dict[str, Any]:
    known = best.memory_document() if isinstance(best, Translation) else {}
    facts: Fields = {"model": model.name, "version": model.version, "memory": known.get("memory", "none")}
    facts |= {"match": known["match"]} if "match" in known else {}
    return {"translation": line if best is None else best.text, **facts}
