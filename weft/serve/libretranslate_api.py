"""The LibreTranslate API, so that its clients work unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from weft.inference.predictor import Prediction
from weft.serve.file_store import suffixes
from weft.serve.languages import detect_language, language_name
from weft.serve.request_and_response import ERRORS, Fields, admitted_fields, body_schema, with_choices
from weft.serve.served_models import ServedModel, TranslationQuery
from weft.serve.service import Service, note
from weft.tasks.translation.documents import fill_all, open_document
from weft.tasks.translation.documents.html import Segment
from weft.tasks.translation.segmenter import Translation

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
        source, target = (language(fields, name) for name in ("source", "target"))
        detected = detect_language(" ".join(texts), service.models.choices["source"])[0] if source == "auto" else None
        markup = fields.get("format") or "text"
        if markup not in ("text", "html"):
            raise HTTPException(400, "Invalid request: format must be text or html")
        count = _alternatives(fields, service.settings.beam)
        path = service.models.path(detected["language"] if detected else source, target)
        found: Sequence[Prediction] = [Prediction(text, 0.0) for text in texts]
        for model in path:
            documents = [open_document(each.text, markup) for each in found]
            segments = [segment for document in documents for segment in document.segments]
            answers = await translate_segments(service, request, model, segments, count if model is path[-1] else 0)
            found = fill_all(documents, answers)
        response = _response(found, count, detected)
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
        targets = {code: sorted(service.models.targets(code)) for code in codes}
        return [{**_named(code), "targets": targets[code]} for code in codes]

    @routes.get("/health", summary="Whether every model of the server answers", responses={503: UNHEALTHY})
    async def health() -> Response:
        problems = await service.health.problems()
        if problems:
            return JSONResponse({"status": "error", "error": "; ".join(problems)}, 503)
        return JSONResponse({"status": "ok"})

    @routes.get("/spec", summary="The description of this API, as /openapi.json", include_in_schema=False)
    async def spec(request: Request) -> Fields:
        return dict(request.app.openapi())

    @routes.get("/frontend/settings", summary="Settings for a web page")
    async def settings() -> Fields:
        return _frontend(service)

    return routes


def _frontend(service: Service) -> Fields:
    first, settings = service.models.served[0], service.settings
    return {
        "apiKeys": bool(service.access.keys),
        "charLimit": service.settings.characters,
        "frontendTimeout": 500,
        "keyRequired": bool(service.access.keys),
        "language": {"source": _named(first.source), "target": _named(first.target)},
        "limits": {
            "beam": settings.beam,
            "bytes": settings.body,
            "characters": settings.characters,
            "attentionWeights": settings.cells,
            "requestsPerMinute": settings.rate,
            "seconds": settings.timeout,
            "sentences": settings.queue,
            "texts": settings.texts,
        },
        "filesTranslation": True,
        "suggestions": bool(settings.suggestions),
        "supportedFilesFormat": suffixes(),
    }


def _named(code: str) -> Fields:
    return {"code": code, "name": language_name(code)}


async def translate_segments(
    service: Service, request: Request, model: ServedModel, segments: Sequence[Segment], count: int = 0
) -> list[Any]:
    """Translates each segment with a model, with `count` alternatives. Segments without letters stay as they are."""
    options = (("n_best", count + 1),) if count else ()
    queries = {
        place: TranslationQuery(model, segment.text, options, marks=segment.marks)
        for place, segment in enumerate(segments)
        if segment.marks or any(map(str.isalpha, segment.text))
    }
    answers = dict(zip(queries, await service.answer(request, list(queries.values())), strict=True))
    return [answers.get(place) or Translation(segment.text, 0.0) for place, segment in enumerate(segments)]


def _response(found: Sequence[Prediction], count: int, detected: Fields | None) -> Fields:
    """The response to a list of texts."""
    response: Fields = {"translatedText": [each.text for each in found]}
    if detected is not None:
        response["detectedLanguage"] = [detected] * len(found)
    if count:
        response["alternatives"] = [[other.text for other in each.alternatives[:count]] for each in found]
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


def language(fields: Fields, name: str) -> str:
    """The code of a language in a request."""
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise HTTPException(400, f"Invalid request: missing {name} parameter")
    if not value.isprintable() or len(value) > 40:
        raise HTTPException(400, f"Invalid request: {name} is not a language code")
    return value


def _alternatives(fields: Fields, limit: int) -> int:
    """The number of alternatives: as many as the server allows, if more are requested."""
    value = fields.get("alternatives") or 0
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9:
        value = int(value)
    if not isinstance(value, int) or value < 0:
        raise HTTPException(400, "Invalid request: alternatives must be a number")
    return min(int(value), limit - 1)
