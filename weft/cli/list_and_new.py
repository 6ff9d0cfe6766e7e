"""`weft list` and `weft new`."""

from __future__ import annotations

import json
import posixpath
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from weft.cli.options import ANY_SET, LISTS
from weft.errors import ConfigError

if TYPE_CHECKING:
    from weft.config import registry


USES = ("encoder", "causal", "cross")
"""Uses of an attention or a mixer, in the order of the list."""
What = StrEnum("What", {name: name for name in (*LISTS, "recipes")})  # type: ignore[misc]


WIDE = 120
"""Columns of a terminal that show all facts of a part."""


def list_parts(
    what: What = typer.Argument(None, help="What to list; default: everything."),
    as_json: bool = typer.Option(False, "--json", help="A JSON document instead of tables."),
) -> None:
    """List the parts of models, tasks, searches, …, tokenizers or recipes, with the setting that names them.

    A wide terminal also shows the file or package of each.
    """
    console, tables = Console(highlight=False), {}
    for name in [what] if what else list(What):
        tables[name.value] = _recipes() if name.value == "recipes" else _parts(name)
    if as_json:
        typer.echo(json.dumps({name: rows for name, (_, rows) in tables.items()}, indent=2, ensure_ascii=False))
        return
    for title, rows in tables.values():
        with console.capture() as captured:  # rich would turn the end of a pipe into an error
            console.print(_table(title, rows, wide=console.width >= WIDE), markup=False)
        typer.echo(captured.get(), nl=False)
    if console.width < WIDE:
        typer.echo(f"--json, or a terminal of {WIDE} columns, shows all columns")


Rows = list[dict[str, str]]
"""The facts of each part, by heading."""


def _recipes() -> tuple[str, Rows]:
    from weft.config.sections import recipe_summary, recipes

    return "recipes", [{"name": name, "what it is": recipe_summary(path)} for name, path in recipes().items()]


def _parts(what: What) -> tuple[str, Rows]:
    from weft.config.plugins import installed_in, is_bundled, package_of
    from weft.config.registry import find_table

    about = LISTS[what]
    parts, installed, title = find_table(about.table), installed_in(about.table), f"{what}: {about.usage()}"
    if not all(":" in place for place in parts.values()):  # values of an option, described in words
        return title, [{"kind": kind, "what it is": text} for kind, text in parts.items()]
    files = {kind: place.partition(":")[0].replace(".", "/") + ".py" for kind, place in parts.items()}
    own = [file for kind, file in files.items() if kind not in installed]
    folder = posixpath.commonpath([posixpath.dirname(file) for file in own or files.values()])
    facts = ["used in", "shows weights", "cost in length", "paper"] if what in ("attentions", "mixers") else ["what it is"]
    rows = []
    for kind in parts:
        place = files[kind].removeprefix(f"{folder}/")
        if kind in installed and not is_bundled(installed[kind]):
            place = f"package {package_of(installed[kind])}"
        rows.append({"kind": kind, **dict(zip(facts, _facts(parts, kind, len(facts)), strict=True)), "file": place})
    return f"{title}; files in {folder}", rows


def _facts(parts: registry.Table, kind: str, count: int) -> list[str]:
    """The facts about a part, or the error if its package cannot be imported."""
    from weft.config.registry import first_line, load

    try:
        part = load(parts, kind)
    except ConfigError as error:
        return [*[""] * (count - 1), str(error)]
    if count == 1:
        return [first_line(part)]
    uses = [use for use in USES if use in part.uses]
    return [" ".join(uses), "yes" if part.weights_sum else "no", part.cost, part.paper]


def _table(title: str, rows: Rows, wide: bool) -> Table:
    """A table of parts. A narrow terminal shows no costs and papers, and no files of parts that are described in words."""
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    left_out = ("cost in length", "paper", *(["file"] if "what it is" in rows[0] else []))
    headings = [heading for heading in rows[0] if wide or heading not in left_out]
    for heading in headings:
        longest = max(map(len, [*heading.split(), *(USES if heading == "used in" else ())]))
        table.add_column(heading, overflow="fold", no_wrap=heading in ("kind", "name", "file"), min_width=longest + 1)
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def new(
    file: Path = typer.Argument(help="The YAML file to write."),
    recipe: str = typer.Option("transformer-small", "--recipe", help="The recipe to start from."),
    set: list[str] = ANY_SET,
) -> None:
    """Write a configuration file to start from: every setting with its default and a description."""
    from weft.config.sections import commented_yaml, load_config, save_schema
    from weft.errors import ConfigError
    from weft.file_access import replace_file

    if file.exists():
        raise ConfigError(f"{file}: exists already and is not overwritten; choose another name")
    text = commented_yaml(load_config(recipe, set))
    file.parent.mkdir(parents=True, exist_ok=True)
    schema = save_schema(file.parent)
    replace_file(file, f"# yaml-language-server: $schema={schema.name}\n{text}")
    typer.echo(f"wrote {file} (and {schema.name}, which lets editors complete it); train with: weft train {file}")
