"""Explanation of a transcript: its spectrogram, and where each token was heard."""

from __future__ import annotations

from html import escape

import numpy as np

from weft.explain.attention_heatmap import mean_attention
from weft.explain.html_parts import image
from weft.inference.predictor import Prediction
from weft.tasks.transcription.log_mel import LogMel, features


def spectrogram_table(prediction: Prediction, path: str, mel: LogMel) -> str:
    """The spectrogram, and below it where each token was heard: by attention (mean of all layers and heads), and by CTC."""
    frames = features(path, mel)
    low, high = float(frames.min()), float(frames.max())
    spectrum = (255 * (frames.T[::-1] - low) / max(high - low, 1e-9)).astype(np.uint8)
    views = {"attention": mean_attention(prediction, "cross")}
    if "ctc" in prediction.attention:
        views["CTC"] = prediction.attention["ctc"][0]
    seconds = len(frames) * mel.step / mel.rate
    rows = f"<tr><th>{seconds:.2f} s</th><td>{image(spectrum, 'spectrogram', kind='wide')}</td></tr>\n"
    for name, weights in views.items():
        for token, row in zip(prediction.tokens, [] if weights is None else weights):
            shade = (255 * row / max(float(row.max()), 1e-9)).astype(np.uint8)[None]
            line = image(shade, f"{name} of {token}", kind="wide")
            rows += f"<tr><th>{escape(token)} <small>{name}</small></th><td>{line}</td></tr>\n"
    return f"<table class=sound>{rows}</table>\n"
