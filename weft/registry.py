"""Tables of named parts, and building a part from its options.

A table is a literal dict, so that a search for a name finds its file::

    ATTENTIONS = {"full": "weft.attention.full:FullAttention", …}

The constructor is the schema: its positional parameters are given by the program (width, place in the model), its
keyword-only parameters are the options a user may set in YAML. `fill` checks a user's options against it and writes out
every default; `build` makes the part. What `fill` returns is saved with a run, so a changed default never changes
an old model.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema, core_schema

from weft.errors import ConfigError

Table = Mapping[str, str]
"""kind → "module:Class"."""


def load(table: Table, kind: str, where: str = "kind") -> Any:
    """The class (or function) that `kind` names in `table`."""
    if kind not in table:
        raise ConfigError(f"{where}: there is no {kind!r}; {suggest(kind, table)}")
    module, _, name = table[kind].partition(":")
    return getattr(importlib.import_module(module), name)


def suggest(word: str, known: Iterable[str]) -> str:
    """A half-sentence that names the nearest known word, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"


@dataclass(frozen=True)
class Among:
    """Marks an option that is itself a part: `Annotated[dict, Among("weft.attention:ATTENTIONS")]`.

    A user writes `{kind: local, window: 32}`, or just `local` for the defaults.
    """

    table: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler.generate_schema(_union(self.table))
        return core_schema.no_info_after_validator_function(
            lambda options: options.model_dump(), inner, serialization=core_schema.plain_serializer_function_ser_schema(lambda v: v)
        )

    @property
    def entries(self) -> Table:
        return find_table(self.table)


def find_table(path: str) -> Table:
    module, _, name = path.partition(":")
    table: Table = getattr(importlib.import_module(module), name)
    return table


def _named(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


@functools.cache
def _union(table: str) -> Any:
    kinds = [_options(table, kind) for kind in find_table(table)]
    if len(kinds) == 1:
        return Annotated[kinds[0], BeforeValidator(_named)]
    return Annotated[Union[tuple(kinds)], Field(discriminator="kind"), BeforeValidator(_named)]


@functools.cache
def _options(table: str, kind: str) -> type[BaseModel]:
    """The options of one kind as a strict pydantic model, read off its constructor."""
    part = load(find_table(table), kind)
    target = part.__init__ if inspect.isclass(part) else part
    hints = get_type_hints(target, include_extras=True)
    options: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            options[name] = (hints[name], default)
    name = "".join(word.capitalize() for word in kind.replace("-", "_").split("_"))
    summary = (inspect.getdoc(part) or "").split("\n")[0]
    settings = ConfigDict(extra="forbid", protected_namespaces=(), validate_default=True)
    return create_model(name, __config__=settings, __doc__=summary, **options)


def fill(table: str, spec: Mapping[str, Any] | str, where: str = "") -> dict[str, Any]:
    """`spec` checked and with every default written out. `table` is the table's import path, "module:NAME"."""
    try:
        return dict(TypeAdapter(_union(table)).validate_python(spec).model_dump())
    except ValidationError as error:
        found = problems(error, Among(table))
        raise ConfigError("\n".join(f"{'.'.join(filter(None, [where, *path])) or 'options'}: {text}" for path, text in found)) from None


def build(table: str, spec: Mapping[str, Any] | str, *context: Any, where: str = "") -> Any:
    """The part that `spec` describes, given `context` as the positional arguments of its constructor."""
    options = fill(table, spec, where)
    return load(find_table(table), options.pop("kind"))(*context, **options)


def problems(error: ValidationError, root: type[BaseModel] | Among) -> list[tuple[list[str], str]]:
    """(path of keys, what is wrong and what to do) for each problem found in data for `root`."""
    found = []
    for item in error.errors():
        path, siblings = _locate(root, item["loc"])
        found.append((path, _sentence(item, siblings)))
    return found


def _sentence(item: Any, siblings: Iterable[str]) -> str:
    problem, given, context = item["type"], item.get("input"), item.get("ctx", {})
    if problem == "extra_forbidden":
        return f"there is no such option; {suggest(str(item['loc'][-1]), siblings)}"
    if problem in ("union_tag_invalid", "literal_error"):
        known = re.findall(r"'([^']*)'", str(context.get("expected_tags", context.get("expected", ""))))
        value = str(context.get("tag", given))
        return f"there is no {value!r}; {suggest(value, known)}"
    if problem == "union_tag_not_found":
        return "say which one with `kind: …`"
    if problem == "missing":
        return "is required and was not given"
    text = str(context.get("error", "")) or item["msg"]
    return f"{text[0].lower()}{text[1:]} (given: {given!r})"


def _locate(root: type[BaseModel] | Among, loc: Iterable[str | int]) -> tuple[list[str], list[str]]:
    """The keys of an error's path, without the kinds pydantic puts between them; and the keys known at its end."""
    path: list[str] = []
    here: type[BaseModel] | Among | None = root
    known: list[str] = []
    for step in loc:
        if isinstance(here, Among):
            kinds = here.entries
            tagged = len(kinds) > 1
            here = _options(here.table, str(step) if tagged else next(iter(kinds)))
            if tagged:
                continue
        path.append(str(step))
        if here is None:
            continue
        known = list(here.model_fields)
        field = here.model_fields.get(str(step))
        here = None
        if field is not None:
            among = [mark for mark in field.metadata if isinstance(mark, Among)]
            nested = field.annotation if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) else None
            here = among[0] if among else nested
    return path, known


def first_line(part: Any) -> str:
    """The first line of a part's docstring, for `weft list`."""
    return (inspect.getdoc(part) or "").split("\n")[0]
