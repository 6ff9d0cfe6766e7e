"""Pictures: read from files or from inside .zip files, cut to a square, and kept as bytes in a corpus.

Shapes: N pictures · S side of a picture in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.corpus import Columns, Corpus, prepare
from weft.data.listed import content_digest, open_file
from weft.data.pair_source import combine
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
    try:
        with open_file(path) as file, Image.open(file) as opened:
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
        """A hash of the contents, whatever the pictures are called."""
        return combine(*map(content_digest, self.places))


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
