"""`weft import` and `weft export`, `weft pack` and `weft unpack`, `weft push` and `weft pull`."""

from pathlib import Path

import typer

from weft.cli.input_and_output import tell
from weft.cli.options import complete_runs
from weft.errors import ConfigError
from weft.interop import EXPORTS


def import_model(
    model: Path = typer.Argument(help="Folder of a MarianMT, M2M100 or NLLB model, or a Marian .npz file."),
    out: Path = typer.Option(..., "--out", help="A new run folder."),
) -> None:
    """Make a run of a model of another program. Nothing in its files is executed."""
    from weft.interop.importing import import_model as imported

    made = imported(model, out)
    licence = made.licence or "none named; ask its author before you use or pass on the model"
    tell(f"{made.name}: a model of {made.program}; licence: {licence}")
    if made.source.added:
        names = ", ".join(made.source.added[:8]) + (", …" if len(made.source.added) > 8 else "")
        wanted = "two with --tag, that of the source and that of the target" if made.directed else "one with --tag"
        tell(f"tags: {names}; name {wanted}")
    typer.echo(f"{out} is a run: weft translate {out} 'a sentence'")


def export(
    run: Path = typer.Argument(help="Folder of a trained run.", autocompletion=complete_runs),
    to: str = typer.Option(..., "--to", help=f"One of {', '.join(EXPORTS)}.", metavar="FORMAT"),
    out: Path = typer.Option(..., "--out", help="A new folder for the result."),
    quantization: str = typer.Option(None, "--quantization", help="For ctranslate2 and argos: int8, int16, float16, …"),
) -> None:
    """Write a run as another program reads it: exactly, or not at all."""
    from weft.interop.exporting import export_run

    for note in export_run(run, to, out, quantization):
        tell(note)
    typer.echo(f"wrote {out}")


def pack(
    run: Path = typer.Argument(help="Folder of a trained run.", autocompletion=complete_runs),
    out: Path = typer.Option(None, "-o", "--out", help="The file; default: the name of the run, with .weft."),
) -> None:
    """Write what a run needs to answer into one file, which translate and serve open directly."""
    from weft.runs.packed_run import SUFFIX, pack_run

    file = out or Path(run.resolve().name + SUFFIX)
    if file.suffix != SUFFIX:
        raise ConfigError(f"--out: {file}: a packed run ends in {SUFFIX}")
    pack_run(run, file)
    typer.echo(f"wrote {file}: weft translate {file} 'a sentence'")


def unpack(
    file: Path = typer.Argument(help="A file of `weft pack`."),
    out: Path = typer.Option(..., "--out", help="A new run folder."),
) -> None:
    """Make a run folder of a packed run."""
    from weft.runs.packed_run import unpack_run

    unpack_run(file, out)
    typer.echo(f"{out} is a run: weft translate {out} 'a sentence'")


def push(
    run: Path = typer.Argument(help="Folder of a trained run.", autocompletion=complete_runs),
    repository: str = typer.Argument(help="Its name on the Hugging Face hub: user/name.", metavar="USER/NAME"),
    private: bool = typer.Option(False, "--private", help="Only you can see it, if the repository is new."),
) -> None:
    """Upload a run to the Hugging Face hub, with its model card. `hf auth login` or HF_TOKEN says who you are.

    Uploaded are the settings without paths of this machine, the weights, the tokenizers and the card.
    """
    from weft.runs.hub import push_run
    from weft.runs.open_run import open_run
    from weft.training.model_card import ensure_card

    ensure_card(open_run(run))
    address = push_run(run, repository, private=private)
    typer.echo(f"{address} is the run: weft translate hf:{repository} 'a sentence'")


def pull(
    repository: str = typer.Argument(
        help="A run on the Hugging Face hub: user/name or user/name@revision.", metavar="USER/NAME"
    ),
    out: Path = typer.Option(None, "--out", help="A new run folder; default: the name of the run."),
) -> None:
    """Download a run from the Hugging Face hub. Nothing in its files is executed."""
    from weft.runs.hub import pull_run

    folder = out or Path(repository.partition("@")[0].rpartition("/")[2])
    pull_run(repository, folder)
    typer.echo(f"{folder} is a run: weft translate {folder} 'a sentence'")
