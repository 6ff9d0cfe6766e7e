"""Tables of named parts, and the construction of a part from its options.

A table is a literal dict, so that a search for a name finds its file::

    ATTENTIONS = {"full": "weft.attention.full:FullAttention", …}

The constructor is the schema. The program passes its positional parameters (width, place in the model); its keyword-only
parameters are the options that a user may set in YAML. A keyword-only parameter whose type is a dataclass is a group: its
fields are options too, so several parts can share them. A class may also declare `outer_options`, name → (type, Field): they
apply to what it builds, so its constructor does not take them. `fill` checks a user's options against the constructor and adds
every default; `build` constructs the part. A run saves the result of `fill`, so a changed default never changes an old model.

Only the kinds in use are imported, and only when their options are checked. So a module may declare an option `Among` a
table that lists the module itself.

`matching` resolves patterns of names, such as `encoder.*`, that select weights or modules of a model.
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from types import NoneType
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, SchemaValidator, core_schema

from weft.config.plugins import advice_if_stale, extended, installed_parts, package_of
from weft.errors import ConfigError
from weft.torch_startup import complete_torch


def members(annotation: Any) -> Iterator[Any]:
    """A type and, recursively, all its type arguments."""
    yield annotation
    for member in typing.get_args(annotation):
        yield from members(member)


def plain_types(annotation: Any) -> set[Any]:
    """The types that a value may have: {int, NoneType} for `Annotated[int, …] | None`."""
    if typing.get_origin(annotation) is Annotated:
        return plain_types(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is Literal:
        return {type(value) for value in typing.get_args(annotation)}
    if members := [
        member for member in typing.get_args(annotation) if typing.get_origin(annotation) not in (list, dict, tuple, set)
    ]:
        return set[Any]().union(*map(plain_types, members))
    return {annotation}


Table = Mapping[str, str]
"""kind → "module:Class"."""


def load(table: Table, kind: str, where: str = "kind") -> Any:
    """The class or function that `table` lists under `kind`."""
    if kind not in table:
        raise ConfigError(f"{where}: {unknown(kind, table)}")
    module, _, name = table[kind].partition(":")
    if not module.startswith("weft."):
        complete_torch()  # packages of others may use all of it
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        for (_, name), entry in installed_parts().items():
            if name == kind and entry.value == table[kind]:
                package = package_of(entry)
                raise ConfigError(f"{where}: {kind!r} of the package {package} cannot be imported: {error}") from error
        raise


def find_table(path: str) -> Table:
    """The table at an import path, "module:NAME", with the installed parts that extend it."""
    module, _, name = path.partition(":")
    table: Table = getattr(importlib.import_module(module), name)
    return extended(path, table)


def unknown(name: Any, table: Table) -> str:
    """A message for a name that a table lacks."""
    return f"there is no {name!r}; {suggest(str(name), table)}{advice_if_stale()}"


def suggest(word: str, known: Iterable[str]) -> str:
    """A clause for error messages that names the nearest known word, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose from {', '.join(names)}" if names else "there are none to choose from"


class Options(BaseModel):
    """Named options, immutable and strictly checked: no unknown keys, booleans are not numbers, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: Any) -> Any:
        types = plain_types(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and bool not in types and types & {int, float}:
            raise PydanticCustomError("number", "must be a number")
        return value


@dataclass(frozen=True)
class TableOption:
    """Marks an option that names an entry of the table at an import path."""

    table: str

    @property
    def entries(self) -> Table:
        return find_table(self.table)


@dataclass(frozen=True)
class Among(TableOption):
    """Marks an option whose value is a part: `Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")]`.

    A user writes `{kind: local, window: 32}`, or `local` for the defaults. The value is a dict with every default. If it
    `repeats`, it has a part for each layer and may also be a list, whose entries the layers take in turn.
    """

    repeats: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.check, serialization=core_schema.plain_serializer_function_ser_schema(lambda part: part)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        if not self.repeats:
            return {TABLE_MARK: self.table}
        return {"anyOf": [{TABLE_MARK: self.table}, {"type": "array", "minItems": 1, "items": {TABLE_MARK: self.table}}]}

    def check(self, spec: Any) -> Any:
        """Returns `spec`, a part or (if it repeats) a list of parts, with every default. Raises pydantic's ValidationError."""
        if not (self.repeats and isinstance(spec, list)):
            return self._check_one(spec)
        if not spec:
            raise PydanticCustomError("part", "the list is empty; name at least one kind, as in [local, full]")
        each = core_schema.no_info_plain_validator_function(self._check_one)
        return SchemaValidator(core_schema.list_schema(each)).validate_python(spec)

    def _check_one(self, spec: Any) -> dict[str, Any]:
        if isinstance(spec, str):
            spec = {"kind": spec}
        if not isinstance(spec, Mapping):
            more = ", or a list of these for the layers in turn" if self.repeats else ""
            kinds = {"kinds": ", ".join(self.entries), "more": more}
            raise PydanticCustomError("part", "must be one of {kinds}, with its options{more}", kinds)
        kind = spec.get("kind")
        if kind is None:
            raise PydanticCustomError("part", "name one with `kind: …`; {known}", {"known": suggest("", self.entries)})
        if not isinstance(kind, str) or kind not in self.entries:
            text = PydanticCustomError("part", "{unknown}", {"unknown": unknown(kind, self.entries)})
            raise ValidationError.from_exception_data(self.table, [InitErrorDetails(type=text, loc=("kind",), input=kind)])
        return options_of(self.table, kind).model_validate(dict(spec)).model_dump()


@dataclass(frozen=True)
class NameIn(TableOption):
    """Marks an option whose value is a name in a table: `Annotated[str, NameIn("weft.decoding:RULES")]`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"enum": list(self.entries), "type": "string"}

    def check(self, name: Any) -> str:
        if not isinstance(name, str) or name not in self.entries:
            raise PydanticCustomError("part", "{unknown}", {"unknown": unknown(name, self.entries)})
        return name


TABLE_MARK = "x-weft-table"
"""Placeholder for a part in a JSON schema, until `weft.config.schema` fills in the kinds of its table."""


def options_of(table: str, kind: str) -> type[Options]:
    """The options of one kind as a strict pydantic model, made from the keyword-only parameters of its constructor."""
    return _options(load(find_table(table), kind), kind)


@functools.cache
def _options(part: Any, kind: str) -> type[Options]:
    options: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, hint, default in keyword_options(part):
        if is_dataclass(hint):
            hints = get_type_hints(hint, include_extras=True)
            for each in fields(hint):
                options[each.name] = (with_description(hint, each.name, hints[each.name]), _default(each))
        else:
            options[name] = (with_description(part, name, hint), default)
    options |= getattr(part, "outer_options", {})
    title = "".join(word.capitalize() for word in kind.replace("-", "_").split("_"))
    return create_model(title, __base__=Options, __doc__=first_line(part), **options)


def _default(option: dataclasses.Field[Any]) -> Any:
    """The default of a field of a dataclass; MISSING if it is required."""
    return option.default if option.default_factory is MISSING else option.default_factory()


def keyword_options(part: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, type, default) of each keyword-only parameter, or as `list_options` of the part says; default `...`: none."""
    if hasattr(part, "list_options"):
        yield from part.list_options()
        return
    target = part.__init__ if inspect.isclass(part) else part
    hints = get_type_hints(target, include_extras=True)
    made = {each.name: _default(each) for each in (fields(part) if is_dataclass(part) else ())}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default = made.get(name, parameter.default)
            yield name, hints[name], ... if default is inspect.Parameter.empty or default is MISSING else default


DESCRIBED = re.compile(r"^(?=( *)`?(\w+)`?(?::| {2,}) *(\S.*(?:\n\1 +\S.*)*))", re.MULTILINE)
"""A line `name: …` and indented lines after it. It matches only the beginning, because another name may be on those lines."""


def with_description(part: Any, name: str, hint: Any) -> Any:
    """The type of an option, with its description from the part's docstring: a line `name: …` and indented lines after it."""
    text = descriptions(part).get(name)
    return Annotated[hint, Field(description=text)] if text else hint


@functools.cache
def descriptions(part: Any) -> dict[str, str]:
    """The descriptions in the docstrings of a part and of its base classes, by the name before them."""
    texts = [part, part.__init__, *part.__mro__[1:-1]] if inspect.isclass(part) else [part]
    text = "\n".join(inspect.getdoc(each) or "" for each in texts)
    found = [(match[2], " ".join(match[3].split())) for match in DESCRIBED.finditer(text)]
    return dict(reversed(found))  # of several with one name, the first


def first_line(part: Any) -> str:
    """The first line of a part's docstring, for `weft list`."""
    return (inspect.getdoc(part) or "").split("\n")[0]


def fill(table: str, spec: Mapping[str, Any] | str, where: str = "") -> dict[str, Any]:
    """Checks `spec` and adds every default. `table` is the table's import path, "module:NAME"."""
    root = Among(table)
    given = expand(root, spec)
    try:
        return root.check(given)
    except ValidationError as error:
        wrong = problems(error, root, given)
    except PydanticCustomError as error:
        wrong = [([], error.message())]
    raise ConfigError("\n".join(f"{'.'.join(filter(None, [where, *path])) or 'options'}: {text}" for path, text in wrong))


def build(table: str, spec: Mapping[str, Any] | str, *context: Any, where: str = "") -> Any:
    """Builds the part that `spec` describes, with `context` as the positional arguments of its constructor."""
    options = fill(table, spec, where)
    part = load(find_table(table), options.pop("kind"))
    options = {name: value for name, value in options.items() if name not in getattr(part, "outer_options", {})}
    for name, hint, _ in keyword_options(part):
        if isinstance(hint, type) and is_dataclass(hint):
            options[name] = hint(**{each.name: options.pop(each.name) for each in fields(hint)})
    return part(*context, **options)


def expand(root: type[BaseModel] | Among | None, data: Any, default: Any = None) -> Any:
    """Returns `data` for `root` with every part written as a mapping with its kind. Does not check anything.

    `local` becomes `{kind: local}`. A mapping without a kind changes options of the default part, if there is one.
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
        return {}  # `train:` with nothing below it, for instance because all its keys are commented out
    default = None if field is None or field.is_required() else field.get_default(call_default_factory=False)
    return expand(within, data, default)


def inside(root: type[BaseModel] | Among | None, data: Any) -> type[BaseModel] | None:
    """The model that the keys of `data` belong to; None if `root` is a plain value or the kind is unknown."""
    if not isinstance(root, Among):
        return root
    kind = data.get("kind") if isinstance(data, Mapping) else data
    return options_of(root.table, kind) if isinstance(kind, str) and kind in root.entries else None


def nested(field: FieldInfo | None) -> type[BaseModel] | Among | None:
    """The section or part that an option holds, if any. The option may also be optional, or a list of parts."""
    for item in (*field.metadata, *members(field.annotation)) if field else ():
        if isinstance(item, Among) or (inspect.isclass(item) and issubclass(item, BaseModel)):
            return item
    return None


def problems(error: ValidationError, root: type[BaseModel] | Among, data: Any) -> list[tuple[list[str], str]]:
    """(path of keys, message) for each problem that pydantic found in `data`, which `expand` returned."""
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
        return "is required but missing"
    if problem == "model_type":
        return f"must be a mapping of options, each written as `key: value` (given: {given!r})"
    if problem == "part":
        return str(item["msg"])
    text = str(context.get("error", "")) or item["msg"]
    return f"{text[0].lower()}{text[1:]} (given: {given!r})"


def _siblings(root: type[BaseModel] | Among | None, data: Any, loc: tuple[str | int, ...]) -> list[str]:
    """The valid keys at the level of the last step of `loc`."""
    for step in loc[:-1]:
        if isinstance(data, list) and isinstance(step, int):
            data = data[step]
            continue
        model = inside(root, data)
        root = nested(model.model_fields.get(str(step))) if model else None
        data = data.get(step) if isinstance(data, Mapping) else None
    model = inside(root, data)
    return [*model.model_fields, *getattr(model, "shorthands", ())] if model else []


SHOWN = 5
"""The most names that a message lists."""


def matching(patterns: Iterable[str], names: Iterable[str], where: str) -> list[str]:
    """The names that one of the patterns matches; `*` is any text. Raises ConfigError for a pattern that matches none."""
    known = list(names)
    found = {pattern: [name for name in known if fnmatchcase(name, pattern)] for pattern in patterns}
    for pattern, matched in found.items():
        if not matched:
            near = difflib.get_close_matches(pattern, known, n=SHOWN, cutoff=0.3) or known[:SHOWN]
            raise ConfigError(f"{where}: no name matches {pattern!r}; there are {len(known):,}, among them {', '.join(near)}")
    chosen = {name for matched in found.values() for name in matched}
    return [name for name in known if name in chosen]
