"""`weft explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.options import decode_options, runs
from weft.cli.output import opened
from weft.errors import ConfigError, DataError

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation, Use

PICTURES = (".png", ".svg", ".pdf")


class What(StrEnum):
    cross = "cross"
    encoder = "encoder"
    decoder = "decoder"


def explain(
    run: str = typer.Argument(help="Folder of a trained run; several, joined by commas, form an ensemble."),
    text: str = typer.Argument(None, help="The sentence to explain; or give --file.", show_default=False),
    target: str = typer.Option(
        None, "--target", help="Look at this translation instead, and where the model would leave it.", show_default=False
    ),
    file: Path = typer.Option(None, "--file", help="A file of sentences instead of one.", show_default=False),
    targets: Path = typer.Option(None, "--targets", help="A file with a translation for each.", show_default=False),
    against: list[str] = typer.Option([], "--against", help="Another run to set beside it. Repeatable.", metavar="RUN"),
    output: Path = typer.Option(
        Path("explain.html"), "-o", "--output", help="A page (.html), or a picture (.png, .svg, .pdf) of one look."
    ),
    look: What = typer.Option(
        What.cross, "--look", help="In a picture: at the source, among its tokens, or the decoder's own."
    ),
    layer: int = typer.Option(
        None, "--layer", help="In a picture: the layer, counted from 1; default: the mean of all.", show_default=False
    ),
    head: str = typer.Option("mean", "--head", help="In a picture: a head, counted from 1, or mean, or max."),
    words: bool = typer.Option(False, "--words", help="In a picture: whole words instead of tokens."),
    influence: bool = typer.Option(
        False, "--influence", help="Also what each token depends on, found by leaving source tokens out one by one."
    ),
    beam: int = typer.Option(None, "--beam", help="Beam size; 1 is greedy.", show_default=False),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, …"),
    set: list[str] = typer.Option([], "--set", help="Any setting of decoding, e.g. --set decode.beam=5.", metavar="KEY=VALUE"),
) -> None:
    """See how a sentence is translated: what is attended to, how sure each token was, what the search dropped and why.

    Writes one page that needs no network, or one picture for a paper.
    """
    suffix = output.suffix.lower()
    if suffix not in (".html", *PICTURES):
        raise ConfigError(f"{output}: what to write is told by the ending: .html, or {', '.join(PICTURES)}")
    pairs = _pairs(text, target, file, targets)
    if suffix in PICTURES and (len(pairs) > 1 or against):
        raise ConfigError(f"{output}: a picture shows one sentence of one run; for more, write a page (-o page.html)")
    chosen = _head(head)
    options = decode_options(set, beam=beam)
    found = list(_explanations([run, *against], pairs, device, influence or None, options))
    if suffix in PICTURES:
        from weft.explain.picture import draw, view_of

        uses: dict[What, Use] = {What.cross: "cross", What.encoder: "encoder", What.decoder: "causal"}
        draw(view_of(found[0], uses[look], layer=layer, head=chosen, words=words), output, warn=_warn)
    else:
        from weft.explain.page import page

        with opened(output) as written:
            written.write(page(found))
    typer.echo(f"wrote {output}", err=True)


def _explanations(
    names: Sequence[str], pairs: Sequence[tuple[str, str | None]], device: str, influence: bool | None, options: dict[str, Any]
) -> Iterator[Explanation]:
    """One for every sentence and run. Runs are loaded one after the other, so that one at a time is in memory."""
    from weft.translator import load

    for name in names:
        translator = load(runs(name), device=device, warn=_warn)
        for number, (text, target) in enumerate(pairs, start=1):
            try:
                yield translator.explain(text, target=target, influence=influence, run=name, **options)
            except DataError as error:
                raise DataError(f"sentence {number}: {error}" if len(pairs) > 1 else str(error)) from None


def _pairs(text: str | None, target: str | None, file: Path | None, targets: Path | None) -> list[tuple[str, str | None]]:
    """Sentences, each with the translation to look at or none. Blank lines of files are passed over."""
    from weft.data.lines import read_lines

    if (text is None) == (file is None):
        raise ConfigError("give a sentence to explain, or a file of them by --file (one of the two)")
    if text is not None:
        if targets is not None:
            raise ConfigError("--targets goes with --file; give --target 'a translation' for one sentence")
        return [(text, target)]
    if target is not None:
        raise ConfigError("--target goes with one sentence; give --targets FILE for a file of them")
    lines = list(read_lines(file or ""))
    given: list[str | None] = [None] * len(lines) if targets is None else list(read_lines(targets))
    if len(given) != len(lines):
        raise DataError(f"{targets} has {len(given):,} lines, and {file} has {len(lines):,}; there must be one for each")
    pairs = [pair for pair in zip(lines, given, strict=True) if pair[0].strip()]
    if not pairs:
        raise DataError(f"{file}: there is no sentence in it")
    return pairs


def _head(text: str) -> Any:
    if text in ("mean", "max"):
        return text
    if text.isdecimal():
        return int(text)
    raise ConfigError(f"--head {text}: give a number, counted from 1, or mean, or max")


def _warn(message: str) -> None:
    typer.echo(f"weft: {message}", err=True)
