"""Whole documents as the input of `weft translate`: their format, and the file with their translation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from weft.cli.input_and_output import opened
from weft.cli.memory_lookup import Lookup
from weft.errors import ConfigError
from weft.file_access import plain_name

if TYPE_CHECKING:
    from weft.runs.trained_model import Trained
    from weft.tasks.base import Task
    from weft.tasks.translation.glossary import Terms


Format = StrEnum("Format", ["text", "html", "markdown", "srt", "vtt", "xliff", "tmx", "docx", "po", "csv"])


def format_of(task: Task, file: Path | None) -> str:
    """The format of a file to translate by the end of its name. Raises an error for formats that weft does not read."""
    from weft.tasks.translation.task import TranslationTask

    if file is None or not isinstance(task, TranslationTask):
        return Format.text
    from weft.tasks.translation.documents import OTHER_DOCUMENTS, SUFFIXES

    suffix = Path(plain_name(file.name)).suffix.lower()
    if suffix in OTHER_DOCUMENTS:
        raise ConfigError(
            f"{file}: weft does not read {suffix} files, and their lines are not sentences. Convert it to .docx, .html, .xliff "
            "or text with one sentence per line; or translate its lines as they are, with --format text"
        )
    return Format.docx if suffix == ".docx" else SUFFIXES.get(suffix, Format.text)


def content(text: str | None, file: Path | None) -> bytes:
    """The content of a file, of the text on the command line or of standard input."""
    from weft.data.text_lines import open_file

    if file is not None:
        with open_file(file) as opened:
            return opened.read()
    return sys.stdin.buffer.read() if text in (None, "-") else str(text).encode()


def translate_document(
    trained: Trained,
    content: bytes,
    name: str,
    format: Format,
    terms_of: Callable[[str], Terms] | None,
    output: Path | None,
    lookup: Lookup | None = None,
    estimator: Trained | None = None,
    **options: Any,
) -> None:
    """Writes the translation of a whole document. estimator: a run of the task quality that says how good translations are."""
    from weft.data.sentence_splitting import language_of
    from weft.runs.translation_confidence import judged
    from weft.tasks.translation.documents import open_content
    from weft.worker_processes import cores

    if format is Format.docx and output is None:
        raise ConfigError("a translated Word document is not text; give a file for it, such as -o translated.docx")
    data = trained.config.data
    language = language_of(data.target_language, data.files, 1) if format is Format.tmx else data.target_language
    file = open_content(content, format, language, name)
    segments = [each if lookup is None else each.recalled(lookup.find) for each in file.document.segments]
    texts, marks = ([getattr(segment, part) for segment in segments] for part in ("text", "marks"))
    terms = None if terms_of is None else map(terms_of, texts)
    matches = None if lookup is None else map(lookup.find, texts)
    answers = list(trained.stream(texts, terms=terms, marks=marks, matches=matches, auto_workers=cores(), **options))
    if estimator is not None:
        answers = list(judged(estimator, texts, answers))
    if lookup is not None:
        lookup.count(answers)
    with opened(output) as target:
        if format is Format.docx:
            cast(Any, target).buffer.write(file.filled(answers))
        else:
            target.write(file.filled(answers).decode())
