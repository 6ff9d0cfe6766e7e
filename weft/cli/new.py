"""`weft new`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli.options import ANY_SET


def new(
    file: Path = typer.Argument(help="The YAML file to write."),
    recipe: str = typer.Option("transformer-small", "--recipe", help="The recipe to start from."),
    set: list[str] = ANY_SET,
) -> None:
    """Write a configuration file to start from: every setting with its default and a description."""
    from weft.config.sections import commented_yaml, load_config, save_schema
    from weft.errors import ConfigError

    if file.exists():
        raise ConfigError(f"{file}: exists already and is not overwritten; choose another name")
    text = commented_yaml(load_config(recipe, set))
    file.parent.mkdir(parents=True, exist_ok=True)
    schema = save_schema(file.parent)
    file.write_text(f"# yaml-language-server: $schema={schema.name}\n{text}", encoding="utf-8")
    typer.echo(f"wrote {file} (and {schema.name}, which lets editors complete it); train with: weft train {file}")
