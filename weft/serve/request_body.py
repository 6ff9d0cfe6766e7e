"""Request bodies that may be JSON or a form."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

Fields = dict[str, Any]


async def read_fields(request: Request) -> Fields:
    """Reads the fields of a request from its query string and its body, which is JSON or a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields: Fields = dict(request.query_params)
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        form = await request.form(max_files=0)
        return fields | {name: value for name, value in form.items() if not isinstance(value, UploadFile)}
    raw = await request.body()
    if not raw.strip():
        return fields
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise HTTPException(400, "Invalid request: the body is neither JSON nor a form") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "Invalid request: the body must be a JSON object")
    return fields | body


def body_schema(schema: Fields) -> Fields:
    """Describes such a body for OpenAPI: one schema for JSON and for forms."""
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


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
