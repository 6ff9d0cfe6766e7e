"""Pictures: read from files or from inside .zip files, cut to a square, and kept as bytes in a corpus.

Shapes: N pictures · S side of a picture in pixels.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.corpus import Columns, Corpus, prepare
from weft.data.lines import file_digest
from weft.errors import DataError
from weft.version import install

Pixels = NDArray[np.uint8]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""Files that are a picture."""

CHANNELS = 3
CHUNK = 256
"""Pictures that are decoded at a time."""


def read_picture(path: str, size: int) -> Pixels:
    """[3, S, S]: the largest square in the middle of a picture, resized. `path` may lead into a .zip: photos.zip/dog.jpg."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise DataError(f"{path}: reading pictures needs the package pillow: {install('images')}") from None
    content = _bytes(path)
    try:
        with Image.open(io.BytesIO(content)) as opened:
            upright = ImageOps.exif_transpose(opened).convert("RGB")
        square = ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC)
    except UnidentifiedImageError:
        raise DataError(f"{path}: this is not a picture, or of a kind that Pillow cannot read; give JPEG or PNG") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: the picture cannot be read: {error}; it seems to be damaged or cut short") from None
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


class Pictures:
    """The different pictures of some paths, in the order of their first occurrence. name: what messages call them."""

    def __init__(self, paths: Sequence[str], name: str) -> None:
        self.name = name
        self.places = {path: number for number, path in enumerate(dict.fromkeys(paths))}

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def digest(self) -> str:
        """A hash of the contents, whatever the pictures are called. Inside a .zip, sizes and check sums are enough."""
        found = hashlib.blake2b(digest_size=16)
        for path in self.places:
            archive, inside = _archive_of(path)
            try:
                if archive is None:
                    found.update(file_digest(path).encode())
                else:
                    entry = _entry(archive, inside, path)
                    found.update(f"{entry.CRC}:{entry.file_size}\n".encode())
            except DataError as error:
                raise DataError(f"{self.name}: a picture is missing: {error}") from None
        return found.hexdigest()


def prepare_pictures(pictures: Pictures, size: int, *, folder: Path, progress: Callable[[int], None] | None = None) -> Corpus:
    """The pictures as rows of the column `pixels`, from the cache in `folder` if they are there, otherwise decoded now."""

    def encode(paths: list[str]) -> tuple[Columns, dict[str, int]]:
        return {"pixels": [[read_picture(path, size)] for path in paths]}, {}

    columns = {"pixels": f"({CHANNELS},{size},{size})uint8"}
    return prepare(
        [pictures],
        ["pictures", size],
        encode,
        columns,
        sized=["pixels"],
        folder=folder,
        unit="pictures",
        chunk=CHUNK,
        progress=progress,
    )


def augment(pixels: Pixels, draw: np.random.Generator, *, flip: bool, crop: float) -> Pixels:
    """[N, 3, S, S]: each picture mirrored with probability ½ (flip), and cropped to a random square, which is enlarged again.

    crop: the largest share of the side that is cut off. Pixels are repeated, not interpolated.
    """
    count, size = len(pixels), pixels.shape[-1]
    zoom, down, right, turned = draw.random((4, count))
    side = 1 - crop * zoom
    place = (np.arange(size) + 0.5) / size

    def along(offset: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.floor(size * (offset[:, None] * (1 - side[:, None]) + side[:, None] * place)).astype(np.int64)

    rows, columns = along(down), along(right)
    if flip:
        columns = np.where((turned < 0.5)[:, None], columns[:, ::-1], columns)
    found: Pixels = pixels[np.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(found.transpose(0, 3, 1, 2))


def _bytes(path: str) -> bytes:
    archive, inside = _archive_of(path)
    try:
        if archive is None:
            _check(path)
            return Path(path).read_bytes()
        return archive.read(_entry(archive, inside, path))
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{path}: the file cannot be read: {error}") from None


def _check(path: str) -> None:
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder; give a picture")
    if not os.path.exists(path):
        raise DataError(f"{path}: there is no such picture (looked for it in {Path(path).absolute().parent})")


def _archive_of(path: str) -> tuple[zipfile.ZipFile | None, str]:
    """The .zip file that a path leads into, and the name inside; None for a plain file."""
    for parent in Path(path).parents:
        if parent.suffix.lower() == ".zip" and parent.is_file():
            try:
                return _opened(str(parent), parent.stat().st_mtime_ns), Path(path).relative_to(parent).as_posix()
            except (OSError, zipfile.BadZipFile) as error:
                raise DataError(f"{parent}: the .zip file cannot be read: {error}") from None
    return None, path


@lru_cache(maxsize=8)
def _opened(path: str, changed: int) -> zipfile.ZipFile:
    """An open .zip file; `changed` makes a new entry if the file changes."""
    return zipfile.ZipFile(path)


def _entry(archive: zipfile.ZipFile, inside: str, path: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(inside)
    except KeyError:
        raise DataError(f"{path}: there is no {inside} in {archive.filename}") from None
