"""Scores of spoken frames: mel-cepstral distortion along the best alignment in time, and how diagonal an attention is.

Shapes: T, U frames of two recordings · M mel bands · H heads · S source positions.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batch import Layout
from weft.losses.attention_penalties import places

COEFFICIENTS = 13
"""Mel-cepstral coefficients that are compared, without the one of loudness."""


def cepstrum(frames: NDArray[np.floating]) -> NDArray[np.float64]:
    """[T, 13]: c_k = 2/M Σ_m x_m cos(π k (m + ½) / M), k = 1 … 13, with x half of frames [T, M] of logarithms of power."""
    bands = frames.shape[1]
    orders = np.arange(1, COEFFICIENTS + 1)
    waves = np.cos(np.pi * orders[None] * (np.arange(bands)[:, None] + 0.5) / bands)
    cepstra: NDArray[np.float64] = (frames.astype(np.float64) / 2) @ waves * (2 / bands)
    return cepstra


def mel_cepstral_distortion(written: NDArray[np.floating], true: NDArray[np.floating]) -> float:
    """10/ln 10 · √(2 Σ_k (c_k − c'_k)²) in decibels (Kubichek 1993), summed along the best alignment of both in time, over U.

    written [T, M], true [U, M]: logarithms of power. The alignment is that of dynamic time warping: it goes from the first
    frames to the last, each time by a frame in one recording or in both, and has the least sum. Divided by the true number of
    frames, not by its own length, it also counts what is said too much.
    """
    ours, theirs = cepstrum(written), cepstrum(true)
    apart = np.sqrt(((ours[:, None] - theirs[None]) ** 2).sum(-1) * 2) * (10 / math.log(10))
    return _warped(apart) / len(true)


def _warped(apart: NDArray[np.float64]) -> float:
    """The least sum of costs [T, U] along a path from corner to corner, computed diagonal by diagonal."""
    rows, columns = apart.shape
    sums = np.full((rows + 1, columns + 1), np.inf)
    sums[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        sums[i, j] = apart[i - 1, j - 1] + np.minimum(np.minimum(sums[i - 1, j - 1], sums[i - 1, j]), sums[i, j - 1])
    return float(sums[rows, columns])


def diagonal_share(weights: Tensor, layout: Layout, source_layout: Layout | None, width: float = 0.2) -> tuple[float, int]:
    """The attention within `width` of the diagonal, |s/S − t/T| ≤ width, summed over the steps, and the number of steps.

    weights [B, H, T, S]. Attention that is spread evenly has a share of about 2 · width − width².
    """
    rows, _, extent, total = weights.shape
    target, targets = places(layout, rows, extent, weights.device)
    source, sources = places(source_layout, rows, total, weights.device)
    apart = source[:, None] / sources[:, None] - (target / targets)[..., None]
    near = (apart.abs() <= width) & layout.mask[..., None]
    return float(torch.where(near, weights.mean(1), 0.0).sum()), int(layout.mask.sum())
