"""`weft align`, `weft dictionary` and `weft vectors`: commands on words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Column, Table

from weft.cli.input_and_output import Counter, check_kept, opened, tell, write_line
from weft.cli.options import DEVICE, OUTPUT, PAIRS, RUN
from weft.errors import ConfigError, DataError
from weft.runs.run_folder import run_folders

if TYPE_CHECKING:
    from weft.explain.explanation import AttentionMap
    from weft.tasks.translation.predictor import TranslationPredictor
    from weft.tasks.translation.word_alignment import Agreement, Gold, Link


def align(
    run: str = RUN,
    data: str = typer.Option(..., help=f"Pairs to align: {PAIRS}.", metavar="FILES"),
    gold: Path = typer.Option(None, help="File with gold links, one line per pair: 3-5 sure, 3p5 possible."),
    layer: int = typer.Option(
        None, help="The layer whose links are written, counted from 1; default: the last but one, or the only one."
    ),
    output: Path = OUTPUT,
    as_json: bool = typer.Option(False, "--json", help="Scores as a JSON document on standard error."),
    device: str = DEVICE,
) -> None:
    """Align the words of pairs by the model's attention, in Pharaoh format: `i-j` for source word i and target word j, from 0.

    Words are separated by spaces. With --gold, prints the alignment error rate (AER) of every layer.
    """
    from weft.data.formats import open_pairs
    from weft.runs.translator import load
    from weft.tasks.translation.attention_alignment import usual_layer
    from weft.tasks.translation.word_alignment import agreement, pharaoh

    pairs = list(open_pairs(data))
    wanted = None if gold is None else _gold(gold, len(pairs))
    predictor = load(run_folders(run), device=device).translation_predictor("align")
    rows: list[list[tuple[AttentionMap, set[Link]]]] = []
    names: list[str] = []
    with opened(output) as target, Counter("aligned", "pairs", shown=output is not None, total=len(pairs)) as counter:
        for layers in _aligned(predictor, pairs, data):
            rows.append(layers)
            names = names or [f"{attention.title} ({attention.kind}, {attention.how})" for attention, _ in layers]
            chosen = usual_layer(len(layers)) if layer is None else layer - 1
            if layers and not 0 <= chosen < len(layers):
                raise ConfigError(f"--layer {layer}: {len(layers)} layers attend to the source, counted from 1")
            write_line(target, pharaoh(layers[chosen][1]) if layers else "")
            counter.advance()
    if wanted is not None:
        _show({name: agreement([row[k][1] if row else set() for row in rows], wanted) for k, name in enumerate(names)}, as_json)


def _aligned(
    predictor: TranslationPredictor, pairs: list[tuple[str, str]], data: str
) -> Iterator[list[tuple[AttentionMap, set[Link]]]]:
    """The links of each layer for every pair; none if a side is blank."""
    from weft.tasks.translation.word_alignment import align

    for number, (source, written) in enumerate(pairs, start=1):
        try:
            yield align(predictor, source, written) if source.strip() and written.strip() else []
        except DataError as error:
            raise DataError(f"{data}, pair {number:,}: {error}") from None


def _gold(file: Path, count: int) -> list[Gold]:
    from weft.data.text_lines import read_lines
    from weft.tasks.translation.word_alignment import parse_gold

    links = [parse_gold(line, f"{file}, line {number:,}") for number, line in enumerate(read_lines(file), start=1)]
    if len(links) != count:
        raise DataError(f"{file} has {len(links):,} lines, and there are {count:,} pairs; there must be one for each")
    return links


def _show(scores: dict[str, Agreement], as_json: bool) -> None:
    if as_json:
        tell(json.dumps({name: asdict(each) for name, each in scores.items()}, indent=2))
        return
    numbers = (Column(heading, justify="right") for heading in ("AER", "precision", "recall"))
    table = Table("layer", *numbers, title="agreement with gold links", title_justify="left")
    for name, each in scores.items():
        table.add_row(name, *(f"{value:.4f}" for value in (each.aer, each.precision, each.recall)))
    Console(stderr=True).print(table)


def dictionary(
    file: Path = typer.Argument(help="The dictionary: a word, a tab, a translation, a tab and a score per line."),
    data: list[str] = typer.Option(
        [], help="Learn it from these texts, which are not translations of each other. Repeatable.", metavar="LANG=FILE"
    ),
    adversarial: bool = typer.Option(
        False, "--adversarial", help="Learn the first map against a discriminator, not from words that are spelt alike."
    ),
    best: int = typer.Option(5, min=1, help="Maximum number of translations per word, when learning."),
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
    most: int = typer.Option(20_000, min=2, help="Maximum number of words; the most frequent ones are kept."),
    least: int = typer.Option(2, min=1, help="Minimum number of occurrences of a word."),
    spaces: bool = typer.Option(
        False, "--spaces", help="Split at spaces only, as data.tokenizer={kind: words, punctuation: false} does."
    ),
) -> None:
    """Learn word vectors from plain text, for start.vectors.

    Words are in lower case.
    """
    from weft.data.text_lines import read_lines
    from weft.data.word_vectors.vectors import learn_vectors, vector_lines, whole_words

    lines = [line for text in texts for line in read_lines(text)]
    learnt = learn_vectors(lines, most=most, least=least, window=window, width=width, power=0.5, punctuation=not spaces)
    rows = whole_words(learnt.words)
    with opened(output) as out:
        for line in vector_lines([learnt.words[row] for row in rows], learnt.vectors[rows]):
            write_line(out, line)
    tell(f"wrote {output}: vectors of {len(rows):,} words, {learnt.vectors.shape[1]} dimensions")
