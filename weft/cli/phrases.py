"""`weft phrases`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import typer

from weft.cli.input_and_output import Counter, check_kept, opened, tell, write_line
from weft.cli.options import OUTPUT
from weft.errors import ConfigError, DataError

CHUNK = 512
"""Lines that are translated together."""


def phrases(
    folder: Path = typer.Argument(help="Folder for what is learnt: a phrase table of each direction, as tables of text."),
    data: list[str] = typer.Option(
        [], help="Learn from these texts, which are not translations of each other. Repeatable.", metavar="LANG=FILE"
    ),
    rounds: int = typer.Option(2, min=0, help="Rounds of back-translation, when learning."),
    adversarial: bool = typer.Option(
        False, "--adversarial", help="Learn the first map against a discriminator, not from words that are spelt alike."
    ),
    text: Path = typer.Option(None, "--translate", help="Text to translate, a sentence per line."),
    into: str = typer.Option(None, "--into", help="Language to translate into; default: the second one that was learnt."),
    output: Path = OUTPUT,
) -> None:
    """Learn to translate by phrases from two texts that are not translations of each other, or translate with them.

    Learns both directions; --set task.phrase_rounds=2 does the same for the task unsupervised.
    """
    from weft.data.phrases.phrase_translation import ABOUT, PhraseTranslator, learn_phrases
    from weft.data.text_lines import read_lines
    from weft.tasks.unsupervised.data import open_languages, split_language

    if not data and text is None:
        raise ConfigError("weft phrases: give --data to learn phrases, or --translate to use them")
    if text is not None:
        check_kept(output, text, *(Path(split_language(spec)[1]) for spec in data))
    if data:
        first, second = open_languages(data, tell)
        names = first.language, second.language
        learnt = learn_phrases(names, (first.lines(), second.lines()), rounds=rounds, adversarial=adversarial, report=tell)
        learnt.save(folder)
        sizes = [sum(map(len, table.entries.values())) for table in learnt.tables]
        tell(f"wrote {folder}: {sizes[1]:,} pairs of phrases into {names[1]}, {sizes[0]:,} into {names[0]}")
    if text is not None:
        if not (folder / ABOUT).exists():
            raise DataError(f"{folder}: there are no phrases in it; learn some with weft phrases {folder} --data LANG=FILE")
        known = PhraseTranslator.load(folder)
        chosen = into or known.languages[1].name
        with opened(output) as out, Counter("translated", "lines", shown=output is not None) as counter:
            lines = iter(read_lines(text))
            while some := list(islice(lines, CHUNK)):
                for line in known.translate(some, chosen):
                    write_line(out, line)
                    counter.advance()
