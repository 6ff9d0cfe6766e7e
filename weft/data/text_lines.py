"""Reads lines of text from files and streams, one at a time, with errors that name the line.

Only a line feed, with or without a carriage return before it, ends a line. A text may contain U+2028 or a lone carriage
return, and splitting there would misalign all following lines with the other side of the corpus.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO

from weft.data.compression_and_encodings import READ_ERRORS, open_binary
from weft.errors import DataError
from weft.file_access import NO_FILE, denied, split_encoding, why_unreadable

UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
CHECKED = 1000
"""Bytes at the beginning of a file that tell UTF-16 from UTF-8."""

BLOCK = 1 << 20
"""Bytes that are read at a time to count lines."""

LONGEST = 10_000_000
"""Characters that a line may have; a longer one is no text."""

LARGEST = 1 << 30
"""Bytes of a text that is read as a whole; a small compressed file may hold far more."""


def read_lines(source: str | Path | Iterable[bytes] | Iterable[str], name: str | None = None) -> Iterator[str]:
    """The lines of a UTF-8 text file, also compressed, or of an open stream, without line endings.

    A byte order mark at the beginning is dropped. Errors call a stream `name`. The caller closes the stream.
    """
    if isinstance(source, str | Path):
        with open_file(source) as file:
            yield from _lines(iter(lambda: file.readline(LONGEST + 1), b""), str(source))
    else:
        yield from _lines(source, name or str(getattr(source, "name", "the input")))


def read_text(source: str | Path | IO[bytes], name: str | None = None) -> str:
    """The whole text of a UTF-8 file, also compressed, or of an open stream, with its line endings."""
    if isinstance(source, str | Path):
        with open_file(source) as file:
            return read_text(file, str(source))
    called = name or "the input"
    try:
        content = source.read(LARGEST + 1)
    except READ_ERRORS as error:
        raise DataError(f"{called}: the file cannot be read: {error}. It seems to be damaged or cut short.") from None
    if len(content) > LARGEST:
        raise DataError(f"{called}: the text has more than {LARGEST:,} bytes, too many to be read as a whole")
    return decode_text(content, called)


def decode_text(content: bytes, name: str) -> str:
    """The text of a UTF-8 file with this content. Errors call it `name`."""
    _check_encoding(content[:CHECKED], name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        # This finds the line and raises an error that names it.
        return "\n".join(read_lines(BytesIO(content), name))


def open_file(path: str | Path) -> IO[bytes]:
    """Opens a file for reading, in UTF-8 and decompressed if its name says so: `a.txt.gz`, `a.txt@cp1252`."""
    path = check_file(path)
    try:
        return open_binary(path)
    except OSError as error:
        raise DataError(f"{path}: {_unreadable(path, error)}.") from None


def check_file(path: str | Path) -> Path:
    """Returns `path` if it is a file; raises DataError otherwise."""
    named, path = Path(path), Path(split_encoding(path)[0])
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder; give a text file.")
    if not os.path.exists(path):
        problem = why_unreadable(path) or NO_FILE
        place = f" (looked for it in {path.absolute().parent})" if problem == NO_FILE else ""
        raise DataError(f"{path}: {problem}{place}.")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: {denied(path, 'read it')}.")
    return named


def _unreadable(path: str | Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return denied(path, "read it")
    return f"the file cannot be read: {error.strerror or error}"


def file_digest(path: str | Path) -> str:
    """A hash of the bytes of a file."""
    try:
        with open(split_encoding(check_file(path))[0], "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {_unreadable(path, error)}.") from None


def count_lines(paths: Iterable[str]) -> int:
    """The number of lines of some files, also compressed. Where a file cannot be read, its lines end."""
    count = 0
    for path in paths:
        with open_file(path) as file, suppress(*READ_ERRORS):
            last = b"\n"
            while block := file.read(BLOCK):
                count, last = count + block.count(b"\n"), block[-1:]
            count += last != b"\n"
    return count


def _lines(stream: Iterable[bytes] | Iterable[str], name: str) -> Iterator[str]:
    number = offset = 0
    lines: Iterator[str | bytes] = iter(stream)
    try:
        for number, raw in enumerate(lines, start=1):
            if len(raw) > LONGEST:
                raise DataError(f"{name}, line {number:,}: the line has more than {LONGEST:,} characters.")
            if number == 1 and isinstance(raw, bytes):
                _check_encoding(raw[:CHECKED], name)
            text = raw if isinstance(raw, str) else _decode(raw, name, number, offset)
            offset += len(raw)
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text
    except READ_ERRORS as error:
        raise DataError(
            f"{name}: the file cannot be read past line {number:,}: {error}. It seems to be damaged or cut short."
        ) from None


def _check_encoding(start: bytes, name: str) -> None:
    """Raises DataError if a file that begins like this is UTF-16, in which every other byte of most texts is 0."""
    zeros = sorted(start[place::2].count(0) for place in (0, 1))
    if start.startswith(UTF16_MARKS) or (zeros[1] > len(start) // 4 and not zeros[0]):
        raise DataError(
            f"{name}: the file is UTF-16, not UTF-8. Save it as UTF-8 (in Excel: CSV UTF-8), or convert it with "
            f"`iconv -f UTF-16 -t UTF-8 OLD > NEW`; or write {name}@utf-16."
        )


def _decode(raw: bytes, name: str, number: int, offset: int) -> str:
    """The text of a line, which begins at byte `offset`."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.start
    where = f"{name}, line {number:,} (byte {offset + wrong:,} of the file)"
    before = raw[max(0, wrong - 30) : wrong].decode("utf-8", "replace")
    problem = f"{where}: not valid UTF-8: byte 0x{raw[wrong]:02x} after {before!r}."
    try:
        word = raw[max(0, wrong - 30) : wrong + 10].decode("cp1252").partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(f"{problem} The file seems to be damaged, or in another encoding; convert it to UTF-8.") from None
    raise DataError(
        f"{problem} In Windows-1252, as Excel writes it, it would be {word!r}. If that is right, save the file as "
        "UTF-8 (in Excel: CSV UTF-8), convert it with `iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW`, or write "
        f"{name}@cp1252; if not, remove the line."
    )
