"""`weft predict`, and `weft translate`, its name for translation."""

from __future__ import annotations

import json
from itertools import tee
from pathlib import Path

import typer

from weft.cli.options import BEAM, DECODE_SET, DEVICE, FAST, OUTPUT, RUN, decode_options, runs
from weft.cli.output import Counter, opened, warn, write_line


def predict(
    run: str = RUN,
    text: str = typer.Argument(
        None, help="File with one input per line, also .gz, or the text itself; default: standard input, line by line."
    ),
    output: Path = OUTPUT,
    beam: int = BEAM,
    n_best: int = typer.Option(None, "--n-best", help="Outputs per line, as JSON lines."),
    prefix: Path = typer.Option(None, "--prefix", help="File with a forced prefix for each line."),
    glossary: Path = typer.Option(
        None,
        "--glossary",
        help="File with a source term, a tab and a target term per line. The target term is required wherever the source term "
        "occurs or, with ! before it, forbidden.",
    ),
    as_json: bool = typer.Option(False, "--json", help="JSON lines with text, score and tokens instead of plain text."),
    fast: bool = FAST,
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Run a trained model on a file, a text, or standard input line by line: translations, labels, continuations."""
    from weft.cli.input import open_input
    from weft.data.lines import check_file, read_lines
    from weft.inference.terms import read_glossary
    from weft.inference.workers import cores
    from weft.translator import load_trained

    options = decode_options(set, beam=beam, n_best=n_best, fast=fast or None)
    given = open_input(text)
    for read in filter(None, (given.file, prefix, glossary)):
        _keep_apart(check_file(read), output)
    total = given.count() if output is not None else None
    known = None if glossary is None else read_glossary(glossary)
    trained = load_trained(runs(run), device=device, warn=warn)
    lines, terms = given.lines, None
    if known is not None:
        lines, again = tee(lines)
        terms = map(known.terms, again)
    prefixes = None if prefix is None else read_lines(prefix)
    # Whoever types lines one by one is answered sooner by all threads than by one worker.
    workers = 1 if given.prompts else cores()
    found = trained.stream(lines, prefixes=prefixes, terms=terms, ready=given.ready, auto_workers=workers, **options)
    with opened(output) as target, Counter("done", "lines", shown=output is not None, total=total) as counter:
        for each in found:
            plain = " ".join(each.text.splitlines())
            write_line(target, json.dumps(each.document(), ensure_ascii=False) if as_json or n_best else plain)
            counter.advance()


def _keep_apart(read: Path, output: Path | None) -> None:
    """Opening a file for writing empties it, so the output must not be one of the inputs."""
    from weft.errors import DataError

    if output is not None and output.exists() and output.samefile(read):
        raise DataError(f"{output}: would be overwritten while it is read; choose another file for the output")
