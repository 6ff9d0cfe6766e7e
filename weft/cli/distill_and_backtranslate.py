"""`weft distill`, `weft backtranslate` and `weft iterate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.input_and_output import tell
from weft.cli.options import (
    ACTORS,
    ANY_SET,
    BEAM,
    DECODE_SET,
    DEVICE,
    ENGINE,
    FAST,
    PAIRS,
    RUN,
    SHARD,
    TAG,
    check_engine,
    decode_options,
    parse_share,
    recipes,
)
from weft.cli.predict_in_shards import predict_in_shards
from weft.errors import ConfigError
from weft.runs.run_folder import run_folders

if TYPE_CHECKING:
    from weft.runs.distillation_and_backtranslation import Texts

LINES = typer.Option(None, "--shard", help="Only every n-th line from the k-th on, as K/N, to divide work among machines.")


def distill(
    run: str = RUN,
    data: list[str] = typer.Option(..., help=f"Training pairs: {PAIRS}. Repeatable.", metavar="FILES"),
    out: Path = typer.Option(
        ..., help="File for the translations, one per line; as pairs with their sources if it ends in .jsonl.", metavar="FILE"
    ),
    beam: int = BEAM,
    tag: str = TAG,
    fast: bool = FAST,
    device: str = DEVICE,
    shard: str = SHARD,
    engine: str = ENGINE,
    actors: int = ACTORS,
    set: list[str] = DECODE_SET,
) -> None:
    """Translate the sources of training data as `weft translate` does, for a student to learn from.

    Continues where an earlier call was interrupted.
    """
    from weft.data.formats import open_pairs
    from weft.runs.distillation_and_backtranslation import Texts, check_out

    check_out(out, data)
    check_engine(engine, actors, shard)
    options = decode_options(set, beam=beam, tag=tag, fast=fast or None)
    texts = Texts([open_pairs(spec) for spec in data])
    _translate(run, texts, out, device, options, share=parse_share(shard), engine=engine, actors=actors)


def backtranslate(
    run: str = RUN,
    data: list[str] = typer.Option(..., help="Files with text of the target language. Repeatable.", metavar="FILE"),
    out: Path = typer.Option(
        ...,
        help="File for the pairs, if it ends in .jsonl: translations as sources, the text as targets; else translations only.",
        metavar="FILE",
    ),
    beam: int = BEAM,
    tag: str = TAG,
    shard: str = LINES,
    fast: bool = FAST,
    device: str = DEVICE,
    engine: str = ENGINE,
    actors: int = ACTORS,
    set: list[str] = DECODE_SET,
) -> None:
    """Translate text of the target language back into the source language, as further training pairs.

    RUN translates in the opposite direction. --set decode.search=sample draws translations instead of searching for the best.
    Train with `--data '{files: OUT, tag: bt}'` to mark the sources as machine-made; `noise` in the same braces changes them
    anew in every epoch. Continues where an earlier call was interrupted.
    """
    from weft.data.formats import is_table
    from weft.runs.distillation_and_backtranslation import Texts, check_out
    from weft.tasks.language_modeling.data import LineFile

    check_out(out, data)
    check_engine(engine, actors)
    if tables := [name for name in data if is_table(name)]:
        raise ConfigError(f"--data {tables[0]}: a table has pairs, and here plain text is read, a sentence per line")
    options = decode_options(set, beam=beam, tag=tag, fast=fast or None)
    texts = Texts([LineFile(name) for name in data], back=True, every=parse_share(shard) or (1, 1))
    _translate(run, texts, out, device, options, engine=engine, actors=actors)


def _translate(
    run: str,
    texts: Texts,
    out: Path,
    device: str,
    options: dict[str, Any],
    *,
    share: tuple[int, int] | None = None,
    engine: str | None,
    actors: int | None,
) -> None:
    from weft.runs.distillation_and_backtranslation import translation_work

    work = translation_work(run_folders(run), texts, out, device=device, options=options)
    predict_in_shards(work, share=share, engine=engine, actors=actors)


def iterate(
    recipe: str = typer.Argument(help="A recipe or a YAML file, for all runs.", autocompletion=recipes),
    data: list[str] = typer.Option(..., help=f"Training pairs: {PAIRS}. Repeatable.", metavar="FILES"),
    valid: list[str] = typer.Option(..., help="Validation pairs, in the same forms. Repeatable.", metavar="FILES"),
    target_text: list[str] = typer.Option([], help="File with text of the target language.", metavar="FILE"),
    source_text: list[str] = typer.Option([], help="File with text of the source language.", metavar="FILE"),
    rounds: int = typer.Option(2, min=1, help="Rounds of back-translation after the first models."),
    out: Path = typer.Option(..., help="Folder for all runs."),
    set: list[str] = ANY_SET,
) -> None:
    """Train models of both directions that translate text for each other, in rounds; keep the best of each.

    OUT/forward and OUT/backward are the best runs by train.best_by, or by BLEU if that is the loss; OUT/rounds.json has all
    scores. The same command continues after an interruption. --set changes all runs; decode settings apply to translating the
    text as well.
    """
    from weft.training.iterative_backtranslation import BacktranslationData, iterate_backtranslation

    mono = {"forward": target_text, "backward": source_text}
    best = iterate_backtranslation(BacktranslationData(recipe, data, valid, mono, rounds, out, set), tell)
    for direction, run in best.items():
        tell(f"best {direction} model: {run}")
