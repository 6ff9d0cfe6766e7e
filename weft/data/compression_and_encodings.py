"""Opens files as streams of UTF-8: decompresses .gz, .bz2, .xz and .zst, and converts other encodings.

A name may end in `@ENCODING`, as in `old.tsv@cp1252`; the file is then read in that encoding.
"""

import bz2
import codecs
import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from weft.errors import DataError
from weft.file_access import split_encoding
from weft.version import install

BLOCK = 1 << 16
COMPRESSED_BLOCK = 1 << 8
"""Bytes that are decompressed at once, because those of a hostile file may become 30,000 times as many."""

READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of damaged or unreadable files."""

ZIP_ERRORS = (*READ_ERRORS, zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError, struct.error, OverflowError)
"""Errors of damaged, encrypted or unusual .zip files."""


class BlockStream(io.RawIOBase):
    """A stream made of blocks of bytes. next_block: returns the next one, nothing at the end · files: to be closed with it."""

    def __init__(self, next_block: Callable[[], bytes], *files: IO[bytes]) -> None:
        self._next_block, self._files, self._block = next_block, files, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block:
            self._block = memoryview(self._next_block())
        size = min(len(buffer), len(self._block))
        buffer[:size] = self._block[:size]
        self._block = self._block[size:]
        return size

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()


def _frames(path: Path, decompressor: Callable[[], Any], errors: type[Exception], kind: str) -> IO[bytes]:
    """A file of one or several compressed streams, one after the other, with zeros between them at the most.

    Modules of Python end where the second one of a damaged .xz or .bz2 file should begin, without an error.
    """
    file, frame = path.open("rb"), decompressor()

    def next_block() -> bytes:
        nonlocal frame
        while True:
            if frame.eof:  # another one may follow
                rest = frame.unused_data.lstrip(b"\0")
                while not rest:
                    if not (read := file.read(COMPRESSED_BLOCK)):
                        return b""
                    rest = read.lstrip(b"\0")
                frame = decompressor()
            elif not (rest := file.read(COMPRESSED_BLOCK)):
                raise EOFError("it ends inside of compressed data")
            try:
                block: bytes = frame.decompress(rest)
            except errors as error:
                raise OSError(f"not valid {kind}: {error}") from None
            if block:
                return block

    return io.BufferedReader(BlockStream(next_block, file), BLOCK)


def _open_zstd(path: Path) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise DataError(f"{path}: .zst files need the package zstandard: {install('zstd')}") from None
    return _frames(path, zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj, zstandard.ZstdError, "zstd")


OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {
    ".gz": lambda path: cast(IO[bytes], gzip.open(path, "rb")),  # noqa: SIM115
    ".bz2": lambda path: _frames(path, bz2.BZ2Decompressor, OSError, "bzip2"),
    ".xz": lambda path: _frames(path, lzma.LZMADecompressor, lzma.LZMAError, "xz"),
    ".zst": _open_zstd,
}
"""Functions that open compressed files, by the ends of their names."""


def open_binary(name: str | Path) -> IO[bytes]:
    """A file, decompressed and in UTF-8."""
    path, encoding = split_encoding(name)
    file = OPENERS.get(Path(path).suffix, lambda plain: plain.open("rb"))(Path(path))
    return file if encoding is None else _recoded(file, encoding, path)


def _recoded(file: IO[bytes], encoding: str, path: str) -> IO[bytes]:
    """A stream of UTF-8 with the text of a file in another encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0

    def next_block() -> bytes:
        nonlocal offset
        while block := file.read(BLOCK):
            offset += len(block)
            if text := decode(block):
                return text.encode("utf-8", "surrogatepass")
        return decode(b"", True).encode("utf-8", "surrogatepass")

    def decode(block: bytes, final: bool = False) -> str:
        try:
            return decoder.decode(block, final)
        except UnicodeError as error:  # some decoders raise no UnicodeDecodeError, as UTF-16's without a mark
            place = offset - len(block) + getattr(error, "start", 0)
            reason = getattr(error, "reason", error)
            raise DataError(f"{path}: not valid {encoding} near byte {place:,}: {reason}; try another one") from None

    return io.BufferedReader(BlockStream(next_block, file), BLOCK)
