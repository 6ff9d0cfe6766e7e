"""`weft predict`, which is also `weft translate`, and `weft generate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import repeat, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from weft.cli.input_and_output import Counter, check_kept, opened, warn, write_line
from weft.cli.options import BEAM, DECODE_SET, DEVICE, FAST, OUTPUT, RUN, TAG, decode_options
from weft.errors import ConfigError
from weft.file_access import plain_name
from weft.garbage_collection import paused_at_startup
from weft.runs.run_folder import run_folders

if TYPE_CHECKING:
    from weft.cli.input_and_output import Input
    from weft.runs.trained_model import Trained
    from weft.tasks.translation.glossary import Terms


Format = StrEnum("Format", ["text", "html", "markdown", "srt", "vtt", "xliff", "tmx", "docx", "po", "csv"])


def predict(
    run: str = RUN,
    text: str = typer.Argument(
        None,
        help="File with one input per line, also .gz or JSON lines, the text itself, an image or a wav file; default: "
        "standard input, line by line.",
    ),
    output: Path = OUTPUT,
    beam: int = BEAM,
    tag: str = TAG,
    n_best: int = typer.Option(None, help="Outputs per line, as JSON lines."),
    prefix: Path = typer.Option(None, help="File with a forced prefix for each line."),
    glossary: Path = typer.Option(
        None,
        help="File with a source term, a tab and a target term per line. The target term is required wherever the source term "
        "occurs or, with ! before it, forbidden.",
    ),
    format: Format = typer.Option(
        None, help="Lines of text, or a whole document; default: by the end of the file's name, such as .html, else text."
    ),
    as_json: bool = typer.Option(False, "--json", help="JSON lines with source, text, score and tokens instead of plain text."),
    stream: bool = typer.Option(
        False, "--stream", help="Transcribe a wav file or standard input as it comes, each word as soon as it is certain."
    ),
    fast: bool = FAST,
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Run a trained model on a file, a text, or standard input line by line: translations, labels, captions, transcripts, …"""
    with paused_at_startup():
        from weft.cli.input_and_output import check_input, open_input
        from weft.data.text_lines import check_file, read_lines
        from weft.runs.translator import load_trained
        from weft.tasks.translation.glossary import read_glossary

    options = decode_options(set, beam=beam, tag=tag, n_best=n_best, fast=fast or None)
    check_input(text)
    check_kept(output, *map(check_file, filter(None, (prefix, glossary))))
    terms_of = None if glossary is None else read_glossary(glossary).terms
    with paused_at_startup():
        trained = load_trained(run_folders(run), device=device, warn=warn)
    if stream:
        if prefix or glossary or n_best or as_json or format not in (None, Format.text):
            raise ConfigError("--stream writes plain text; leave --prefix, --glossary, --n-best, --json and --format out")
        return _write_live(trained.listen(sys.stdin.buffer if text in (None, "-") else text, **options), output)
    written = trained.task.data_format
    source = open_input(text, read_lines if _is_raw(text, format) else written.inputs, written.suffixes)
    if source.file is not None:
        check_kept(output, source.file)
    format = format or Format(_format_of(trained, source.file))
    if format is not Format.text:
        if prefix or n_best or as_json:
            raise ConfigError(
                f"--format {format}: a document has no --prefix, --n-best and --json; leave them out, or translate lines with "
                "--format text"
            )
        name = str(source.file or "standard input")
        return _translate_document(trained, _content(text, source.file), name, format, terms_of, output, **options)
    prefixes = None if prefix is None else read_lines(prefix)
    _write_predictions(trained, source, terms_of, output, as_json=as_json or bool(n_best), prefixes=prefixes, **options)


def _write_predictions(
    trained: Trained,
    source: Input,
    terms_of: Callable[[str], Terms] | None,
    output: Path | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Writes the predictions for the inputs, as they come: a line for each, with its input if it is JSON."""
    from weft.decoding.worker_processes import cores

    lines, terms = source.lines, None
    inputs: Iterable[str] = repeat("")
    if as_json:
        lines, inputs = tee(lines)
    if terms_of is not None:
        lines, again = tee(lines)
        terms = map(terms_of, again)
    workers = 1 if source.prompts else cores()  # whoever types is answered sooner by all threads than by one worker
    predictions = trained.stream(lines, terms=terms, ready=source.ready, auto_workers=workers, **options)
    total = source.count() if output is not None else None
    with opened(output) as target, Counter("done", "lines", shown=output is not None, total=total) as counter:
        for each, line in zip(predictions, inputs):
            plain = {"source": line, **each.document()}
            write_line(target, json.dumps(plain, ensure_ascii=False) if as_json else each.lines())
            counter.advance()


def _write_live(parts: Iterable[str], output: Path | None) -> None:
    """Writes the parts of a text as they come."""
    with opened(output) as target:
        for part in parts:
            target.write(part)
            target.flush()
        write_line(target, "")


def _is_raw(text: str | None, format: Format | None) -> bool:
    """Whether the lines of a file are to be read as they are, although the end of its name says that it has a structure."""
    from weft.data.formats import has_file_format

    return format is Format.text and has_file_format(text or "")


def _format_of(trained: Trained, file: Path | None) -> str:
    """The format of a file to translate by the end of its name. Raises an error for formats that weft does not read."""
    from weft.tasks.translation.documents import OTHER_DOCUMENTS, SUFFIXES
    from weft.tasks.translation.task import TranslationTask

    if file is None or not isinstance(trained.task, TranslationTask):
        return Format.text
    suffix = Path(plain_name(file.name)).suffix.lower()
    if suffix in OTHER_DOCUMENTS:
        raise ConfigError(
            f"{file}: weft does not read {suffix} files, and their lines are not sentences. Convert it to .docx, .html, .xliff "
            "or text with one sentence per line; or translate its lines as they are, with --format text"
        )
    return Format.docx if suffix == ".docx" else SUFFIXES.get(suffix, Format.text)


def _read(text: str | None) -> str:
    """The text on the command line or of standard input."""
    from weft.data.text_lines import read_text

    return read_text(sys.stdin.buffer, "standard input") if text in (None, "-") else str(text)


def _content(text: str | None, file: Path | None) -> bytes:
    """The content of a file, of the text on the command line or of standard input."""
    from weft.data.text_lines import open_file

    if file is not None:
        with open_file(file) as opened:
            return opened.read()
    return sys.stdin.buffer.read() if text in (None, "-") else str(text).encode()


def _translate_document(
    trained: Trained,
    content: bytes,
    name: str,
    format: Format,
    terms_of: Callable[[str], Terms] | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Writes the translation of a whole document."""
    from weft.decoding.worker_processes import cores
    from weft.tasks.translation.documents import open_content

    if format is Format.docx and output is None:
        raise ConfigError("a translated Word document is not text; give a file for it, such as -o translated.docx")
    file = open_content(content, format, trained.config.data.target_language, name)
    texts, marks = ([getattr(segment, part) for segment in file.document.segments] for part in ("text", "marks"))
    terms = None if terms_of is None else map(terms_of, texts)
    answers = list(trained.stream(texts, terms=terms, marks=marks, auto_workers=cores(), **options))
    with opened(output) as target:
        if format is Format.docx:
            cast(Any, target).buffer.write(file.filled(answers))
        else:
            target.write(file.filled(answers).decode())


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
