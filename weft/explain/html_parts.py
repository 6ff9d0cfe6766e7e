"""Parts of the pages that explain a prediction: images, bars and notes."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable
from html import escape

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def meter(share: float) -> str:
    """A bar for a share between 0 and 1."""
    return f'<meter min="0" max="1" value="{share:.4f}"></meter>'


def notes(texts: Iterable[str]) -> str:
    """A paragraph for each remark to the reader."""
    return "".join(f"<p class=note>{escape(text)}</p>\n" for text in texts)


def image(pixels: Pixels, text: str, *, kind: str = "") -> str:
    """Pixels as an image inside the page. text: what it shows, in words · kind: its CSS class."""
    data = base64.b64encode(png(pixels)).decode()
    return f'<img{f" class={kind}" if kind else ""} alt="{escape(text)}" src="data:image/png;base64,{data}">'


def png(pixels: Pixels) -> bytes:
    """A PNG file of pixels [H, W] (grey), [H, W, 3] (colours) or [H, W, 4] (colours and opacity)."""
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    lines = b"".join(b"\0" + np.ascontiguousarray(line).tobytes() for line in pixels)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
