"""Recordings of tones, one per word, as data for transcription that is learnt in seconds."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

RATE = 4000
WORDS = {"low": 300.0, "middle": 700.0, "high": 1300.0}


def write_wav(path: Path, samples: np.ndarray, rate: int = RATE, *, width: int = 2, channels: int = 1) -> Path:
    """Writes samples [N] or [N, channels] between −1 and 1 as integers of `width` bytes."""
    whole = np.round(samples.astype(np.float64) * ((1 << (8 * width - 1)) - 1)).astype("<i4")
    raw = whole.reshape(-1, 1).view(np.uint8).reshape(-1, 4)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes((raw + np.uint8(128) if width == 1 else raw).tobytes())
    return path


def sing(words: list[str], draw: np.random.Generator, rate: int = RATE, *, even: bool = False) -> np.ndarray:
    """Tones of random length and loudness, or all alike (even), with gaps around them and a little noise."""

    def between(low: float, high: float) -> float:
        return (low + high) / 2 if even else draw.uniform(low, high)

    pieces = [np.zeros(int(rate * 0.03))]
    for word in words:
        time = np.arange(int(rate * between(0.05, 0.09))) / rate
        pieces.append(between(0.3, 0.6) * np.sin(2 * np.pi * WORDS[word] * time))
        pieces.append(np.zeros(int(rate * between(0.02, 0.06))))
    sound = np.concatenate(pieces)
    return sound + 0.003 * draw.standard_normal(len(sound))


def recordings(folder: Path, count: int, seed: int = 1, lengths: tuple[int, int] = (1, 4), *, even: bool = False) -> Path:
    """A list of `count` recordings in a folder of its own, with names relative to the list. even: see `sing`."""
    draw = np.random.default_rng(seed)
    (folder / "wav").mkdir(parents=True)
    rows = []
    for number in range(count):
        words = [str(word) for word in draw.choice(list(WORDS), draw.integers(lengths[0], lengths[1] + 1))]
        write_wav(folder / "wav" / f"{number}.wav", sing(words, draw, even=even))
        rows.append(f"wav/{number}.wav\t{' '.join(words)}\n")
    (folder / "list.tsv").write_text("".join(rows))
    return folder / "list.tsv"
