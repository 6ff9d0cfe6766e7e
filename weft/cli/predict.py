"""`weft predict`, and `weft translate`, its name for translation.

`weft generate`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.options import BEAM, DECODE_SET, DEVICE, FAST, OUTPUT, RUN, TAG, decode_options, runs
from weft.cli.output import Counter, opened, warn, write_line
from weft.errors import ConfigError, DataError
from weft.garbage_collection import paused_at_startup

if TYPE_CHECKING:
    from weft.inference.predictor import Prediction
    from weft.runs.translator import Trained
    from weft.tasks.translation.glossary import Terms


What = StrEnum("What", ["text", "html", "srt", "xliff"])


def predict(
    run: str = RUN,
    text: str = typer.Argument(
        None,
        help="File with one input per line, also .gz or JSON lines, the text itself, a picture or a wav file; default: "
        "standard input, line by line.",
    ),
    output: Path = OUTPUT,
    beam: int = BEAM,
    tag: str = TAG,
    n_best: int = typer.Option(None, "--n-best", help="Outputs per line, as JSON lines."),
    prefix: Path = typer.Option(None, "--prefix", help="File with a forced prefix for each line."),
    glossary: Path = typer.Option(
        None,
        "--glossary",
        help="File with a source term, a tab and a target term per line. The target term is required wherever the source term "
        "occurs or, with ! before it, forbidden.",
    ),
    format: What = typer.Option(What.text, "--format", help="Lines of text, or a whole HTML, SRT or XLIFF document."),
    as_json: bool = typer.Option(False, "--json", help="JSON lines with text, score and tokens instead of plain text."),
    stream: bool = typer.Option(
        False, "--stream", help="Transcribe a wav file or standard input as it comes, each word as soon as it is certain."
    ),
    fast: bool = FAST,
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Run a trained model on a file, a text, or standard input line by line: translations, labels, captions, transcripts, …"""
    with paused_at_startup():
        from weft.cli.input import check_input, open_input
        from weft.data.text_lines import check_file, read_lines
        from weft.inference.worker_processes import cores
        from weft.runs.translator import load_trained
        from weft.tasks.translation.glossary import read_glossary

    options = decode_options(set, beam=beam, tag=tag, n_best=n_best, fast=fast or None)
    check_input(text)
    for read in filter(None, (prefix, glossary)):
        _keep_apart(check_file(read), output)
    known = None if glossary is None else read_glossary(glossary)
    with paused_at_startup():
        trained = load_trained(runs(run), device=device, warn=warn)
    if stream:
        if prefix or glossary or n_best or as_json or format is not What.text:
            raise ConfigError("--stream writes plain text; leave --prefix, --glossary, --n-best, --json and --format out")
        return _listen(trained, text, options, output)
    written = trained.task.data_format
    given = open_input(text, written.inputs, written.suffixes)
    if given.file is not None:
        _keep_apart(given.file, output)
    total = given.count() if output is not None else None
    if format is not What.text:
        if prefix or n_best or as_json:
            raise ConfigError(f"--format {format}: a document has no --prefix, --n-best and --json; leave them out")
        document = _document(text, given.file)
        return _write_translated(trained, document, format, None if known is None else known.terms, options, output)
    lines, terms = given.lines, None
    if known is not None:
        lines, again = tee(lines)
        terms = map(known.terms, again)
    prefixes = None if prefix is None else read_lines(prefix)
    workers = 1 if given.prompts else cores()  # whoever types is answered sooner by all threads than by one worker
    found = trained.stream(lines, prefixes=prefixes, terms=terms, ready=given.ready, auto_workers=workers, **options)
    with opened(output) as target, Counter("done", "lines", shown=output is not None, total=total) as counter:
        for each in found:
            write_line(target, _line(each, as_json or bool(n_best)))
            counter.advance()


def _line(found: Prediction, as_json: bool) -> str:
    return json.dumps(found.document(), ensure_ascii=False) if as_json else found.lines()


def _listen(trained: Trained, text: str | None, options: dict[str, Any], output: Path | None) -> None:
    """Writes the text of a sound as it comes."""
    from weft.tasks.transcription.log_mel import wav_pieces

    rate = trained.config.task.get("rate", 0)
    pieces = wav_pieces(sys.stdin.buffer if text in (None, "-") else str(text), rate)
    with opened(output) as target:
        for part in trained.listen(pieces, **options):
            target.write(part)
            target.flush()
        write_line(target, "")


def _document(text: str | None, file: Path | None) -> str:
    """The document in a file, on the command line or on standard input."""
    from weft.data.text_lines import read_text

    if file is not None:
        return read_text(file)
    return read_text(sys.stdin.buffer, "standard input") if text in (None, "-") else str(text)


def _write_translated(
    trained: Trained,
    text: str,
    format: str,
    terms: Callable[[str], Terms] | None,
    options: dict[str, Any],
    output: Path | None,
) -> None:
    """Writes the translation of a whole document."""
    from weft.inference.worker_processes import cores
    from weft.tasks.translation.documents import open_document

    document = open_document(text, format, trained.config.data.target_language)
    texts, marks = [segment.text for segment in document.segments], [segment.marks for segment in document.segments]
    wishes = None if terms is None else map(terms, texts)
    translated = document.fill(list(trained.stream(texts, terms=wishes, marks=marks, auto_workers=cores(), **options)))
    with opened(output) as target:
        target.write(translated)


def _keep_apart(read: Path, output: Path | None) -> None:
    """Opening a file for writing empties it, so the output must not be one of the inputs."""
    if output is not None and output.exists() and output.samefile(read):
        raise DataError(f"{output}: would be overwritten while it is read; choose another file for the output")


def generate(
    run: str = typer.Argument(help="Folder of a trained language model."),
    prompt: str = typer.Argument(None, help="The beginning of the text; default: standard input."),
    tokens: int = typer.Option(200, "--tokens", min=1, help="Tokens to write."),
    count: int = typer.Option(1, "--count", min=1, help="Texts to write."),
    temperature: float = typer.Option(None, "--temperature", help="Below 1 is safer, above 1 bolder."),
    top_k: int = typer.Option(None, "--top-k", help="Sample among this many of the most probable tokens."),
    top_p: float = typer.Option(None, "--top-p", help="Sample among the likeliest tokens that together have this probability."),
    seed: int = typer.Option(None, "--seed", help="Seed of the samples."),
    beam: int = typer.Option(None, "--beam", help="Beam search instead of sampling; 1 is greedy."),
    output: Path = OUTPUT,
    as_json: bool = typer.Option(False, "--json", help="JSON lines with prompt, text and score."),
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Continue a text with a language model. Prints the prompt and its continuation, token by token."""
    from weft.runs.translator import load_generator

    options = decode_options(set, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, beam=beam)
    beginning = _read() if prompt in (None, "-") else prompt
    generator = load_generator(run, device=device)
    streams = count == 1 and not as_json
    with opened(output) as target:

        def write(text: str) -> None:
            target.write(text)
            target.flush()

        if streams:
            write(beginning)
        found = generator.generate(beginning, tokens=tokens, count=count, hear=write if streams else None, **options)
        if as_json:
            for each in found:
                write(json.dumps(each.document(), ensure_ascii=False) + "\n")
        else:
            write("\n" if streams else "\n---\n".join(each.prompt + each.text for each in found) + "\n")


def _read() -> str:
    if sys.stdin.isatty():
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input: byte {error.start} is not UTF-8; convert the text first") from None
