"""`weft list`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from enum import StrEnum

import typer
from rich.console import Console
from rich.table import Table


class What(StrEnum):
    models = "models"
    attentions = "attentions"
    mixers = "mixers"
    poolings = "poolings"
    tasks = "tasks"
    searches = "searches"
    reranks = "reranks"
    recipes = "recipes"
    tokenizers = "tokenizers"


TABLES = {
    What.models: "weft.models:MODELS",
    What.attentions: "weft.attention:ATTENTIONS",
    What.mixers: "weft.mixers:MIXERS",
    What.poolings: "weft.pooling:POOLINGS",
    What.tasks: "weft.tasks:TASKS",
    What.searches: "weft.search:SEARCHES",
    What.reranks: "weft.inference:RERANKS",
    What.tokenizers: "weft.data:TOKENIZERS",
}


def list_parts(what: What = typer.Argument(None, help="What to list; default: everything.", show_default=False)) -> None:
    """List models, attentions, mixers, poolings, tasks, searches, reranks, recipes or tokenizers, and the file of each."""
    console = Console(highlight=False)
    for name in [what] if what else list(What):
        console.print(_recipes() if name is What.recipes else _parts(name), markup=False)


def _recipes() -> Table:
    from weft.config.sections import recipe_summary, recipes

    table = _table("recipes", "name", "what it is")
    for name, path in recipes().items():
        table.add_row(name, recipe_summary(path))
    return table


def _parts(what: What) -> Table:
    mechanisms = what in (What.attentions, What.mixers)
    facts = ["used in", "shows weights", "cost in length", "paper"] if mechanisms else ["what it is"]
    rows = list(_rows(what, mechanisms))
    folder = posixpath.commonpath([posixpath.dirname(row[-1]) for row in rows])
    table = _table(f"{what}: files in {folder}", "kind", *facts, "file")
    for row in rows:
        table.add_row(*row[:-1], posixpath.relpath(row[-1], folder))
    return table


def _rows(what: What, mechanisms: bool) -> Iterator[list[str]]:
    from weft.config.registry import find_table, first_line, load

    entries = find_table(TABLES[what])
    for kind, place in entries.items():
        part = load(entries, kind)
        facts = [first_line(part)]
        if mechanisms:
            uses = [use for use in ("encoder", "causal", "cross") if use in part.uses]
            facts = [" ".join(uses), "yes" if part.weights_sum else "no", part.cost, part.paper]
        yield [kind, *facts, place.partition(":")[0].replace(".", "/") + ".py"]


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for heading in headings:
        longest = max(map(len, heading.split()))
        table.add_column(heading, overflow="fold", no_wrap=heading in ("kind", "name", "file"), min_width=longest + 1)
    return table
