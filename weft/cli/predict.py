"""`weft predict`, which is also `weft translate`, and `weft generate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from itertools import repeat, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from weft.cli.documents import Format, content, format_of, translate_document
from weft.cli.input_and_output import Counter, check_kept, opened, tell, warn, write_line
from weft.cli.memory_lookup import Lookup, memory_lookup
from weft.cli.options import (
    ACTORS,
    BEAM,
    DECODE_SET,
    DEVICE,
    ENGINE,
    FAST,
    OUTPUT,
    RUN,
    SHARD,
    TAG,
    check_engine,
    decode_options,
    parse_share,
)
from weft.cli.predict_in_shards import predict_in_shards, work_of
from weft.errors import ConfigError, DataError
from weft.garbage_collection import paused_at_startup
from weft.runs.run_folder import run_folders

if TYPE_CHECKING:
    from weft.cli.input_and_output import Input
    from weft.runs.trained_model import Trained
    from weft.tasks.translation.glossary import Terms


LIST = "list.tsv"
"""The list of the files in a folder of outputs."""

NO_SHARDS = "name both, without --prefix, --memory, --quality and --stream"
NOT_LIVE = "--prefix, --glossary, --memory, --quality, --n-best, --json and --format"

INPUT = typer.Argument(
    None,
    help="File with one input per line, also .gz or JSON lines, the text itself, an image or a wav file; default: standard "
    "input, line by line.",
)
GLOSSARY = typer.Option(
    None,
    help="File with a source term, a tab and a target term per line. The target term is required wherever the source term "
    "occurs or, with ! before it, forbidden.",
)
MEMORY = typer.Option(
    [],
    "--memory",
    help="Translation memory: a .tmx, .tsv or any other data. Its exact matches are the translations; similar ones "
    "are reported. Repeatable; the last one counts.",
    metavar="FILE",
)
QUALITY = typer.Option(
    None, "--quality", help="Run of the task quality; JSON lines and XLIFF then have the confidence in each text and word."
)
FORMAT = typer.Option(
    None, help="Lines of text, or a whole document; default: by the end of the file's name, such as .html, else text."
)
STREAM = typer.Option(
    False, "--stream", help="Transcribe a wav file or standard input as it comes, each word as soon as it is certain."
)


def predict(
    run: str = RUN,
    text: str = INPUT,
    output: Path = OUTPUT,
    beam: int = BEAM,
    tag: str = TAG,
    n_best: int = typer.Option(None, help="Outputs per line, as JSON lines."),
    prefix: Path = typer.Option(None, help="File with a forced prefix for each line."),
    glossary: Path = GLOSSARY,
    memory: list[str] = MEMORY,
    quality: str = QUALITY,
    format: Format = FORMAT,
    as_json: bool = typer.Option(False, "--json", help="JSON lines with source, text, score and tokens instead of plain text."),
    stream: bool = STREAM,
    shard: str = SHARD,
    engine: str = ENGINE,
    actors: int = ACTORS,
    fast: bool = FAST,
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Run a trained model on a file, a text, or standard input line by line: translations, labels, captions, transcripts, …"""
    with paused_at_startup():
        from weft.cli.input_and_output import check_input, is_raw, open_input
        from weft.data.text_lines import check_file, read_lines
        from weft.runs.translator import load_trained
        from weft.tasks.translation.glossary import read_glossary

    options = decode_options(set, beam=beam, tag=tag, n_best=n_best, fast=fast or None)
    check_input(text)
    check_kept(output, *map(check_file, filter(None, (prefix, glossary))))
    check_engine(engine, actors, shard)
    as_json, lines = as_json or bool(n_best), format in (None, Format.text)
    if shard or engine:
        if text is None or output is None or not lines or stream or prefix or memory or quality:
            raise ConfigError(f"--shard and --engine read lines of a file and write one: {NO_SHARDS}")
        work = work_of(run, Path(str(text)), output, glossary, as_json, device, options)
        return predict_in_shards(work, share=parse_share(shard), engine=engine, actors=actors)
    terms_of = None if glossary is None else read_glossary(glossary).terms
    with paused_at_startup():
        trained = load_trained(run_folders(run), device=device, warn=warn)
    if stream:
        if prefix or glossary or memory or quality or as_json or not lines:
            raise ConfigError(f"--stream writes plain text; leave {NOT_LIVE} out")
        return _write_live(trained.listen(sys.stdin.buffer if text in (None, "-") else text, **options), output)
    written = trained.task.data_format
    source = open_input(text, read_lines if is_raw(text, format is Format.text) else written.inputs, written.suffixes)
    check_kept(output, *filter(None, (source.file,)))
    format = format or Format(format_of(trained.task, source.file))
    if format is not Format.text and (prefix or as_json):
        advice = "leave them out, or translate lines with --format text"
        raise ConfigError(f"--format {format}: a document has no --prefix, --n-best and --json; {advice}")
    estimator = _open_estimator(quality, as_json or format is Format.xliff, device)
    with memory_lookup(trained, memory, **options) as lookup:
        if format is not Format.text:
            document = content(text, source.file), str(source.file or "standard input"), format
            return translate_document(trained, *document, terms_of, output, lookup, estimator, **options)
        options |= {"prefixes": None if prefix is None else read_lines(prefix), "as_json": as_json}
        _write_predictions(trained, source, terms_of, output, lookup=lookup, estimator=estimator, **options)


def _write_predictions(
    trained: Trained,
    source: Input,
    terms_of: Callable[[str], Terms] | None,
    output: Path | None,
    *,
    as_json: bool,
    lookup: Lookup | None,
    estimator: Trained | None,
    **options: Any,
) -> None:
    """Writes the predictions for the inputs, as they come: a line for each, with its input if it is JSON, or files."""
    from weft.worker_processes import cores

    if trained.task.info.output_suffix and not as_json:
        return _write_files(trained, source.lines, output, terms=terms_of, **options)
    lines, terms, matches = source.lines, None, None
    inputs: Iterable[str] = repeat("")
    if as_json:
        lines, inputs = tee(lines)
    if terms_of is not None:
        lines, again = tee(lines)
        terms = map(terms_of, again)
    if lookup is not None:
        lines, again = tee(lines)
        matches = map(lookup.find, again)
    workers = 1 if source.prompts else cores()  # whoever types is answered sooner by all threads than by one worker
    predictions = trained.stream(lines, terms=terms, matches=matches, ready=source.ready, auto_workers=workers, **options)
    if estimator is not None:
        from weft.runs.translation_confidence import judged

        inputs, again = tee(inputs)
        predictions = judged(estimator, again, predictions, source.ready)
    total = source.count() if output is not None else None
    with opened(output) as target, Counter("done", "lines", shown=output is not None, total=total) as counter:
        for each, line in zip(predictions, inputs):
            if lookup is not None:
                lookup.count([each])
            plain = {"source": line, **each.document()}
            write_line(target, json.dumps(plain, ensure_ascii=False) if as_json else each.lines())
            counter.advance()


def _open_estimator(run: str | None, shown: bool, device: str) -> Trained | None:
    """The run of --quality. shown: whether the output has a place for a confidence."""
    if run is None:
        return None
    from weft.runs.translation_confidence import load_estimator

    if not shown:
        raise ConfigError("--quality: plain text has no place for a confidence; add --json, or translate an XLIFF file")
    return load_estimator(run_folders(run), device, warn)


def _write_files(
    trained: Trained, lines: Iterable[str], output: Path | None, *, prefixes: object, terms: object, **options: Any
) -> None:
    """Writes outputs that are files: a single one to `output`, several into a folder, with a list of them."""
    if prefixes or terms:
        raise ConfigError("a spoken text has no --prefix and no --glossary; leave them out")
    suffix, texts = trained.task.info.output_suffix, [" ".join(line.split()) for line in lines]
    count = sum(map(bool, texts))
    if output is None:
        raise ConfigError(f"the outputs are no text; give a file, such as -o output{suffix}, a folder for several, or --json")
    if not count:
        raise DataError("there is nothing to say in an empty input; give a text")
    single = output.suffix.lower() == suffix
    if single and count > 1:
        raise ConfigError(f"{output}: there are {count:,} texts, and a file holds one; give a folder, such as -o {output.stem}")
    if not single and (output.is_file() or (output.suffix and not output.is_dir())):
        raise ConfigError(f"{output}: end the file name in {suffix}, or give a folder")
    predictions = zip(texts, trained.stream(texts, **options), strict=True)
    if single:
        with opened(output) as target:
            cast(Any, target).buffer.writelines(each.content() for text, each in predictions if text)
        return
    output.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (text, each) in enumerate(predictions, start=1):
        if text:
            name = f"{number:0{len(str(len(texts)))}}{suffix}"
            (output / name).write_bytes(each.content())
            rows.append(f"{text}\t{name}\n")
    with opened(output / LIST) as target:
        target.writelines(rows)
    tell(f"{output / LIST}: {len(rows):,} files")


def _write_live(parts: Iterable[str], output: Path | None) -> None:
    """Writes the parts of a text as they come."""
    with opened(output) as target:
        for part in parts:
            target.write(part)
            target.flush()
        write_line(target, "")


def _read(text: str | None) -> str:
    """The text on the command line or of standard input."""
    from weft.data.text_lines import read_text

    return read_text(sys.stdin.buffer, "standard input") if text in (None, "-") else str(text)


def generate(
    run: str = typer.Argument(help="Folder of a trained language model."),
    prompt: str = typer.Argument(None, help="The beginning of the text; default: standard input."),
    tokens: int = typer.Option(200, min=1, help="Tokens to write."),
    count: int = typer.Option(1, min=1, help="Texts to write."),
    temperature: float = typer.Option(None, help="Sampling temperature: below 1 is more conservative, above 1 more diverse."),
    top_k: int = typer.Option(None, help="Sample among this many of the most probable tokens."),
    top_p: float = typer.Option(None, help="Sample among the likeliest tokens that together have this probability."),
    seed: int = typer.Option(None, help="Seed of the samples."),
    beam: int = typer.Option(None, help="Beam search instead of sampling; 1 is greedy."),
    output: Path = OUTPUT,
    as_json: bool = typer.Option(False, "--json", help="JSON lines with prompt, text and score."),
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Continue a text with a language model. Prints the prompt and its continuation, token by token."""
    from weft.runs.translator import load_generator

    options = decode_options(set, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, beam=beam)
    beginning = "" if prompt in (None, "-") and sys.stdin.isatty() else _read(prompt)
    generator = load_generator(run, device=device)
    streams = count == 1 and not as_json
    with opened(output) as target:

        def write(text: str) -> None:
            target.write(text)
            target.flush()

        if streams:
            write(beginning)
        texts = generator.generate(beginning, tokens=tokens, count=count, hear=write if streams else None, **options)
        if as_json:
            for each in texts:
                write(json.dumps(each.document(), ensure_ascii=False) + "\n")
        else:
            write("\n" if streams else "\n---\n".join(each.prompt + each.text for each in texts) + "\n")
