"""`weft average`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli import completion
from weft.errors import RunError

USUAL = 5


def average(
    run: Path = typer.Argument(help="Folder of a run.", autocompletion=completion.runs),
    last: int = typer.Option(
        None, "--last", help=f"Number of newest checkpoints to average; default: {USUAL}, or all if there are fewer.", min=1
    ),
    out: Path = typer.Option(None, "--out", help="A new run folder for the result; default: replace the run's own model."),
) -> None:
    """Average the weights of a run's last checkpoints into its model. The earlier model is kept in another file."""
    import shutil
    from contextlib import nullcontext

    from weft.file_access import why_unwritable
    from weft.runs.open_run import run_config
    from weft.runs.run_folder import RunLock, prepare_folder
    from weft.training.checkpoint import average as averaged
    from weft.training.checkpoint import described, newest_steps, publish

    run_config(run)
    with nullcontext() if out is not None and why_unwritable(run) else RunLock(run):
        used = newest_steps(run, last or USUAL)
        if last is not None and len(used) < last:
            raise RunError(
                f"{run}: --last {last}: there are only {len(used)} checkpoints (steps {', '.join(map(str, used))}); give "
                f"--last {len(used)} or fewer. train.keep_last sets how many a training keeps"
            )
        tensors = averaged(run, last=len(used))
        target = run
        if out is not None:
            prepare_folder(out)
            for file in [*run.glob("tokenizer*"), *run.glob("*.yaml"), *run.glob("*.json")]:
                shutil.copyfile(file, out / file.name)  # a read-only run gives a run that can be written
            target = out
        facts = {"weights": "average", "step": str(used[-1]), "averaged": ",".join(map(str, used))}
        kept = publish(target, tensors, facts, by="average")
    typer.echo(f"{target}/model.safetensors is now {described(facts)}")
    if kept is not None:
        typer.echo(f"the earlier weights are kept in {kept}")
