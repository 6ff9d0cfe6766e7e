"""`weft dictionary`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli.options import OUTPUT
from weft.cli.output import opened, tell, write_line
from weft.errors import ConfigError


def dictionary(
    file: Path = typer.Argument(help="The dictionary: a word, a tab, a translation, a tab and a score per line."),
    data: list[str] = typer.Option(
        [],
        "--data",
        help="Learn it from these texts, which are not translations of each other. Repeatable.",
        metavar="LANG=FILE",
    ),
    adversarial: bool = typer.Option(
        False, "--adversarial", help="Learn the first map against a discriminator, not from words that are spelt alike."
    ),
    best: int = typer.Option(5, "--best", min=1, help="Most translations per word, if it is learnt."),
    gold: Path = typer.Option(None, "--gold", help="Dictionary to compare with: prints the precision of first translations."),
    text: Path = typer.Option(None, "--translate", help="Text to translate word by word."),
    output: Path = OUTPUT,
) -> None:
    """Learn a dictionary from two texts that are not translations of each other, score it, or translate with it.

    The first language that --data names is translated into the second.
    """
    from weft.data.lines import read_lines
    from weft.data.monolingual import open_languages
    from weft.dictionaries.dictionary import Dictionary, learn_dictionary

    if not data and gold is None and text is None:
        raise ConfigError("weft dictionary: give --data to learn a dictionary, --gold to score it or --translate to use it")
    if data:
        source, target = open_languages(data, tell)
        learnt = learn_dictionary(source.lines(), target.lines(), best=best, adversarial=adversarial)[0]
        with opened(file) as out:
            for line in learnt.lines():
                write_line(out, line)
        tell(f"wrote {file}: {len(learnt.entries):,} words of {source.language} with translations into {target.language}")
    known = Dictionary.read(file)
    if gold is not None:
        found = known.precision(Dictionary.read(gold))
        typer.echo(f"precision at 1: {found.percent:.1f} % ({found.right:,} of {found.known:,}; gold: {found.words:,} words)")
    if text is not None:
        with opened(output) as out:
            for line in read_lines(text):
                write_line(out, known.translate(line))
