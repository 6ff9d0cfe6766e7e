"""`weft dictionary` and `weft vectors`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli.options import OUTPUT
from weft.cli.output import check_kept, opened, tell, write_line
from weft.errors import ConfigError, DataError


def dictionary(
    file: Path = typer.Argument(help="The dictionary: a word, a tab, a translation, a tab and a score per line."),
    data: list[str] = typer.Option(
        [], help="Learn it from these texts, which are not translations of each other. Repeatable.", metavar="LANG=FILE"
    ),
    adversarial: bool = typer.Option(
        False, "--adversarial", help="Learn the first map against a discriminator, not from words that are spelt alike."
    ),
    best: int = typer.Option(5, min=1, help="Most translations per word, if it is learnt."),
    gold: Path = typer.Option(None, help="Dictionary to compare with: prints the precision of first translations."),
    text: Path = typer.Option(None, "--translate", help="Text to translate word by word."),
    output: Path = OUTPUT,
) -> None:
    """Learn a dictionary from two texts that are not translations of each other, score it, or translate with it.

    The first language that --data names is translated into the second.
    """
    from weft.data.text_lines import read_lines
    from weft.data.word_vectors.bilingual_dictionary import Dictionary, learn_dictionary
    from weft.tasks.unsupervised.data import open_languages, split_language

    if not data and gold is None and text is None:
        raise ConfigError("weft dictionary: give --data to learn a dictionary, --gold to score it or --translate to use it")
    inputs = [*(Path(split_language(spec)[1]) for spec in data), *(path for path in (gold, text) if path is not None)]
    check_kept(output, file, *inputs)
    if data:
        check_kept(file, *inputs)
        source, target = open_languages(data, tell)
        learnt = learn_dictionary(source.lines(), target.lines(), best=best, adversarial=adversarial)[0]
        with opened(file) as out:
            for line in learnt.lines():
                write_line(out, line)
        tell(f"wrote {file}: {len(learnt.entries):,} words of {source.language} with translations into {target.language}")
    known = Dictionary.read(file)
    if gold is not None:
        found = known.precision(Dictionary.read(gold))
        if not found.known:
            raise DataError(
                f"{gold}: {file} translates none of its {found.words:,} words, so there is nothing to compare; check that both "
                "translate from the same language"
            )
        typer.echo(f"precision at 1: {found.percent:.1f} % ({found.right:,} of {found.known:,}; gold: {found.words:,} words)")
    if text is not None:
        with opened(output) as out:
            for line in read_lines(text):
                write_line(out, known.translate(line))


def vectors(
    texts: list[str] = typer.Argument(help="Text files, one sentence or paragraph per line, also .gz."),
    output: Path = typer.Option(..., "-o", "--output", help="File to write, in the text format of word2vec, also .gz."),
    width: int = typer.Option(256, min=1, help="Dimensions of a vector."),
    window: int = typer.Option(10, min=1, help="Distance up to which words are each other's contexts."),
    most: int = typer.Option(20_000, min=2, help="Most words; the most frequent ones are kept."),
    least: int = typer.Option(2, min=1, help="How often a word must occur."),
    spaces: bool = typer.Option(
        False, "--spaces", help="Split at spaces only, as data.tokenizer={kind: words, punctuation: false} does."
    ),
) -> None:
    """Learn word vectors from plain text, for start.vectors.

    Words are in lower case.
    """
    from weft.data.text_lines import read_lines
    from weft.data.tokenizers.word_character_byte import JOINED
    from weft.data.word_vectors.vectors import learn_vectors, vector_lines

    lines = [line for text in texts for line in read_lines(text)]
    learnt = learn_vectors(lines, most=most, least=least, window=window, width=width, power=0.5, punctuation=not spaces)
    rows = [row for row, word in enumerate(learnt.words) if JOINED not in word]  # punctuation that touches a word is no word
    with opened(output) as out:
        for line in vector_lines([learnt.words[row] for row in rows], learnt.vectors[rows]):
            write_line(out, line)
    tell(f"wrote {output}: vectors of {len(rows):,} words, {learnt.vectors.shape[1]} dimensions")
