"""The options of a configuration as a JSON schema for editors, and as commented YAML.

Works on any pydantic model whose fields are sections, plain values, and parts marked with `weft.config.registry.Among`.
"""

import typing
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from weft.config import yaml_document
from weft.config.registry import TABLE_MARK, Among, NameIn, find_table, inside, members, nested, options_of

Json = dict[str, Any]
TYPES = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "null"}
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def type_name(annotation: Any, marks: Iterable[Any] = ()) -> str:
    """The values that an option takes, in words: "integer > 0", "number or null", "one of float32, bf16"."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        tables = [mark for mark in inner[1:] if isinstance(mark, NameIn)]
        name = f"one of {', '.join(tables[0].entries)}" if tables else type_name(inner[0], inner[1:])
    elif origin is Literal:
        name = f"one of {', '.join(map(yaml_document.scalar, inner))}"
    elif origin in (Union, UnionType):
        name = " or ".join(map(type_name, inner))
    elif origin in (list, tuple):
        name = f"list of {' or '.join(sorted({type_name(member) for member in inner if member is not Ellipsis}))}"
    else:
        name = TYPES.get(annotation, "options")
    return name + "".join(f" {sign} {getattr(mark, at)}" for mark in marks for at, sign in SIGNS.items() if hasattr(mark, at))


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
            yield _row(f"{indent}{name}: {yaml_document.scalar(item)}", _note(field))
            continue
        note = field.description or (model.__doc__ or "").strip().split("\n")[0]
        if depth == 0:
            yield from ("", f"# {note}", f"{name}:") if note else ("", f"{name}:")
        else:
            yield _row(f"{indent}{name}:", note)
        if isinstance(within, Among):
            others = ", ".join(kind for kind in within.entries if kind != item["kind"])
            yield _row(f"{indent}  kind: {item['kind']}", f"or {others}" if others else None)
        yield from _rows(model, {key: value for key, value in item.items() if key != "kind"}, depth + 1)


def _note(field: FieldInfo) -> str:
    """The description of an option, and its choices if it has any."""
    listed = any(typing.get_origin(each) is Literal or isinstance(each, NameIn) for each in members(field.annotation))
    return "; ".join(filter(None, [field.description, type_name(field.annotation, field.metadata) if listed else ""]))


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
