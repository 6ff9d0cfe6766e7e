"""`weft average`, `weft merge` and `weft shortlist`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from weft.cli.input_and_output import tell
from weft.cli.options import complete_runs
from weft.errors import ConfigError, RunError

if TYPE_CHECKING:
    from weft.config.sections import Config

USUAL = 5


def average(
    run: Path = typer.Argument(help="Folder of a run.", autocompletion=complete_runs),
    last: int = typer.Option(
        None, "--last", help=f"Number of newest checkpoints to average; default: {USUAL}, or all if there are fewer.", min=1
    ),
    out: Path = typer.Option(None, "--out", help="A new run folder for the result; default: replace the run's own model."),
) -> None:
    """Average the weights of a run's last checkpoints into its model. The earlier model is kept in another file."""
    from contextlib import nullcontext

    from weft.file_access import why_unwritable
    from weft.runs.open_run import run_config
    from weft.runs.run_folder import RunLock
    from weft.training.checkpoint import average as averaged
    from weft.training.checkpoint import described, newest_steps, publish

    config = run_config(run)
    with nullcontext() if out is not None and why_unwritable(run) else RunLock(run):
        used = newest_steps(run, last or USUAL)
        if last is not None and len(used) < last:
            raise RunError(
                f"{run}: --last {last}: there are only {len(used)} checkpoints (steps {', '.join(map(str, used))}); give "
                f"--last {len(used)} or fewer. train.keep_last sets how many a training keeps"
            )
        tensors = averaged(run, last=len(used))
        facts = {"weights": "average", "step": str(used[-1]), "averaged": ",".join(map(str, used))}
        with nullcontext(run) if out is None else _copied_run(run, out, config) as target:
            kept = publish(target, tensors, facts, by="average")
    typer.echo(f"{out or run}/model.safetensors is now {described(facts)}")
    if kept is not None:
        typer.echo(f"the earlier weights are kept in {kept}")


@contextmanager
def _copied_run(run: Path, out: Path, config: Config) -> Iterator[Path]:
    """Makes the new run `out` of another one with this configuration, as a whole or not at all.

    Yields the folder that becomes `out`, with all files but the weights.
    """
    import shutil

    from weft.config.plugins import packages_in
    from weft.config.sections import save_config, save_schema
    from weft.runs.migrations import write_format
    from weft.runs.run_folder import CONFIG, create_folder
    from weft.runs.weight_files import replacing

    create_folder(out)
    with replacing(out, new=True) as aside:
        aside.mkdir()
        for file in [*run.glob("tokenizer*"), *run.glob("*.json"), *run.glob("shortlist*")]:
            shutil.copyfile(file, aside / file.name)  # a read-only run gives a run that can be written
        save_schema(aside)
        save_config(config, aside / CONFIG)
        write_format(aside, packages=packages_in(config.model_dump()))
        yield aside


def merge(
    run: Path = typer.Argument(help="Folder of a run with adapters (model.lora).", autocompletion=complete_runs),
    out: Path = typer.Option(..., "--out", help="A new run folder for the result."),
) -> None:
    """Merge the adapters of a run with the weights it started from, into a run that needs no other."""
    from weft.runs.open_run import open_run, run_config
    from weft.runs.weight_files import named_weights
    from weft.training.checkpoint import publish, published

    config = run_config(run)
    if config.model["lora"] is None:
        raise ConfigError(f"{run}: it has no adapters (model.lora), so there is nothing to merge")
    merged, facts = named_weights(open_run(run).model), published(run)
    with _copied_run(run, out, config.replaced({"model.lora": None})) as aside:
        publish(aside, merged, {key: facts[key] for key in ("weights", "step") if key in facts}, by="merge")
    typer.echo(f"{out} is a run of its own; its weights are those of {run} and of the run it started from")


def shortlist(
    run: Path = typer.Argument(help="Folder of a trained run.", autocompletion=complete_runs),
    data: list[str] = typer.Option([], "--data", help="Pairs to count; default: the run's training data.", metavar="FILES"),
) -> None:
    """Count the likely target tokens of each source token, for faster decoding with decode.shortlist."""
    from weft.runs.open_run import run_config
    from weft.tasks.base import build_task
    from weft.tasks.translation.task import TranslationTask

    config = run_config(run).replaced({"data.valid": [], **({"data.train": data} if data else {})})
    task = build_task(config, run, tell)
    if not isinstance(task, TranslationTask):
        raise ConfigError(f"{run}: its task is {config.task['kind']}; only translation has a shortlist")
    file = task.build_shortlist()
    typer.echo(f"wrote {file}; use it with --set decode.shortlist=100")
