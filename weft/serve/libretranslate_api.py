"""The LibreTranslate API, so that its clients work unchanged: texts, files, languages and suggested translations."""

import asyncio
import json
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from weft.data.file_formats.tmx_append import append_unit
from weft.decoding.predictor import Prediction
from weft.errors import DataError
from weft.serve.languages import LONGEST_SAMPLE, detect_language, language_name
from weft.serve.request_and_response import ERRORS, Fields, admitted_fields, body_schema, with_choices
from weft.serve.request_documents import check_segments, is_translated, suffix_of, suffixes
from weft.serve.served_model import ServedModel, TranslationQuery
from weft.serve.service import Service, client_of, note
from weft.tasks.translation.documents import open_file
from weft.tasks.translation.documents.html import Segment
from weft.tasks.translation.segmenter import Translation

MAX_SUGGESTION_BYTES = 100 << 20
"""Bytes of suggested translations that are kept; further ones are refused."""


def _object(properties: Fields, *required: str) -> Fields:
    return {"type": "object", "properties": properties, "required": list(required)}


ONE_OR_MORE = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
PAIR: Fields = {
    "source": {"type": "string", "description": "source language, or auto"},
    "target": {"type": "string", "description": "target language"},
}
KEY: Fields = {"api_key": {"type": "string"}}
TRANSLATE: Fields = {
    "q": {**ONE_OR_MORE, "description": "text to translate, or a list of texts"},
    **PAIR,
    "format": {"type": "string", "enum": ["text", "html"], "default": "text"},
    "alternatives": {"type": "integer", "minimum": 0, "default": 0, "description": "number of alternative translations"},
    **KEY,
}
DETECT = _object({"q": ONE_OR_MORE}, "q")
FILE = _object({"file": {"type": "string", "format": "binary"}, **PAIR, **KEY}, "file", "source", "target")
TEXTS = {"q": "the text", "s": "a better translation of it", "source": "source language", "target": "target language"}
SUGGESTION = _object({name: {"type": "string", "minLength": 1, "description": text} for name, text in TEXTS.items()}, *TEXTS)
UNHEALTHY: Fields = {"description": "a model does not answer"}


def router(service: Service) -> APIRouter:
    """Routes for texts and languages: /translate, /detect, /languages, /health, /spec and /frontend/settings."""
    routes = APIRouter(tags=["LibreTranslate"], responses=ERRORS)
    body = with_choices(_object(TRANSLATE, "q", "source", "target"), service.models.choices_with_auto)

    @routes.post("/translate", summary="Translate text or HTML", openapi_extra=body_schema(body))
    async def translate(request: Request, answer: Response) -> Fields:
        fields = await admitted_fields(request, service)
        texts, is_list = _texts(service, fields)
        source, target = (_language(fields, name) for name in ("source", "target"))
        detected = (await _ranked_languages(service, texts))[0] if source == "auto" else None
        markup = fields.get("format") or "text"
        if markup not in ("text", "html"):
            raise HTTPException(400, "Invalid request: format must be text or html")
        count = _alternatives(fields, service.settings.beam)
        path = service.models.path(detected["language"] if detected else source, target)
        predictions, memory = await service.attend(request, _translate_texts(service, request, texts, markup, path, count))
        answer.headers.update(_headers(path, memory))
        response = _response(predictions, count, detected)
        return response if is_list else {name: values[0] for name, values in response.items()}

    @routes.post("/detect", summary="Detect the language of a text", openapi_extra=body_schema(DETECT))
    async def detect(request: Request) -> list[Fields]:
        texts, _ = _texts(service, await admitted_fields(request, service))
        note(request, characters=sum(map(len, texts)))
        return await _ranked_languages(service, texts)

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


def file_router(service: Service) -> APIRouter:
    """Routes for files and suggestions: /translate_file, /download_file and /suggest."""
    routes = APIRouter(tags=["LibreTranslate"], responses=ERRORS)
    form = body_schema(FILE, "multipart/form-data")

    @routes.post("/translate_file", summary="Translate a file", openapi_extra=form)
    async def translate_file(request: Request) -> dict[str, str]:
        fields = await admitted_fields(request, service, files=1)
        upload = fields.get("file")
        if not isinstance(upload, UploadFile) or not upload.filename:
            raise HTTPException(400, "Invalid request: missing file parameter; send a form with a file")
        suffix, content = suffix_of(upload.filename), await upload.read()
        source, target = (_language(fields, name) for name in ("source", "target"))
        name = await service.attend(request, _translate_file(service, request, content, suffix, source, target))
        return {"translatedFileUrl": f"{str(request.base_url).rstrip('/')}{service.settings.prefix}/download_file/{name}"}

    @routes.get("/download_file/{name}", summary="A translated file", responses={404: ERRORS[400]}, response_class=Response)
    async def download_file(name: str) -> Response:
        content = await asyncio.to_thread(service.files.get, name)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {"Content-Disposition": f'attachment; filename="translated{Path(name).suffix}"'}
        return Response(content, media_type=kind, headers=headers)

    @routes.post("/suggest", summary="Suggest a better translation", openapi_extra=body_schema(SUGGESTION))
    async def suggest(request: Request) -> dict[str, bool]:
        fields = await admitted_fields(request, service)
        if not service.settings.suggestions:
            raise HTTPException(403, "Suggestions are disabled on this server.")
        texts = {name: fields.get(name) for name in ("q", "s")}
        if not all(isinstance(value, str) and value for value in texts.values()):
            raise HTTPException(400, "Invalid request: missing q or s parameter")
        service.check([str(value) for value in texts.values()])
        languages = {name: _language(fields, name) for name in ("source", "target")}
        if languages["source"] == "auto":
            languages["source"] = (await _ranked_languages(service, [str(texts["q"])]))[0]["language"]
        await asyncio.to_thread(_append_suggestion, Path(service.settings.suggestions), texts | languages)
        return {"success": True}

    return routes


async def _ranked_languages(service: Service, texts: Sequence[str]) -> list[Fields]:
    """The source languages of the server, the likeliest of these texts first. Another thread counts the n-grams."""
    return await asyncio.to_thread(detect_language, " ".join(texts[:LONGEST_SAMPLE]), service.models.choices["source"])


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


async def _translate_texts(
    service: Service, request: Request, texts: list[str], markup: str, path: Sequence[ServedModel], count: int
) -> tuple[Sequence[Prediction], list[str]]:
    """Translates texts by one model after the other, the last of which gives alternatives; and what its memory had of each."""
    predictions: Sequence[Prediction] = [Prediction(text, 0.0) for text in texts]
    memory: list[str] = ["none"] * len(texts)
    for model in path:
        texts = [each.text for each in predictions]
        documents = await service.documents.segments(client_of(request), texts, markup, None)
        segments = [segment for document in documents for segment in document]
        answers = await _translate_segments(service, request, model, segments, count if model is path[-1] else 0)
        predictions = await service.documents.filled(client_of(request), texts, markup, None, answers)
        each = iter(zip(segments, answers, strict=True))
        memory = [_memory([next(each) for _ in document]) for document in documents]
    return predictions, memory


def _memory(parts: Sequence[tuple[Segment, Translation]]) -> str:
    """Matches of a translation memory for the segments of a text: exact matches of all that are translated, or fuzzy ones."""
    known = {answer.memory_document().get("memory", "none") for segment, answer in parts if is_translated(segment)}
    return "exact" if known == {"exact"} else "fuzzy" if known - {"none"} else "none"


async def _translate_segments(
    service: Service, request: Request, model: ServedModel, segments: Sequence[Segment], count: int = 0
) -> list[Any]:
    """Translates each segment with a model, with `count` alternatives. Segments without letters stay as they are."""
    options = (("n_best", count + 1),) if count else ()
    if model.memory is not None:
        segments = [segment.recalled(model.memory.find) for segment in segments]
    queries = {
        place: TranslationQuery(model, segment.text, options, marks=segment.marks)
        for place, segment in enumerate(segments)
        if is_translated(segment)
    }
    found = await service.answer(request, list(queries.values()))
    found = await service.judged(request, model, [query.text for query in queries.values()], found)
    answers = dict(zip(queries, found, strict=True))
    return [answers.get(place) or Translation(segment.text, 0.0) for place, segment in enumerate(segments)]


def _headers(path: Sequence[ServedModel], memory: Sequence[str]) -> dict[str, str]:
    """Headers with the models that answered, their versions, and what came from a memory: fields would surprise clients."""
    values = {"Model": [model.name for model in path], "Version": [model.version for model in path], "Memory": memory}
    return {f"Weft-{name}": ", ".join(quote(each, safe=" ") for each in some) for name, some in values.items()}


def _response(predictions: Sequence[Prediction], count: int, detected: Fields | None) -> Fields:
    """The response to a list of texts."""
    response: Fields = {"translatedText": [each.text for each in predictions]}
    if detected is not None:
        response["detectedLanguage"] = [detected] * len(predictions)
    if count:
        response["alternatives"] = [[other.text for other in each.alternatives[:count]] for each in predictions]
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


async def _translate_file(service: Service, request: Request, content: bytes, suffix: str, source: str, target: str) -> str:
    """Translates a file, if need be by way of a third language; returns the name of the result."""
    client, most = client_of(request), service.settings.queue
    if source == "auto":
        segments = await service.readers.do(client, read_file, content, suffix, None, most)
        source = str((await _ranked_languages(service, [segment.text for segment in segments]))[0]["language"])
    for model in service.models.path(source, target):
        segments = await service.readers.do(client, read_file, content, suffix, model.target, most)
        service.check([], [segment.text for segment in segments])
        answers = await _translate_segments(service, request, model, segments)
        content = await service.readers.do(client, write_file, content, suffix, model.target, answers)
    return await asyncio.to_thread(service.files.put, content, suffix)


def read_file(content: bytes, suffix: str, language: str | None, most: int) -> list[Segment]:
    """The segments of a file, of which at most `most` may be different."""
    segments = open_file(content, suffix, language).document.segments
    check_segments(segments, most)
    return segments


def write_file(content: bytes, suffix: str, language: str, answers: Sequence[Translation]) -> bytes:
    """The file with the translations of its segments."""
    return open_file(content, suffix, language).filled(answers)


def _append_suggestion(path: Path, suggestion: dict[str, Any]) -> None:
    """Adds a suggestion to a TMX, or to a file of JSON lines."""
    try:
        if path.exists() and path.stat().st_size > MAX_SUGGESTION_BYTES:
            raise HTTPException(503, "the file for suggestions is full")
        if path.suffix.lower() == ".tmx":
            append_unit(path, (suggestion["q"], suggestion["s"]), (suggestion["source"], suggestion["target"]))
            return
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(suggestion, ensure_ascii=False) + "\n")
    except (OSError, DataError):
        raise HTTPException(503, "suggestions cannot be stored at the moment") from None
