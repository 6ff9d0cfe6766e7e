"""Documents that can be translated: text, HTML, Markdown, XLIFF, TMX, Word, subtitles, gettext catalogs and tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from weft.data.text_lines import decode_text
from weft.errors import ConfigError, DataError
from weft.tasks.translation.documents.catalogs_and_tables import Write, read_catalog, read_table
from weft.tasks.translation.documents.docx import WordDocument
from weft.tasks.translation.documents.html import (
    Document,
    entries_document,
    html_document,
    srt_document,
    text_document,
    vtt_document,
)
from weft.tasks.translation.documents.markdown import markdown_document
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.segmenter import Translation


def _xliff(text: str, language: str | None) -> Document:
    from weft.tasks.translation.documents.xliff import xliff_document  # its parser takes time to import, and few need it

    return xliff_document(text, language)


def _tmx(text: str, language: str | None) -> Document:
    from weft.tasks.translation.documents.tmx import tmx_document

    return tmx_document(text, language)


Format = Literal["text", "html", "srt", "vtt", "xliff", "markdown", "tmx"]
FORMATS: dict[str, Callable[[str, str | None], Document]] = {
    "text": lambda text, language: text_document(text),
    "html": lambda text, language: html_document(text),
    "srt": lambda text, language: srt_document(text),
    "vtt": lambda text, language: vtt_document(text),
    "xliff": _xliff,
    "markdown": lambda text, language: markdown_document(text),
    "tmx": _tmx,
}

SEPARATOR = "\x1e"
"""Separates the texts of a catalog or a table, as a line break would: the ASCII code for this."""

STRUCTURES: dict[str, Callable[[bytes, str], tuple[list[str], Write]]] = {"po": read_catalog, "csv": read_table}
"""Formats whose files are texts in a structure."""

SUFFIXES = {
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
    ".srt": "srt",
    ".vtt": "vtt",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".md": "markdown",
    ".markdown": "markdown",
    ".tmx": "tmx",
    ".po": "po",
    ".pot": "po",
    ".csv": "csv",
}
"""Formats of files by the ends of their names. Word documents (.docx) can be translated, too."""

OTHER_NAMES = """
.ass .doc .epub .idml .json .odp .ods .odt .pdf .pptx .properties .resx .rtf .ssa .strings .tex .ts
.xls .xml
"""
OTHER_DOCUMENTS = frozenset(OTHER_NAMES.split())
"""Ends of the names of files in formats that are not read. Their lines are not sentences."""


def open_document(text: str, format: str, language: str | None = None) -> Document:
    """The document of a text in this format. `language` is the target language, if it is known."""
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    return FORMATS[format](text, language)


class DocumentFile(NamedTuple):
    """The document of a file, and how its translated text becomes a file."""

    document: Document
    write: Callable[[str], bytes]

    def filled(self, answers: Sequence[Translation]) -> bytes:
        """The translated file."""
        return self.write(self.document.fill(answers))


def open_file(content: bytes, suffix: str, language: str | None = None) -> DocumentFile:
    """The document of a file whose name ends in `suffix`."""
    if suffix not in (*SUFFIXES, ".docx"):
        raise ConfigError(f"files of the kind {suffix!r} cannot be translated; choose one of {', '.join(SUFFIXES)}, .docx")
    return open_content(content, SUFFIXES.get(suffix, "docx"), language)


def open_content(content: bytes, format: str, language: str | None = None, name: str = "the file") -> DocumentFile:
    """The document of a file with this content, in a format of `FORMATS` or `STRUCTURES`, or docx. Errors call it `name`."""
    if format == "docx":
        word = WordDocument(content)
        return DocumentFile(html_document(word.html), word.filled)
    if format in STRUCTURES:
        texts, write = STRUCTURES[format](content, name)
        if any(SEPARATOR in text for text in texts):
            raise DataError(f"{name} has the control character U+001E in a text; remove it")
        return DocumentFile(entries_document(SEPARATOR.join(texts)), lambda filled: write(filled.split(SEPARATOR)))
    return DocumentFile(open_document(decode_text(content, name), format, language), str.encode)


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
