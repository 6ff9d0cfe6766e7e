"""The options of a configuration as a JSON schema for editors, as a list, and as commented YAML.

Works on any pydantic model whose fields are sections, plain values, and parts marked with `weft.config.registry.Among`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from weft.config import document
from weft.config.registry import TABLE_MARK, Among, default_of, find_table, inside, members, nested, options_of

Json = dict[str, Any]


@dataclass(frozen=True)
class OptionInfo:
    """One key of a configuration."""

    path: str
    type: str
    default: Any
    required: bool
    description: str


def describe(root: type[BaseModel], data: Mapping[str, Any], path: str = "") -> Iterator[OptionInfo]:
    """Every option of `root` and of the parts in `data`, which has every default, as in a dumped config."""
    for name, field in root.model_fields.items():
        place, within, item = f"{path}{name}", nested(field), data.get(name)
        if name != "kind":
            default = default_of(field)
            yield OptionInfo(place, type_name(field), default, field.is_required(), field.description or "")
        model = inside(within, item)
        if model is not None and isinstance(item, Mapping):
            yield from describe(model, item, f"{place}.")


def options(table: str, kind: str) -> list[OptionInfo]:
    """The options of one kind of a table ("module:NAME"), without those of nested parts."""
    return list(describe(options_of(table, kind), {}))


def type_name(field: FieldInfo) -> str:
    """The values that an option takes, in words: "integer > 0", "number or null", "one of float32, bf16"."""
    part = nested(field)
    if isinstance(part, Among):
        optional = " or null" if NoneType in typing.get_args(field.annotation) else ""
        return f"one of {', '.join(part.entries)}{optional}"
    return _type_name(field.annotation) + "".join(_bounds(field.metadata))


def _type_name(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type_name(inner[0]) + "".join(_bounds(inner[1:]))
    if origin is Literal:
        return f"one of {', '.join(map(document.scalar, inner))}"
    if origin in (Union, UnionType):
        return " or ".join(map(_type_name, inner))
    if origin in (list, tuple):
        kinds = sorted({_type_name(member) for member in inner if member is not Ellipsis})
        return f"list of {' or '.join(kinds)}" if kinds else "list"
    names = {
        int: "integer",
        float: "number",
        str: "text",
        bool: "true or false",
        NoneType: "null",
        Any: "any value",
        list: "list",
    }
    return names.get(annotation, "options" if annotation is not dict and origin is not dict else "mapping")


def _bounds(marks: Any) -> Iterator[str]:
    for mark in marks:
        match mark:
            case Gt(gt=bound):
                yield f" > {bound}"
            case Ge(ge=bound):
                yield f" ≥ {bound}"
            case Lt(lt=bound):
                yield f" < {bound}"
            case Le(le=bound):
                yield f" ≤ {bound}"
            case _:
                continue


def commented(root: type[BaseModel], data: Mapping[str, Any]) -> str:
    """`data` as YAML with a comment on each option; the comment on a kind lists the other kinds."""
    return "\n".join(_rows(root, data, 0)) + "\n"


def _rows(root: type[BaseModel], data: Mapping[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, item in data.items():
        field = root.model_fields[name]
        within = nested(field)
        model = inside(within, item)
        if model is None or not isinstance(item, Mapping):
            yield _row(f"{indent}{name}: {document.scalar(item)}", _note(field))
            continue
        note = field.description or (model.__doc__ or "").strip().split("\n")[0]
        if depth == 0:
            yield from ("", f"# {note}", f"{name}:") if note else ("", f"{name}:")
        else:
            yield _row(f"{indent}{name}:", note)
        yield from _kind_row(within, item, indent)
        yield from _rows(model, {key: value for key, value in item.items() if key != "kind"}, depth + 1)


def _note(field: FieldInfo) -> str:
    """The description of an option, and its choices if it has any."""
    choices = type_name(field) if any(typing.get_origin(member) is Literal for member in members(field.annotation)) else ""
    return "; ".join(filter(None, [field.description, choices]))


def _kind_row(within: Any, item: Mapping[str, Any], indent: str) -> Iterator[str]:
    if isinstance(within, Among):
        others = [kind for kind in within.entries if kind != item["kind"]]
        yield _row(f"{indent}  kind: {item['kind']}", f"or {', '.join(others)}" if others else None)


def _row(text: str, note: str | None) -> str:
    return f"{text}  # {note}" if note else text


def json_schema(root: type[BaseModel]) -> Json:
    """The JSON schema (draft 2020-12) of `root`.

    A part is a mapping, or the name of a kind if that kind has no required options.
    """
    schema = root.model_json_schema()
    shared: Json = schema.pop("$defs", {})
    definitions: Json = {}
    pending = list(_link(schema)) + list(_link(shared))
    while pending:
        table = pending.pop()
        if _name(table) in definitions:
            continue
        kinds: list[Json] = []
        definitions[_name(table)] = {"oneOf": kinds}
        by_name = []
        for kind in find_table(table):
            model = options_of(table, kind)
            body = model.model_json_schema()
            shared.update(body.pop("$defs", {}))
            pending += _link(body)
            definitions[f"{_name(table)}.{kind}"] = body
            kinds.append({"$ref": f"#/$defs/{_name(table)}.{kind}"})
            if body.get("required") == ["kind"]:
                by_name.append(kind)
        if by_name:
            kinds.insert(0, {"enum": by_name, "description": "a kind with its default options"})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": {**shared, **definitions}}


def _name(table: str) -> str:
    """ "weft.attention:ATTENTIONS" → "attention.ATTENTIONS". Two tables may have kinds of the same name."""
    return table.removeprefix("weft.").replace(":", ".")


def _link(node: Any) -> Iterator[str]:
    """Replaces each table mark by a reference to its definition, in place, and yields the tables."""
    if isinstance(node, list):
        for item in node:
            yield from _link(item)
    elif isinstance(node, dict):
        if table := node.pop(TABLE_MARK, None):
            node["$ref"] = f"#/$defs/{_name(table)}"
            yield table
        for item in list(node.values()):
            yield from _link(item)
