"""`weft merge`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli import completion
from weft.errors import ConfigError


def merge(
    run: Path = typer.Argument(help="Folder of a run with adapters (model.lora).", autocompletion=completion.runs),
    out: Path = typer.Option(..., "--out", help="A new run folder for the result."),
) -> None:
    """Merge the adapters of a run with the weights it started from, into a run that needs no other."""
    import shutil

    from weft.config.sections import load_config, save_config
    from weft.runs.open_run import open_run, run_config
    from weft.runs.run_folder import CONFIG, prepare_folder
    from weft.runs.weight_files import named_weights
    from weft.training.checkpoint import publish, published

    if run_config(run).model["lora"] is None:
        raise ConfigError(f"{run}: it has no adapters (model.lora), so there is nothing to merge")
    merged = named_weights(open_run(run).model)
    prepare_folder(out)
    for file in [*run.glob("tokenizer*"), *run.glob("*.json"), *run.glob("shortlist*")]:
        shutil.copyfile(file, out / file.name)
    save_config(load_config(run / CONFIG).replaced({"model.lora": None}), out / CONFIG)
    facts = published(run)
    publish(out, merged, {key: facts[key] for key in ("weights", "step") if key in facts}, by="merge")
    typer.echo(f"{out} is a run of its own; its weights are those of {run} and of the run it started from")
