"""Images with captions: images are read from files or .zip files, cut to a square, and kept as bytes in a corpus of their own.

An image may have several lines in the data, one per caption. The corpus of captions has the columns `target`, with EOS at the
end, and `picture`, the row of its image in the other corpus.

Shapes: N images · S side of an image in pixels.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batch import BOS, PairBatch, Source
from weft.data.batching import lay_out, spread
from weft.data.column_checks_and_listed_files import content_digest, open_file
from weft.data.corpus import Rows
from weft.data.formats import Pairs, combine
from weft.errors import DataError
from weft.version import install

Pixels = NDArray[np.uint8]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""Files that are an image."""

CHANNELS = 3
CHUNK = 256
"""Pictures that are decoded at a time."""


def read_image(path: str, size: int) -> Pixels:
    """[3, S, S]: the largest square in the middle of an image, resized. `path` may lead into a .zip: photos.zip/dog.jpg."""
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


class Images:
    """The different images that captions are about, in the order of their first occurrence. name: what messages call them."""

    def __init__(self, pairs: Sequence[Pairs]) -> None:
        self.name = ", ".join(some.name for some in pairs)
        paths = (path for path, _ in chain.from_iterable(pairs))
        self.places = {path: number for number, path in enumerate(dict.fromkeys(paths))}

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def digest(self) -> str:
        """A hash of the contents, whatever the images are called."""
        return combine(*map(content_digest, self.places))


def augment(pixels: Pixels, draw: np.random.Generator, *, flip: bool, crop: float) -> Pixels:
    """[N, 3, S, S]: each image mirrored with probability ½ (flip), and cropped to a random square, which is enlarged again.

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
    cropped: Pixels = pixels[np.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(cropped.transpose(0, 3, 1, 2))


def captions_by_image(pairs: Sequence[Pairs]) -> list[tuple[str, str]]:
    """Each image once, with all its captions as the lines of one text."""
    captions_of: dict[str, list[str]] = {}
    for path, caption in chain.from_iterable(pairs):
        if caption.strip():
            captions_of.setdefault(path, []).append(caption)
    return [(path, "\n".join(captions)) for path, captions in captions_of.items()]


def make_captions(
    pixels: Pixels, labels: Rows, lengths: Rows, rows: Rows | None = None, *, budget: int = 0, rounded: bool = False
) -> PairBatch:
    """A batch of images [n, 3, S, S] with captions, given all their labels and their lengths [n]."""
    target = np.roll(labels, 1)
    target[lengths.cumsum() - lengths] = BOS
    (layout,) = lay_out(lengths[:, None], budget=budget, rounded=rounded)
    filled = np.zeros((len(layout.segments), *pixels.shape[1:]), np.uint8)
    filled[: len(pixels)] = pixels
    numbers = torch.arange(len(lengths)) if rows is None else torch.from_numpy(rows)
    return PairBatch(numbers, Source(torch.from_numpy(filled)), spread(target, layout), layout, spread(labels, layout))
