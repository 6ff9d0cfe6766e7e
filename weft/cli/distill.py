"""`weft distill`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli.options import BEAM, DECODE_SET, DEVICE, FAST, PAIRS, RUN, decode_options, runs
from weft.cli.output import Counter, tell


def distill(
    run: str = RUN,
    data: list[str] = typer.Option(..., "--data", help=f"Training pairs: {PAIRS}. Repeatable.", metavar="FILES"),
    out: Path = typer.Option(
        ..., "--out", help="File for the translations, one per line; as pairs with their sources if it ends in .jsonl."
    ),
    beam: int = BEAM,
    fast: bool = FAST,
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Translate the sources of training data, for a student to learn from. Continues where an earlier call was interrupted.

    Lines are translated whole, as a student reads them; --set decode.sentences=auto splits them as `weft translate` does.
    """
    from weft.data.formats import open_pairs
    from weft.distillation import distil

    options = decode_options(set, beam=beam, fast=fast or None)
    with Counter("translated", "lines") as counter:
        pairs = [open_pairs(spec) for spec in data]
        distil(runs(run), pairs, out, device=device, options=options, advance=counter.advance, tell=counter.say)
    tell(f"wrote {out}")
