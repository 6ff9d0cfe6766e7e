"""`weft doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.markup import escape

from weft.errors import WeftError

MARKS = {"ok": "[green]✓[/]", "missing": "[yellow]–[/]", "problem": "[bold red]✗[/]"}


def doctor(as_json: bool = typer.Option(False, "--json", help="A JSON document instead of text.")) -> None:
    """Check the installation: versions, devices, kernels, compiler, fonts, extras, cache.

    What is missing but optional is marked by –, what does not work by ✗, each with what to do. The exit status is 1 if
    something does not work.
    """
    from weft.bench.doctor import diagnose

    found = diagnose()
    broken = [each for each in found if each.state == "problem"]
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "findings": [asdict(each) for each in found]}, indent=2, ensure_ascii=False))
    else:
        console, group = Console(highlight=False, soft_wrap=True), ""
        for each in found:
            if each.group != group:
                group = each.group
                console.print(f"[bold]{group}[/]")
            console.print(f"  {MARKS[each.state]} {escape(each.name)}: {escape(each.text)}")
            if each.advice:
                console.print(f"      → {escape(each.advice)}")
    if broken:
        names = ", ".join(f"{each.group} {each.name}" for each in broken)
        raise WeftError(f"{len(broken)} {'problem' if len(broken) == 1 else 'problems'}: {names}")
