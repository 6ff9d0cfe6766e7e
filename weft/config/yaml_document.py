"""Reads YAML into plain data with the line of every key, and writes it.

Values follow YAML 1.2: `1e-4` is a number, and `no`, `on`, `12:30` and `2026-01-31` are text. Only mappings, lists, text,
numbers, true, false and null are supported.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from weft.errors import ConfigError

Path = tuple[str, ...]
"""The keys and list indices that lead to a value."""

_PLAIN = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
}


DEEPEST = 50
"""Mappings and lists that may be inside one another."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            # An alias may contain itself, and a few nested aliases can expand to billions of values.
            raise yaml.MarkedYAMLError(
                problem="an alias (*name) is not supported; write the value out", problem_mark=self.peek_event().start_mark
            )
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(
                problem=f"values are nested more than {DEEPEST} deep", problem_mark=self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, (_pattern, _first) in _PLAIN.items():
    for _class in (_Loader, _Dumper):
        letters = [letter.strip("\0") for letter in _first]
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), letters)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    try:
        return int(text, 16 if text.startswith("0x") else 10)
    except ValueError:  # Python limits the number of digits
        raise yaml.MarkedYAMLError(problem="a number has too many digits", problem_mark=node.start_mark) from None


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = str(node.value).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    text = str(node.value)
    try:
        text.encode()
    except UnicodeEncodeError:  # "\\ud800" means one
        problem = "a text has half of a surrogate pair, which is no character"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
    return text


_Loader.add_constructor("tag:yaml.org,2002:str", _text)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


@dataclass
class Document:
    """The data of a YAML text, and the line of each key."""

    name: str
    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)


def read(text: str, name: str) -> Document:
    """Parses `text`. Error messages call it `name`."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{name}, line {line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {error}") from None
    if root is None:
        raise ConfigError(f"{name}: the file is empty; `weft new` writes a complete one")
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        raise ConfigError(f"{name}, line {line}: expected sections such as `data:` and `model:`, each with its options")
    lines: dict[Path, int] = {(): root.start_mark.line + 1}
    for path, line in _keys(root, (), name):
        if path in lines:
            raise ConfigError(
                f"{name}, line {line}: {'.'.join(path)} occurs twice, first on line {lines[path]}; remove one of them"
            )
        lines[path] = line
    return Document(name, _construct(root, name), lines)


def _keys(node: yaml.Node, path: Path, name: str) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{name}, line {line}: a key must be a plain scalar")
            yield (*path, key.value), line
            yield from _keys(value, (*path, key.value), name)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            yield (*path, str(place)), value.start_mark.line + 1
            yield from _keys(value, (*path, str(place)), name)


def _construct(root: yaml.Node, name: str) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{name}, line {line}: this value is not supported: {error.problem}") from None
    finally:
        loader.dispose()


def value(text: str, name: str) -> Any:
    """Parses the value of one key. Error messages call it `name`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise ConfigError(f"{name}: the value is not valid YAML: {problem}; quote it if it is text") from None


def scalar(item: Any) -> str:
    """Writes one value on one line, with lists as `[a, b]`."""
    return _dump_again(item) if isinstance(item, str | int) else _dump(item)


@functools.lru_cache(10_000, typed=True)
def _dump_again(item: str | int) -> str:
    """Keys and most values recur, and yaml takes long."""
    return _dump(item)


def _dump(item: Any) -> str:
    text = yaml.dump(item, Dumper=_Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("...").rstrip("\n")


def write(data: Mapping[str, Any], depth: int = 0) -> str:
    """Writes `data` as YAML with one key per line, in the given order, and lists on one line."""
    rows = []
    for key, item in data.items():
        if isinstance(item, Mapping) and item:
            rows += [f"{'  ' * depth}{scalar(key)}:", write(item, depth + 1).rstrip("\n")]
        else:
            rows.append(f"{'  ' * depth}{scalar(key)}: {scalar(item)}")
    return "\n".join(rows) + "\n"
