"""LibreTranslate's API for files and for suggested translations."""

from __future__ import annotations

import asyncio
import json
import mimetypes
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import Response

from weft.serve.file_store import suffix_of
from weft.serve.languages import detect_language
from weft.serve.libretranslate_api import language, translate_segments
from weft.serve.request_and_response import ERRORS, Fields, admitted_fields, body_schema
from weft.serve.service import Service
from weft.tasks.translation.documents import open_file

SUGGESTED = 100 << 20
"""Bytes of suggested translations that are kept; further ones are refused."""

FILE: Fields = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "source": {"type": "string", "description": "source language, or auto"},
        "target": {"type": "string", "description": "target language"},
        "api_key": {"type": "string"},
    },
    "required": ["file", "source", "target"],
}
SUGGESTION: Fields = {
    "type": "object",
    "properties": {
        name: {"type": "string", "minLength": 1, "description": description}
        for name, description in {
            "q": "the text",
            "s": "a better translation of it",
            "source": "source language",
            "target": "target language",
        }.items()
    },
    "required": ["q", "s", "source", "target"],
}


def router(service: Service) -> APIRouter:
    """/translate_file, /download_file and /suggest."""
    routes = APIRouter(tags=["LibreTranslate"], responses=ERRORS)
    form = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FILE}}}}

    @routes.post("/translate_file", summary="Translate a file", openapi_extra=form)
    async def translate_file(request: Request) -> dict[str, str]:
        fields = await admitted_fields(request, service, files=1)
        upload = fields.get("file")
        if not isinstance(upload, UploadFile) or not upload.filename:
            raise HTTPException(400, "Invalid request: missing file parameter; send a form with a file")
        suffix, content = suffix_of(upload.filename), await upload.read()
        source, target = (language(fields, name) for name in ("source", "target"))
        name = await _translate(service, request, content, suffix, source, target)
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
        given = {name: fields.get(name) for name in ("q", "s")}
        if not all(isinstance(value, str) and value for value in given.values()):
            raise HTTPException(400, "Invalid request: missing q or s parameter")
        service.check([str(value) for value in given.values()])
        given |= {name: language(fields, name) for name in ("source", "target")}
        await asyncio.to_thread(_append, Path(service.settings.suggestions), given)
        return {"success": True}

    return routes


async def _translate(service: Service, request: Request, content: bytes, suffix: str, source: str, target: str) -> str:
    """Translates a file, if need be by way of a third language; returns the name of the result."""
    opened = await asyncio.to_thread(open_file, content, suffix)
    if source == "auto":
        text = " ".join(segment.text for segment in opened.document.segments)[: service.settings.characters]
        source = str(detect_language(text, service.models.choices["source"])[0]["language"])
    for model in service.models.path(source, target):
        opened = await asyncio.to_thread(open_file, content, suffix, model.target)
        service.check([], [segment.text for segment in opened.document.segments])
        answers = await translate_segments(service, request, model, opened.document.segments)
        content = await asyncio.to_thread(opened.filled, answers)
    return await asyncio.to_thread(service.files.put, content, suffix)


def _append(path: Path, suggestion: dict[str, Any]) -> None:
    """Adds a suggestion to a file of JSON lines."""
    try:
        if path.exists() and path.stat().st_size > SUGGESTED:
            raise HTTPException(503, "the file for suggestions is full")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(suggestion, ensure_ascii=False) + "\n")
    except OSError:
        raise HTTPException(503, "suggestions cannot be stored at the moment") from None
