"""Parts of the pages that explain a prediction: images, bars and notes."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from io import BytesIO

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
    from PIL import Image  # a requirement of matplotlib

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
