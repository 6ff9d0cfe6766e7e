"""What captions and transcripts are based on: attention over a picture and a spectrogram."""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape

import numpy as np
from numpy.typing import NDArray

from weft.explain.explanation import Weights
from weft.inference.predictor import Prediction
from weft.tasks.captioning.data import read_image
from weft.tasks.captioning.predictor import CaptionPredictor
from weft.tasks.transcription.data import features
from weft.tasks.transcription.predictor import TranscriptionPredictor

Pixels = NDArray[np.uint8]

DARKEST = 215
"""How much of a place without attention is hidden, of 255."""


def caption_body(predictor: CaptionPredictor, caption: Prediction, path: str) -> str:
    """The picture, and for each token the picture, dark where there is no attention: the mean of all layers and heads."""
    picture = image(read_image(path.strip(), predictor.side).transpose(1, 2, 0), "the picture")
    weights = _cross(caption)
    if weights is None:
        return f"<figure class=picture>{picture}</figure>\n<p class=note>the decoder shows no attention weights</p>\n"
    side = int(weights.shape[-1] ** 0.5)
    figures = []
    for token, row in zip(caption.tokens, weights[:, : side * side], strict=True):
        shade = np.zeros((side, side, 4), np.uint8)
        shade[..., 3] = (DARKEST * (1 - row / max(float(row.max()), 1e-9))).reshape(side, side)
        over = image(shade, f"attention of {token}")
        figures.append(f"<figure class=picture>{picture}{over}<figcaption>{escape(token)}</figcaption></figure>\n")
    return f"<figure class=picture>{picture}<figcaption></figcaption></figure>\n{''.join(figures)}"


def transcript_body(predictor: TranscriptionPredictor, transcript: Prediction, path: str) -> str:
    """The spectrogram, and below it where each token was heard: by attention (the mean of all layers and heads), and by CTC."""
    heard = features(path.strip(), predictor.mel)
    low, high = float(heard.min()), float(heard.max())
    spectrum = (255 * (heard.T[::-1] - low) / max(high - low, 1e-9)).astype(np.uint8)
    views = {"attention": _cross(transcript)}
    if "ctc" in transcript.attention:
        views["CTC"] = transcript.attention["ctc"][0]
    seconds = len(heard) * predictor.mel.step / predictor.mel.rate
    rows = f"<tr><th>{seconds:.2f} s</th><td>{image(spectrum, 'spectrogram', kind='wide')}</td></tr>\n"
    for name, weights in views.items():
        for token, row in zip(transcript.tokens, [] if weights is None else weights):
            shade = (255 * row / max(float(row.max()), 1e-9)).astype(np.uint8)[None]
            line = image(shade, f"{name} of {token}", kind="wide")
            rows += f"<tr><th>{escape(token)} <small>{name}</small></th><td>{line}</td></tr>\n"
    return f"<table class=sound>{rows}</table>\n"


def _cross(found: Prediction) -> Weights | None:
    """[tokens, source positions]: the mean of all cross-attentions and their heads, or None if there are none."""
    maps = [found.attention[name].mean(0) for name, use in found.uses.items() if use == "cross"]
    mean: Weights | None = np.mean(maps, 0) if maps else None
    return mean


def image(pixels: Pixels, text: str, *, kind: str = "") -> str:
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
