"""`weft vectors`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli.output import opened, tell, write_line


def vectors(
    texts: list[str] = typer.Argument(help="Text files, one sentence or paragraph per line, also .gz."),
    output: Path = typer.Option(..., "-o", "--output", help="File to write, in the text format of word2vec, also .gz."),
    width: int = typer.Option(256, "--width", min=1, help="Dimensions of a vector."),
    window: int = typer.Option(10, "--window", min=1, help="Distance up to which words are each other's contexts."),
    most: int = typer.Option(20_000, "--most", min=2, help="Most words; the most frequent ones are kept."),
    least: int = typer.Option(2, "--least", min=1, help="How often a word must occur."),
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
