"""Tables of named parts, and building a part from its options.

A table is a literal dict, so that a search for a name finds its file::

    ATTENTIONS = {"full": "weft.attention.full:FullAttention", …}

The constructor is the schema: its positional parameters are given by the program (width, place in the model), its
keyword-only parameters are the options a user may set in YAML. `fill` checks a user's options against it and writes out
every default; `build` makes the part. What `fill` returns is saved with a run, so a changed default never changes
an old model.

Only the kinds that are used are imported, and only when options are checked: a module may declare an option that is
`Among` a table it is itself part of.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from weft.errors import ConfigError

Table = Mapping[str, str]
"""kind → "module:Class"."""


def load(table: Table, kind: str, where: str = "kind") -> Any:
    """The class (or function) that `kind` names in `table`."""
    if kind not in table:
        raise ConfigError(f"{where}: there is no {kind!r}; {suggest(kind, table)}")
    module, _, name = table[kind].partition(":")
    return getattr(importlib.import_module(module), name)


def find_table(path: str) -> Table:
    """The table at an import path, "module:NAME"."""
    module, _, name = path.partition(":")
    table: Table = getattr(importlib.import_module(module), name)
    return table


def suggest(word: str, known: Iterable[str]) -> str:
    """A half-sentence that names the nearest known word, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(names)}" if names else "there are none here"


class Options(BaseModel):
    """Named options, strictly checked: an unknown key is an error, true is not a number, and numbers are finite."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, validate_assignment=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: Any) -> Any:
        types = plain_types(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and bool not in types and types & {int, float}:
            raise PydanticCustomError("number", "must be a number")
        return value


@dataclass(frozen=True)
class Among:
    """Marks an option that is itself a part: `Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")]`.

    A user writes `{kind: local, window: 32}`, or just `local` for the defaults. The value is the dict with every default.
    """

    table: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.check, serialization=core_schema.plain_serializer_function_ser_schema(lambda part: part)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {TABLE_MARK: self.table}

    def check(self, spec: Any) -> dict[str, Any]:
        """`spec` with every default. Raises pydantic's ValidationError."""
        if isinstance(spec, str):
            spec = {"kind": spec}
        if not isinstance(spec, Mapping):
            raise PydanticCustomError("part", "must be one of {kinds}, with its options", {"kinds": ", ".join(self.entries)})
        kind = spec.get("kind")
        if kind is None:
            raise PydanticCustomError("part", "say which one with `kind: …`; {known}", {"known": suggest("", self.entries)})
        if not isinstance(kind, str) or kind not in self.entries:
            text = PydanticCustomError(
                "part", "there is no {kind}; {near}", {"kind": repr(kind), "near": suggest(str(kind), self.entries)}
            )
            raise ValidationError.from_exception_data(self.table, [InitErrorDetails(type=text, loc=("kind",), input=kind)])
        return options_of(self.table, kind).model_validate(dict(spec)).model_dump()

    @property
    def entries(self) -> Table:
        return find_table(self.table)


TABLE_MARK = "x-weft-table"
"""Stands in a JSON schema in place of a part until `weft.schema` writes out the kinds of its table."""


def options_of(table: str, kind: str) -> type[Options]:
    """The options of one kind as a strict pydantic model, read off the keyword-only parameters of its constructor."""
    return _options(load(find_table(table), kind), kind)


@functools.cache
def _options(part: Any, kind: str) -> type[Options]:
    target = part.__init__ if inspect.isclass(part) else part
    hints = get_type_hints(target, include_extras=True)
    options: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            hint = Annotated[hints[name], Field(description=text)] if (text := _described(part, name)) else hints[name]
            options[name] = (hint, default)
    title = "".join(word.capitalize() for word in kind.replace("-", "_").split("_"))
    return create_model(title, __base__=Options, __doc__=first_line(part), **options)


def _described(part: Any, name: str) -> str | None:
    """What the part's docstring says of an option, in a line `name: …` or `name  …` and the deeper lines after it."""
    text = inspect.getdoc(part) or ""
    if inspect.isclass(part):
        text += "\n" + (inspect.getdoc(part.__init__) or "" if "__init__" in vars(part) else "")
    found = re.search(rf"^( *)`?{name}`?(?::| {{2,}}) *(\S.*(?:\n\1 +\S.*)*)", text, re.MULTILINE)
    return " ".join(found[2].split()) if found else None


def first_line(part: Any) -> str:
    """The first line of a part's docstring, for `weft list`."""
    return (inspect.getdoc(part) or "").split("\n")[0]


def fill(table: str, spec: Mapping[str, Any] | str, where: str = "") -> dict[str, Any]:
    """`spec` checked and with every default written out. `table` is the table's import path, "module:NAME"."""
    root = Among(table)
    given = expand(root, spec)
    try:
        return root.check(given)
    except ValidationError as error:
        found = problems(error, root, given)
    except PydanticCustomError as error:
        found = [([], error.message())]
    raise ConfigError("\n".join(f"{'.'.join(filter(None, [where, *path])) or 'options'}: {text}" for path, text in found))


def build(table: str, spec: Mapping[str, Any] | str, *context: Any, where: str = "") -> Any:
    """The part that `spec` describes, given `context` as the positional arguments of its constructor."""
    options = fill(table, spec, where)
    return load(find_table(table), options.pop("kind"))(*context, **options)


def expand(root: type[BaseModel] | Among | None, data: Any, default: Any = None) -> Any:
    """`data` for `root` with every part written as a mapping that has its kind; nothing is checked.

    `local` becomes `{kind: local}`. A mapping without a kind changes options of the default, where there is one.
    """
    if isinstance(data, list) and root is not None:
        return [expand(root, item) for item in data]
    if isinstance(root, Among):
        if isinstance(data, str):
            data = {"kind": data}
        if isinstance(data, Mapping) and "kind" not in data and isinstance(default, (str, Mapping)):
            data = {**expand(root, default), **data}
    model = inside(root, data)
    if model is None or not isinstance(data, Mapping):
        return data
    return {key: _expand_field(model.model_fields.get(key), value) for key, value in data.items()}


def _expand_field(field: FieldInfo | None, data: Any) -> Any:
    within = nested(field)
    if field and data is None and inspect.isclass(within) and NoneType not in plain_types(field.annotation):
        return {}  # `train:` with nothing below it, as after commenting out all of it
    return expand(within, data, default_of(field))


def inside(root: type[BaseModel] | Among | None, data: Any) -> type[BaseModel] | None:
    """The model that the keys of `data` belong to; None where `root` is a plain value or the kind is not known."""
    if not isinstance(root, Among):
        return root
    kind = data.get("kind") if isinstance(data, Mapping) else data
    return options_of(root.table, kind) if isinstance(kind, str) and kind in root.entries else None


def nested(field: FieldInfo | None) -> type[BaseModel] | Among | None:
    """What an option holds if it has options itself: a section or a part, also one that may be absent or a list of them."""
    for item in (*field.metadata, *members(field.annotation)) if field else ():
        if isinstance(item, Among) or (inspect.isclass(item) and issubclass(item, BaseModel)):
            return item
    return None


def members(annotation: Any) -> Iterator[Any]:
    """A type and all the types it is made of."""
    yield annotation
    for member in typing.get_args(annotation):
        yield from members(member)


def default_of(field: FieldInfo | None) -> Any:
    """The default of an option; None where there is none."""
    return None if field is None or field.is_required() else field.get_default(call_default_factory=False)


def plain_types(annotation: Any) -> set[Any]:
    """The types a value may have: {int, NoneType} for `Annotated[int, …] | None`."""
    if typing.get_origin(annotation) is Annotated:
        return plain_types(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is Literal:
        return {type(value) for value in typing.get_args(annotation)}
    if members := [
        member for member in typing.get_args(annotation) if typing.get_origin(annotation) not in (list, dict, tuple, set)
    ]:
        return set[Any]().union(*map(plain_types, members))
    return {annotation}


def problems(error: ValidationError, root: type[BaseModel] | Among, data: Any) -> list[tuple[list[str], str]]:
    """(path of keys, what is wrong and what to do) for each problem pydantic found in `data`, which `expand` returned."""
    return [
        ([str(step) for step in item["loc"]], _sentence(item, _siblings(root, data, item["loc"]))) for item in error.errors()
    ]


def _sentence(item: Any, siblings: Iterable[str]) -> str:
    problem, given, context = item["type"], item.get("input"), item.get("ctx", {})
    if problem == "extra_forbidden":
        return f"there is no such option; {suggest(str(item['loc'][-1]), siblings)}"
    if problem == "literal_error":
        known = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"there is no {given!r}; {suggest(str(given), known)}"
    if problem == "missing":
        return "is required and was not given"
    if problem == "model_type":
        return f"must be options, each as `key: value` (given: {given!r})"
    if problem == "part":
        return str(item["msg"])
    text = str(context.get("error", "")) or item["msg"]
    return f"{text[0].lower()}{text[1:]} (given: {given!r})"


def _siblings(root: type[BaseModel] | Among | None, data: Any, loc: tuple[str | int, ...]) -> list[str]:
    """The keys known where the last step of `loc` stands."""
    for step in loc[:-1]:
        if isinstance(data, list) and isinstance(step, int):
            data = data[step]
            continue
        model = inside(root, data)
        root = nested(model.model_fields.get(str(step))) if model else None
        data = data.get(step) if isinstance(data, Mapping) else None
    model = inside(root, data)
    return [*model.model_fields, *getattr(model, "shorthands", ())] if model else []
