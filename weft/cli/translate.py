"""`weft translate`."""

from __future__ import annotations

import json
import sys
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.options import decode_options, on_all_cores, runs
from weft.cli.output import opened, write_line
from weft.cli.progress import Counter

if TYPE_CHECKING:
    from weft.tasks.decoding import Translation


def translate(
    run: str = typer.Argument(help="Folder of a trained run; several, joined by commas, form an ensemble."),
    text: str = typer.Argument(None, help="File to translate, also .gz; default: standard input.", show_default=False),
    output: Path = typer.Option(None, "-o", "--output", help="Where to write; default: standard output.", show_default=False),
    beam: int = typer.Option(None, "--beam", help="Beam size; 1 is greedy.", show_default=False),
    n_best: int = typer.Option(None, "--n-best", help="So many translations a line, as JSON lines.", show_default=False),
    prefix: Path = typer.Option(None, "--prefix", help="File with a forced beginning for each line.", show_default=False),
    glossary: Path = typer.Option(
        None,
        "--glossary",
        help="File with a source term, a tab and a target term a line: lines that have the one get the other, or with ! before "
        "it never.",
        show_default=False,
    ),
    as_json: bool = typer.Option(False, "--json", help="JSON lines with text, score and tokens instead of plain text."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, …"),
    set: list[str] = typer.Option(
        [], "--set", help="Any setting of decoding, e.g. --set decode.sample=true.", metavar="KEY=VALUE"
    ),
) -> None:
    """Translate a file, or standard input to standard output, line for line."""
    from weft.data.lines import check_file, read_lines
    from weft.tasks.terms import read_glossary
    from weft.translator import load

    options = decode_options(set, beam=beam, n_best=n_best)
    file = None if text in (None, "-") else check_file(text)
    for read in filter(None, (file, prefix, glossary)):
        _keep_apart(check_file(read), output)
    known = None if glossary is None else read_glossary(glossary)
    translator = load(runs(run), device=device, warn=_warn)
    lines = read_lines(sys.stdin.buffer, "standard input") if file is None else read_lines(file)
    wanted = None
    if known is not None:
        lines, again = tee(lines)
        wanted = map(known.terms, again)
    found = translator.stream(
        lines,
        prefixes=None if prefix is None else read_lines(prefix),
        terms=wanted,
        **on_all_cores(translator, options),
    )
    with opened(output) as target, Counter("translated", "lines", shown=output is not None) as counter:
        for each in found:
            plain = " ".join(each.text.splitlines())
            write_line(target, json.dumps(document(each), ensure_ascii=False) if as_json or n_best else plain)
            counter.advance()


def _keep_apart(read: Path, output: Path | None) -> None:
    """Opening a file for writing empties it: what is read must not be what is written."""
    from weft.errors import DataError

    if output is not None and output.exists() and output.samefile(read):
        raise DataError(f"{output}: would be overwritten while it is read; choose another file for the output")


def document(found: Translation) -> dict[str, Any]:
    """A translation as plain data."""
    plain: dict[str, Any] = {"text": found.text, "score": round(found.score, 6), "tokens": found.tokens}
    if found.alternatives:
        plain["alternatives"] = [document(other) for other in found.alternatives]
    return plain


def _warn(message: str) -> None:
    print(f"weft: {message}", file=sys.stderr)
