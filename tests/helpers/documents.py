"""Reads the documents of the project for tests: their blocks, commands, links, anchors, and the names of weft that they use."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from doctest import DocTestParser
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/course/*.md")])
CODE = re.compile(r"```.*?```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    place: str
    language: str
    text: str


def blocks(text: str, name: str) -> Iterator[Block]:
    """The fenced blocks of a markdown text, with `name:line` of their first line."""
    for found in re.finditer(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
        line = text[: found.start(3)].count("\n") + 1
        lines = [row.removeprefix(found[1]) for row in found[3].split("\n")]
        yield Block(f"{name}:{line}", found[2], "\n".join(lines))


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block as words, without comments, pipes, redirections and settings of variables."""
    if block.language not in ("sh", "bash", "shell", "console"):
        return
    for line in block.text.replace("\\\n", " ").split("\n"):
        if block.language == "console" and not line.startswith("$ "):
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        yield from _split(list(lexer))


def _split(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    skip = False
    for word in [*words, ";"]:
        if set(word) <= set("|&;"):
            if command:
                yield command
            command = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        elif command or not re.fullmatch(r"\w+=.*", word):
            command.append(word)


def weft_arguments(command: list[str]) -> list[str] | None:
    """The arguments of a call of weft, also through `python -m` or torchrun; None for another command."""
    if Path(command[0]).name == "weft":
        return command[1:]
    for place, word in enumerate(command[:-1]):
        if word == "-m" and command[place + 1] in ("weft", "weft.cli"):
            return command[place + 2 :]
    return None


def links(text: str) -> list[str]:
    """Where the links and pictures of a markdown text point, code left out."""
    plain = re.sub(r"`[^`\n]*`", "", CODE.sub("", text))
    return re.findall(r"\]\(<?([^)>\s]+)>?[^)]*\)", plain) + re.findall(r"(?:src|href)=\"([^\"]+)\"", plain)


def slug(heading: str) -> str:
    """The name a heading gets as the target of a link."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The targets that the headings of a markdown text are; repeated ones are numbered."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def python_source(block: Block) -> str:
    """The code of a Python block, without prompts and outputs if it has any."""
    return "".join(example.source for example in DocTestParser().get_examples(block.text)) or block.text


def find_name(name: str) -> Any:
    """The module or object of a dotted name. Raises ImportError or AttributeError if there is none."""
    parts = name.split(".")
    found: Any = import_module(parts[0])
    for place, part in enumerate(parts[1:], start=2):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not inspect.ismodule(found):
                raise
            found = import_module(".".join(parts[:place]))
    return found


PACKAGES = ("weft", "weft_studies")


def weft_names(source: str) -> Iterator[str]:
    """The dotted names of weft that Python code imports or uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"weft(\.\w+)+", ast.unparse(node)):
            yield ast.unparse(node)


def unknown_arguments(source: str) -> Iterator[str]:
    """Keyword arguments of calls of weft that the called function does not have."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and re.fullmatch(r"weft(\.\w+)+", ast.unparse(node.func)):
            known = inspect.signature(find_name(ast.unparse(node.func))).parameters
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
                yield from (f"{ast.unparse(node.func)}({word.arg}=)" for word in node.keywords if word.arg not in known)


def parse(arguments: list[str]) -> int:
    """The exit status of a command line that is parsed as strictly as when it is run, but runs nothing."""
    from weft.cli import spread_sets

    command = _parser()
    if all(word.startswith("-") for word in arguments):  # such options run at once, and one of them writes into the user's home
        return int(not {*arguments} <= {name for param in command.params for name in param.opts})
    with pytest.raises(SystemExit) as end:
        command.main(spread_sets(arguments), prog_name="weft")
    return int(end.value.code or 0)


@functools.cache
def _parser() -> Any:
    """All commands, which do nothing."""
    import typer

    from weft.cli import make_app

    command: Any = typer.main.get_command(make_app())
    groups = [item for item in command.commands.values() if hasattr(item, "commands")]
    for item in (command, *command.commands.values(), *(each for group in groups for each in group.commands.values())):
        item.callback = None
    return command


def check_sets(arguments: list[str]) -> None:
    """Checks the `--set` options of a command that names a recipe. Raises ConfigError."""
    from weft.cli import spread_sets
    from weft.config.sections import load_config, recipes

    spread = spread_sets(arguments)
    sets = [value for word, value in pairwise(spread) if word == "--set"]
    for recipe in set(spread) & set(recipes()):
        load_config(recipe, sets)
