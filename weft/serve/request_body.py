"""Request bodies that may be JSON or a form."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from weft.serve.service import Service

Fields = dict[str, Any]


async def read_fields(request: Request, files: int = 0) -> Fields:
    """The fields of a request: its query string, and its body, which is JSON or a form with at most `files` files."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields: Fields = dict(request.query_params)
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        form = await request.form(max_files=files)
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
    """Reads the fields of a request and checks its key, before anything in the body is judged. The key is not among them."""
    refused, fields = None, dict[str, Any]()
    try:
        fields = await read_fields(request, files)
    except HTTPException as error:
        refused = error
    given = [fields.pop(name, None) for name in ("api_key", "apiKey")]
    service.admit(request, given[0] or given[1])
    if refused is not None:
        raise refused
    return fields


Body = TypeVar("Body", bound=BaseModel)


async def admitted_body(request: Request, service: Service, kind: type[Body]) -> Body:
    """Reads a request that has fields of this kind, and checks its key first."""
    fields = await admitted_fields(request, service)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None


def body_schema(schema: Fields) -> Fields:
    """Describes such a body for OpenAPI: one schema for JSON and for forms."""
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


KEY_PLACES: Fields = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "api_key"},
}
"""Where a request may have its API key, as security schemes of OpenAPI. The field `api_key` of the body is one, too."""


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
