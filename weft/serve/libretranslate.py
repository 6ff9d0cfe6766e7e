"""The LibreTranslate API, so that its clients work unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from weft.inference.documents import Document
from weft.inference.formats import fill_all, open_document
from weft.inference.predictor import Prediction
from weft.serve.detect import detect_language, language_name
from weft.serve.models import TranslationQuery
from weft.serve.request_body import Fields, admitted_fields, body_schema, with_choices
from weft.serve.responses import ERRORS
from weft.serve.service import Service, note

ONE_OR_MORE = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
TRANSLATE: dict[str, Any] = {
    "q": {**ONE_OR_MORE, "description": "text to translate, or a list of texts"},
    "source": {"type": "string", "description": "source language, or auto"},
    "target": {"type": "string", "description": "target language"},
    "format": {"type": "string", "enum": ["text", "html"], "default": "text"},
    "alternatives": {"type": "integer", "minimum": 0, "default": 0, "description": "number of alternative translations"},
    "api_key": {"type": "string"},
}
UNHEALTHY: Fields = {"description": "a model does not answer"}
DETECT: Fields = {"type": "object", "properties": {"q": ONE_OR_MORE}, "required": ["q"]}


def router(service: Service) -> APIRouter:
    """/translate, /detect, /languages, /health and /frontend/settings."""
    routes = APIRouter(tags=["LibreTranslate"], responses=ERRORS)
    choices = {**service.models.choices, "source": ["auto", *service.models.choices["source"]]}
    body = with_choices({"type": "object", "properties": TRANSLATE, "required": ["q", "source", "target"]}, choices)

    @routes.post("/translate", summary="Translate text or HTML", openapi_extra=body_schema(body))
    async def translate(request: Request) -> Fields:
        fields = await admitted_fields(request, service)
        texts, is_list = _texts(service, fields)
        source, target = (_language(fields, name) for name in ("source", "target"))
        detected = detect_language(" ".join(texts), service.models.choices["source"])[0] if source == "auto" else None
        model = service.models.between(detected["language"] if detected else source, target)
        markup = fields.get("format") or "text"
        if markup not in ("text", "html"):
            raise HTTPException(400, "Invalid request: format must be text or html")
        documents = [open_document(text, markup) for text in texts]
        count = _alternatives(fields, service.settings.beam)
        options = (("n_best", count + 1),) if count else ()
        segments = [segment for document in documents for segment in document.segments]
        queries = [TranslationQuery(model, segment.text, options, marks=segment.marks) for segment in segments]
        response = _response(documents, await service.answer(request, queries), count, detected)
        return response if is_list else {name: values[0] for name, values in response.items()}

    @routes.post("/detect", summary="Detect the language of a text", openapi_extra=body_schema(DETECT))
    async def detect(request: Request) -> list[Fields]:
        texts, _ = _texts(service, await admitted_fields(request, service))
        note(request, characters=sum(map(len, texts)))
        return detect_language(" ".join(texts), service.models.choices["source"])

    @routes.get("/languages", summary="The languages, each with its target languages")
    async def languages() -> list[Fields]:
        served = service.models.served
        codes = dict.fromkeys(code for model in served for code in (model.source, model.target))
        targets = {code: sorted({model.target for model in served if model.source == code}) for code in codes}
        return [{**_named(code), "targets": targets[code]} for code in codes]

    @routes.get("/health", summary="Whether every model of the server answers", responses={503: UNHEALTHY})
    async def health() -> Response:
        problems = await service.health.problems()
        return (
            JSONResponse({"status": "error", "error": "; ".join(problems)}, 503) if problems else JSONResponse({"status": "ok"})
        )

    @routes.get("/frontend/settings", summary="Settings for a web page")
    async def settings() -> Fields:
        return _frontend(service)

    return routes


def _frontend(service: Service) -> Fields:
    first = service.models.served[0]
    return {
        "apiKeys": bool(service.access.keys),
        "charLimit": service.settings.characters,
        "frontendTimeout": 500,
        "keyRequired": bool(service.access.keys),
        "language": {"source": _named(first.source), "target": _named(first.target)},
        "suggestions": False,
        "supportedFilesFormat": [],
    }


def _named(code: str) -> Fields:
    return {"code": code, "name": language_name(code)}


def _response(documents: Sequence[Document], found: Sequence[Prediction], count: int, detected: Fields | None) -> Fields:
    """The response to a list of texts."""
    filled = fill_all(documents, found)
    response: Fields = {"translatedText": [each.text for each in filled]}
    if detected is not None:
        response["detectedLanguage"] = [detected] * len(documents)
    if count:
        response["alternatives"] = [[other.text for other in each.alternatives[:count]] for each in filled]
    return response


def _texts(service: Service, fields: Fields) -> tuple[list[str], bool]:
    """Checks the texts of a request. Returns them and whether they came as a list."""
    q = fields.get("q")
    if q is None or q == "":
        raise HTTPException(400, "Invalid request: missing q parameter")
    texts = q if isinstance(q, list) else [q]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise HTTPException(400, "Invalid request: q must be a text or a list of texts")
    service.check(texts)
    return texts, isinstance(q, list)


def _language(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise HTTPException(400, f"Invalid request: missing {name} parameter")
    if not value.isprintable() or len(value) > 40:
        raise HTTPException(400, f"Invalid request: {name} is not a language code")
    return value


def _alternatives(fields: Fields, limit: int) -> int:
    value = fields.get("alternatives") or 0
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9:
        value = int(value)
    if not isinstance(value, int) or not 0 <= value < limit:
        raise HTTPException(400, f"Invalid request: alternatives must be a number from 0 to {limit - 1}")
    return int(value)
