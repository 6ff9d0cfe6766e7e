"""From log-mel frames back to sound: powers of all frequencies, phases by Griffin–Lim, and wav files.

Shapes: N samples · T frames · F frequencies of a spectrum · M mel bands.
"""

import io
import wave
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from weft.errors import ConfigError
from weft.tasks.transcription.log_mel import DEVIATION, MEAN, Frames, LogMel, Samples, mel_bands

MOMENTUM = 0.99
"""Of fast Griffin–Lim (Perraudin et al. 2013)."""

BAND_STEPS = 50
"""Multiplicative updates from mel bands to frequencies."""

LEAST = 1e-20
"""Keeps divisions finite where there is no power."""


@dataclass(frozen=True)
class InvertibleLogMel(LogMel):
    """Log-mel frames that are turned back into sound, so windows are longer than those of transcription.

    window: length of a frame in seconds; longer ones tell more frequencies apart, and fewer mel bands are empty
    hop: seconds from one frame to the next; at most half of the window
    scaling: of the bands; only constants can be taken back
    griffin_lim: iterations that find the phases
    """

    window: PositiveFloat = 0.05
    hop: PositiveFloat = 0.0125
    scaling: Literal["fixed"] = "fixed"
    griffin_lim: PositiveInt = 60

    def check(self) -> None:
        """Raises ConfigError if the windows do not overlap enough."""
        if 2 * self.hop > self.window:
            raise ConfigError(
                f"task.hop: frames of {self.window:g} s that are {self.hop:g} s apart overlap too little to be turned into "
                f"sound; set it to at most half of task.window, {self.window / 2:g}"
            )

    def sound(self, frames: Frames) -> Samples:
        """[N] with N = (T − 1) · step: a sound that has these scaled frames [T, M], as nearly as phases can be found."""
        powers = np.exp(np.asarray(frames, np.float32) * np.float32(DEVIATION) + np.float32(MEAN))
        with torch.autocast("cpu", enabled=False):
            spectrum = spectrum_of(torch.from_numpy(powers).T, mel_bands(self.rate, self.fft, self.mels))
            samples = griffin_lim(
                spectrum.sqrt(), self.fft, self.step, max(1, round(self.rate * self.window)), self.griffin_lim
            )
        return samples.numpy()


def spectrum_of(powers: Tensor, bands: Tensor) -> Tensor:
    """[F, T]: powers of frequencies p ≥ 0 with B p ≈ m, for mel powers m [M, T] and bands B [M, F].

    p ← p · Bᵀ(m / B p) / Bᵀ1 lowers the divergence of m from B p (Lee & Seung 2001). Frequencies in no band get 0.
    """
    share = bands.sum(0)[:, None]
    spectrum = (bands.T @ powers) / share.square().clamp_min(LEAST)
    for _ in range(BAND_STEPS):
        spectrum = spectrum * (bands.T @ (powers / (bands @ spectrum).clamp_min(LEAST))) / share.clamp_min(LEAST)
    return torch.where(share > 0, spectrum, 0.0)


def griffin_lim(magnitudes: Tensor, fft: int, step: int, length: int, iterations: int, momentum: float = MOMENTUM) -> Tensor:
    """[N]: a sound whose spectra have these magnitudes [F, T] (Griffin & Lim 1984).

    Each iteration makes a sound of the magnitudes with the phases so far, c_n = STFT(ISTFT(a · e^{iφ_n})), and takes its
    phases; with momentum α, those of c_n + α (c_n − c_{n−1}). The first phases are random, the same for frames of one number.
    """
    window = torch.hann_window(length, periodic=True, dtype=magnitudes.dtype)
    samples = (magnitudes.size(1) - 1) * step
    if samples < 1:
        return magnitudes.new_zeros(0)
    draw = torch.Generator().manual_seed(magnitudes.size(1))
    angles = torch.rand(magnitudes.shape, generator=draw, dtype=magnitudes.dtype) * 2 * torch.pi
    phases, before = torch.polar(torch.ones_like(angles), angles), torch.zeros_like(angles)
    for _ in range(iterations):
        sound = torch.istft(magnitudes * phases, fft, step, length, window, length=samples)
        found = torch.stft(sound, fft, step, length, window, pad_mode="constant", return_complex=True)
        moved = found + momentum * (found - before)
        phases, before = moved / moved.abs().clamp_min(LEAST), found
    return torch.istft(magnitudes * phases, fft, step, length, window, length=samples)


def wav_content(samples: Samples, rate: int) -> bytes:
    """The bytes of a wav file with 16-bit integers. A sound beyond −1 to 1 is made softer."""
    loudest = float(np.abs(samples).max(initial=0.0))
    whole = np.round(32767 * samples / max(loudest, 1.0)).astype("<i2")
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return content.getvalue()
