"""`weft average`."""

from __future__ import annotations

from pathlib import Path

import typer


def average(
    run: Path = typer.Argument(help="Folder of a run."),
    last: int = typer.Option(5, "--last", help="Number of newest checkpoints to average.", min=1),
    out: Path = typer.Option(None, "--out", help="A new run folder for the result; default: replace the run's own model."),
) -> None:
    """Average the weights of a run's last checkpoints into its model."""
    import shutil

    from weft.runs.folder import RunLock, prepare_folder
    from weft.runs.opening import run_config
    from weft.training.checkpoint import average as averaged
    from weft.training.checkpoint import publish, steps

    run_config(run)
    with RunLock(run):
        used = steps(run)[-last:]
        tensors = averaged(run, last=last)
        target = run
        if out is not None:
            prepare_folder(out)
            for file in [*run.glob("tokenizer*"), *run.glob("*.yaml"), *run.glob("*.json")]:
                shutil.copy2(file, out)
            target = out
        publish(target, tensors, {"weights": "average", "step": str(used[-1]), "averaged": ",".join(map(str, used))})
    typer.echo(f"{target}/model.safetensors is now the mean of steps {', '.join(map(str, used))}")
