"""Requests that come as JSON or as a form."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from weft.serve.refusal import Refusal

Fields = dict[str, Any]


async def read_fields(request: Request) -> Fields:
    """What a request says, as JSON or as a form, or behind the question mark."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields: Fields = dict(request.query_params)
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        form = await request.form(max_files=0)
        return fields | {name: value for name, value in form.items() if not isinstance(value, UploadFile)}
    raw = await request.body()
    if not raw.strip():
        return fields
    try:
        given = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refusal(400, "Invalid request: the body is neither JSON nor a form") from None
    if not isinstance(given, dict):
        raise Refusal(400, "Invalid request: the body has to be a JSON object")
    return fields | given


def body_schema(schema: Fields) -> Fields:
    """Such a body in OpenAPI's words: JSON, or the same as a form."""
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


def with_choices(schema: Fields, choices: dict[str, list[str]]) -> Fields:
    """A schema of requests that says which values the fields of these names can have."""
    properties = dict(schema["properties"])
    for name, values in choices.items():
        if name in properties:
            # A field that may be left out is a string or null.
            kinds = properties[name].get("anyOf")
            named = {"anyOf": [{**kinds[0], "enum": values}, *kinds[1:]]} if kinds else {"enum": values}
            properties[name] = {**properties[name], **named}
    return {**schema, "properties": properties}
