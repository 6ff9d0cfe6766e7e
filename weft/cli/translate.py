"""`weft translate`."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.options import decode_options
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
    as_json: bool = typer.Option(False, "--json", help="JSON lines with text, score and tokens instead of plain text."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, …"),
    set: list[str] = typer.Option(
        [], "--set", help="Any setting of decoding, e.g. --set decode.sample=true.", metavar="KEY=VALUE"
    ),
) -> None:
    """Translate a file, or standard input to standard output, line for line."""
    from weft.data.lines import read_lines
    from weft.translator import load

    options = decode_options(set, beam=beam, n_best=n_best)
    lines = read_lines(text) if text and text != "-" else read_lines(sys.stdin.buffer, "standard input")
    prefixes = None if prefix is None else read_lines(prefix)
    translator = load(run.split(","), device=device, warn=_warn)
    with ExitStack() as stack:
        target = stack.enter_context(open(output, "w", encoding="utf-8")) if output else sys.stdout
        counter = stack.enter_context(Counter("translated", "lines", shown=output is not None))
        for found in translator.stream(lines, prefixes=prefixes, **options):
            plain = " ".join(found.text.splitlines())
            target.write((json.dumps(document(found), ensure_ascii=False) if as_json or n_best else plain) + "\n")
            if output is None:
                target.flush()
            counter.advance()


def document(found: Translation) -> dict[str, Any]:
    """A translation as plain data."""
    plain: dict[str, Any] = {"text": found.text, "score": round(found.score, 6), "tokens": found.tokens}
    if found.alternatives:
        plain["alternatives"] = [document(other) for other in found.alternatives]
    return plain


def _warn(message: str) -> None:
    print(f"weft: {message}", file=sys.stderr)
