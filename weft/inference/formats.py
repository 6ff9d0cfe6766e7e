"""The formats of texts that can be translated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from weft.errors import ConfigError
from weft.inference.documents import Document, html, plain_text
from weft.inference.joining import Translation
from weft.inference.terms import Terms
from weft.inference.xliff import xliff

Format = Literal["text", "html", "xliff"]
FORMATS: dict[str, Callable[[str, str | None], Document]] = {
    "text": lambda text, language: plain_text(text),
    "html": lambda text, language: html(text),
    "xliff": xliff,
}


def open_document(text: str, format: str, language: str | None = None) -> Document:
    """The document of a text in this format. `language` is the target language, if it is known."""
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    return FORMATS[format](text, language)


def fill_all(documents: Sequence[Document], answers: Iterable[Any]) -> list[Translation]:
    """The translated documents. `answers` are the translations of the segments of all of them, in order."""
    remaining = iter(answers)
    return [document.filled([next(remaining) for _ in document.segments]) for document in documents]


def translate_documents(
    stream: Callable[..., Iterator[Any]],
    texts: Sequence[str],
    format: str,
    terms: Sequence[Terms] | None = None,
    language: str | None = None,
) -> list[Translation]:
    """Translates documents by `Trained.stream`, all segments together. terms: those of each document."""
    documents = [open_document(text, format, language) for text in texts]
    groups = [[segment.text for segment in document.segments] for document in documents]
    wishes = None if terms is None else [each for wish, group in zip(terms, groups, strict=True) for each in wish.among(group)]
    marks = [segment.marks for document in documents for segment in document.segments]
    return fill_all(documents, stream([text for group in groups for text in group], terms=wishes, marks=marks))
