"""Audio: reads wav files, resamples, and computes log-mel features, of a whole recording or of a stream.

Shapes: N samples · T frames · F frequencies of a spectrum · M mel bands.
"""

from __future__ import annotations

import math
import wave
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from weft.data.column_checks_and_listed_files import open_file
from weft.errors import DataError

Samples = NDArray[np.float32]
Frames = NDArray[np.float32]
Scaling = Literal["recording", "fixed"]

FLOOR = 1e-10
"""The least power whose logarithm is taken."""

LEAST = 1e-2
"""The least standard deviation that a band is divided by, so that silence stays 0."""

MEAN, DEVIATION = -10.0, 4.0
"""Of the logarithms in speech, about; for frames that are scaled before the rest of their sound is known."""

STREAM_CHUNK = 0.1
"""Seconds of audio that are read at a time from a stream."""

ZEROS = 6
"""Zero crossings of the sinc filter on each side, for resampling."""

ROLLOFF = 0.99
"""The cut-off frequency of that filter, as a share of the highest possible."""

MOST_WEIGHTS = 1 << 24
"""Weights of the filters that resample a sound, which are many if two rates have no common factor."""


@dataclass(frozen=True)
class Audio:
    """Samples [N] between −1 and 1 of one channel, and their number per second."""

    samples: Samples
    rate: int

    def resampled(self, rate: int) -> Audio:
        """The same sound with another number of samples per second."""
        return self if rate == self.rate else Audio(resample(self.samples, self.rate, rate), rate)


def read_wav(path: str | Path) -> Audio:
    """The sound of a wav file with 8, 16, 24 or 32 bit integers; several channels are averaged.

    Raises DataError for a file that is missing, broken or empty.
    """
    with _opened(path) as opened:
        channels, width, rate, count, *_ = opened.getparams()
        content = opened.readframes(count)
    whole = len(content) // (width * channels)
    if not count or not whole:
        raise DataError(f"{path}: there is no sound in this file: it has 0 samples. Remove it from the data.")
    if whole < count:
        raise DataError(f"{path}: the file is cut short: it has {whole:,} of {count:,} samples. Copy it again.")
    samples = _decode(content, width).reshape(-1, channels).mean(1, dtype=np.float32)
    return Audio(samples, rate)


def wav_size(path: str | Path) -> tuple[int, int]:
    """The number of samples of a wav file, and of samples per second, without reading its sound."""
    with _opened(path) as opened:
        return opened.getnframes(), opened.getframerate()


def stream_wav(source: str | BinaryIO, rate: int) -> Iterator[Samples]:
    """The samples of a wav file or stream in chunks, each as soon as it is there. Raises DataError if it has another rate."""
    name = source if isinstance(source, str) else "standard input"
    with _opened(name, None if isinstance(source, str) else source) as opened:
        channels, width, actual, *_ = opened.getparams()
        if actual != rate:
            raise DataError(
                f"{name}: this sound has {actual:,} samples per second, but the model listens at {rate:,}, and sound is not "
                f"resampled as it comes. Convert it, for example with `ffmpeg -i INPUT -ar {rate} out.wav`."
            )
        empty = True
        while content := opened.readframes(max(1, int(STREAM_CHUNK * rate))):
            content = content[: len(content) // (width * channels) * width * channels]
            empty = False
            yield _decode(content, width).reshape(-1, channels).mean(1, dtype=np.float32)
        if empty:
            raise DataError(f"{name}: there is no sound in this file: it has 0 samples.")


@contextmanager
def _opened(path: str | Path, stream: BinaryIO | None = None) -> Iterator[wave.Wave_read]:
    """A wav file, or a stream that messages call `path`."""
    try:
        with nullcontext(stream) if stream else open_file(str(path)) as file, wave.open(file, "rb") as opened:
            yield opened
    except (wave.Error, EOFError, OSError) as error:
        reason = "the file is empty or ends too early" if isinstance(error, EOFError) else str(error) or type(error).__name__
        raise DataError(
            f"{path}: this is not a wav file of 8, 16, 24 or 32 bit integers (PCM): {reason}. Convert it, for example with "
            f"`ffmpeg -i {Path(path).name} -c:a pcm_s16le out.wav`."
        ) from None


def _decode(content: bytes, width: int) -> Samples:
    """Integers of `width` bytes as numbers between −1 and 1."""
    if width == 1:  # the only width without a sign
        return np.asarray((np.frombuffer(content, np.uint8).astype(np.float32) - 128) / 128, np.float32)
    if width == 3:  # shifted into the upper bytes of 32 bits
        packed = np.frombuffer(content, np.uint8).reshape(-1, 3)
        padded = np.zeros((len(packed), 4), np.uint8)
        padded[:, 1:] = packed
        content, width = padded.tobytes(), 4
    whole = np.frombuffer(content, f"<i{width}")
    return (whole / np.float64(1 << (8 * width - 1))).astype(np.float32)


def resample(samples: Samples, old: int, new: int) -> Samples:
    """Band-limited interpolation by a Hann-windowed sinc filter, one phase of it for each new sample of a period."""
    shared = math.gcd(old, new)
    down, up = old // shared, new // shared
    cutoff = min(down, up) * ROLLOFF
    width = math.ceil(ZEROS * down / cutoff)
    if up * (2 * width + down) > MOST_WEIGHTS:
        raise DataError(
            f"a sound of {old:,} samples per second cannot be converted to {new:,}, which is no simple ratio; convert it "
            f"with `ffmpeg -i INPUT -ar {new} out.wav`"
        )
    filters = _filters(down, up, cutoff, width)
    count = -(-up * len(samples) // down)
    padded = F.pad(torch.from_numpy(samples)[None, None], (width, width + down))
    with _exact():
        resampled = F.conv1d(padded, filters[:, None], stride=down)[0]
    return np.ascontiguousarray(resampled.T.reshape(-1)[:count].numpy())


@cache
def _filters(down: int, up: int, cutoff: float, width: int) -> Tensor:
    """[up, 2 · width + down]: the filter around each of the `up` new samples per `down` old ones."""
    places = torch.arange(-width, width + down, dtype=torch.float64) / down
    times = ((torch.arange(0, -up, -1, dtype=torch.float64) / up)[:, None] + places) * cutoff
    times = times.clamp(-ZEROS, ZEROS)
    window = torch.cos(times * math.pi / ZEROS / 2) ** 2
    return (torch.sinc(times) * window * cutoff / down).float()


@dataclass(frozen=True)
class LogMel:
    """Logarithms of the power in mel bands, as librosa computes it: Slaney's mel scale, bands of equal area, a Hann window.

    rate: samples per second; recordings of other rates are resampled. 0: the rate of the first training recording
    mels: mel bands per frame
    window: length of a frame in seconds
    hop: seconds from one frame to the next
    scaling: of the bands. recording: to mean 0 and variance 1 in each recording, which hides differences of microphones, and
        of the sounds of a short recording; fixed: by constants, which sound that is transcribed as it comes needs
    """

    rate: NonNegativeInt = 0
    mels: PositiveInt = 40
    window: PositiveFloat = 0.025
    hop: PositiveFloat = 0.01
    scaling: Scaling = "recording"

    @property
    def fft(self) -> int:
        """Samples per Fourier transform: a power of two that holds the window."""
        return 1 << (max(1, round(self.rate * self.window)) - 1).bit_length()

    @property
    def step(self) -> int:
        """Samples between frames."""
        return max(1, round(self.rate * self.hop))

    def frames(self, samples: int, rate: int) -> int:
        """The number of frames of a sound with this many samples at this rate."""
        return 1 + -(-samples * self.rate // rate) // self.step

    def __call__(self, samples: Samples) -> Frames:
        """[T, M] with T = 1 + ⌊N / step⌋; frame t is centred on sample t · step, and there is silence around the sound."""
        return self.inside(np.pad(samples, self.fft // 2))

    def inside(self, samples: Samples) -> Frames:
        """[T, M] with T = 1 + ⌊(N − fft) / step⌋; frame t begins with sample t · step."""
        length = max(1, round(self.rate * self.window))
        window = torch.hann_window(length, periodic=True)
        tensor = torch.from_numpy(samples)
        spectrum = torch.stft(tensor, self.fft, self.step, length, window, center=False, return_complex=True)
        with _exact():
            bands = mel_bands(self.rate, self.fft, self.mels) @ spectrum.abs().square()
        return bands.clamp_min(FLOOR).log().T.contiguous().numpy()

    def scaled(self, frames: Frames) -> Frames:
        """recording: mean 0 and variance 1 in each band of all frames · fixed: by constants, whatever the other frames are."""
        if self.scaling == "fixed":
            return (frames - np.float32(MEAN)) / np.float32(DEVIATION)
        return (frames - frames.mean(0)) / np.maximum(frames.std(0), LEAST)


def features(path: str | Path, mel: LogMel) -> Frames:
    """[T, M]: the log-mel features of a recording, scaled. Other rates are resampled."""
    return mel.scaled(mel(read_wav(path).resampled(mel.rate).samples))


class StreamingLogMel:
    """The frames of a sound as it comes, each as soon as its window is full; together they equal those of the whole sound."""

    def __init__(self, mel: LogMel) -> None:
        self.mel, self._held = mel, np.zeros(mel.fft // 2, np.float32)

    def __call__(self, samples: Samples, *, last: bool = False) -> Frames:
        """The frames [T, M] that these samples [N] complete; last: no more samples follow."""
        silence = np.zeros(self.mel.fft // 2 if last else 0, np.float32)
        self._held = np.concatenate([self._held, samples, silence])
        count = 1 + (len(self._held) - self.mel.fft) // self.mel.step
        if count < 1:
            return np.zeros((0, self.mel.mels), np.float32)
        frames = self.mel.scaled(self.mel.inside(self._held))
        self._held = self._held[count * self.mel.step :]
        return frames


def _exact() -> torch.autocast:
    """Features are computed in float32, even while a model runs in half precision."""
    return torch.autocast("cpu", enabled=False)


@cache
def mel_bands(rate: int, fft: int, mels: int) -> Tensor:
    """[M, F]: triangles over frequencies, evenly spaced on Slaney's mel scale between 0 and half the rate, each of area one."""
    frequencies = torch.linspace(0, rate / 2, fft // 2 + 1, dtype=torch.float64)
    edges = _hertz(torch.linspace(0, _mel(rate / 2), mels + 2, dtype=torch.float64))
    widths = edges.diff()
    slopes = edges[:, None] - frequencies
    triangles = torch.minimum(-slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]).clamp_min(0)
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).float()


STEP = 200 / 3
"""Hertz per mel below 1,000 Hz, where Slaney's scale is linear; above, it is logarithmic with 27 mels per factor of 6.4."""


def _mel(hertz: float) -> float:
    return hertz / STEP if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def _hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < 15, mels * STEP, 1000 * torch.exp((mels - 15) * math.log(6.4) / 27))
