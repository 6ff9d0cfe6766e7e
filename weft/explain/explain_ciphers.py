"""What a deciphered text is based on: how the model reads each symbol of the cipher."""

from __future__ import annotations

from html import escape

import numpy as np

from weft.explain.explain_media import image
from weft.explain.explanation import shown
from weft.inference.predictor import Prediction
from weft.tasks.deciphering.predictor import DecipheringPredictor


def cipher_body(predictor: DecipheringPredictor, found: Prediction, text: str) -> str:
    """For each place of the key, a picture: a row per symbol of the cipher, a column per plain symbol, dark where the model
    expects that one; and the symbols of the text with the plain symbols they were read as."""
    pictures = ""
    for place, chances in enumerate(predictor.mapping().numpy(), start=1):
        shade = (255 * (1 - chances)).astype(np.uint8)
        pictures += f"<figure class='picture exact'>{image(shade, 'the learnt mapping')}"
        pictures += f"<figcaption>place {place} of the key: cipher ↓ plain →</figcaption></figure>\n"
    read = dict.fromkeys(zip(found.source_tokens, found.tokens, strict=True))
    rows = "".join(f"<tr><th>{escape(shown(symbol))}</th><td>{escape(shown(plain))}</td></tr>\n" for symbol, plain in read)
    return f"{pictures}<table class=sound>\n{rows}</table>\n"
