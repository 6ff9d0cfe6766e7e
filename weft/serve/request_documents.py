"""The documents and files of requests: their segments, documents with translated segments, and files to download."""

import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from weft.errors import DataError
from weft.serve.document_reader_processes import Readers
from weft.serve.fair_queue import SHORT
from weft.tasks.translation.documents import SUFFIXES, fill_all, open_document
from weft.tasks.translation.documents.html import Segment
from weft.tasks.translation.segmenter import Translation

KEPT = 30 * 60.0
"""Seconds for which a translated file can be downloaded."""

TOTAL = 256 << 20
"""Bytes of all translated files; beyond that the oldest are deleted."""

REPEATED = 10
"""Segments that a request may have for each sentence that it may have: those that are repeated or have no letters are free."""

NAME = re.compile(rf"[0-9a-f]{{32}}({'|'.join(map(re.escape, (*SUFFIXES, '.docx')))})")


class RequestDocuments:
    """Reads and fills documents. Long ones and markup are read by another process.

    most: segments of a request that may be different.
    """

    def __init__(self, readers: Readers, most: int) -> None:
        self.readers, self.most = readers, most

    async def segments(self, client: str, texts: Sequence[str], form: str, language: str | None) -> list[list[Segment]]:
        """The segments of documents in this format."""
        if form == "text" and sum(map(len, texts)) <= SHORT:
            return read_documents(texts, form, language, self.most)
        return await self.readers.do(client, read_documents, texts, form, language, self.most)

    async def filled(
        self, client: str, texts: Sequence[str], form: str, language: str | None, answers: Sequence[Any]
    ) -> list[Translation]:
        """The documents with the translations of their segments."""
        if form == "text" and sum(map(len, texts)) <= SHORT:
            return write_documents(texts, form, language, answers)
        return await self.readers.do(client, write_documents, texts, form, language, answers)


def read_documents(texts: Sequence[str], form: str, language: str | None, most: int) -> list[list[Segment]]:
    """The segments of documents, of which at most `most` may be different."""
    documents = [open_document(text, form, language).segments for text in texts]
    check_segments([segment for document in documents for segment in document], most)
    return documents


def check_segments(segments: Sequence[Segment], most: int) -> None:
    """Raises DataError if there are more segments than a request may have."""
    different = len({segment for segment in segments if is_translated(segment)})
    if different > most:
        raise DataError(f"the request has {different} sentences; this server takes at most {most} at once")
    if len(segments) > REPEATED * most:
        raise DataError(
            f"the request has {len(segments)} lines or segments; this server takes at most {REPEATED * most} at once"
        )


def is_translated(segment: Segment) -> bool:
    """Whether a segment has something to translate: letters, or markup that a model may move."""
    return bool(segment.marks) or any(map(str.isalpha, segment.text))


def write_documents(texts: Sequence[str], form: str, language: str | None, answers: Sequence[Translation]) -> list[Translation]:
    """The documents with the translations of their segments. They are read again, since a document may hold anything."""
    return fill_all([open_document(text, form, language) for text in texts], answers)


def suffixes() -> list[str]:
    """Suffixes of the files that this server translates."""
    return [*SUFFIXES, *([".docx"] if find_spec("docx") else [])]


def suffix_of(name: str) -> str:
    """The suffix of a file name. Raises an HTTP error if such files are not translated."""
    suffix = Path(name).suffix.lower()
    if suffix not in suffixes():
        raise HTTPException(400, f"Invalid request: file format not supported; send one of {', '.join(suffixes())}")
    return suffix


class FileStore:
    """Files under random names in a folder, which all processes of a server share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes, suffix: str) -> str:
        """Stores a file; returns its name."""
        name = f"{secrets.token_hex(16)}{suffix}"
        files = sorted(self._files(), key=lambda each: each[0].st_mtime)
        total = len(content) + sum(status.st_size for status, _ in files)
        for status, path in files:
            if total > TOTAL or time.time() - status.st_mtime > KEPT:
                path.unlink(missing_ok=True)
                total -= status.st_size
        (self.folder / name).write_bytes(content)
        return name

    def get(self, name: str) -> bytes:
        """The file with this name. Raises an HTTP error if there is none."""
        path = self.folder / name
        with suppress(OSError):  # another process may delete it at any moment
            if NAME.fullmatch(name) and time.time() - path.stat().st_mtime <= KEPT:
                return path.read_bytes()
        raise HTTPException(404, "there is no such file; translated files are deleted after half an hour")

    def _files(self) -> Iterator[tuple[os.stat_result, Path]]:
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if NAME.fullmatch(path.name):
                    yield path.stat(), path
