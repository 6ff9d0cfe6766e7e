"""Speech synthesis against loops over its formulas: the decoder of frames, its losses, Griffin–Lim, and the distortion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from weft.data.batch import PairBatch, Source
from weft.losses.attention_penalties import guided_penalty
from weft.models.base import Sizes
from weft.tasks.synthesis.data import make_speech
from weft.tasks.synthesis.griffin_lim import griffin_lim, spectrum_of
from weft.tasks.synthesis.metrics import cepstrum, diagonal_share, mel_cepstral_distortion
from weft.tasks.synthesis.model import (
    SpeechModel,
    SpeechOptions,
    build_speech_model,
    end_labels,
    frame_distance,
)

WORDS, MELS, GROUP = 11, 5, 3
TEXTS, COUNTS = [[4, 7, 9, 2], [5, 2], [6, 6, 10, 4, 8, 2]], [8, 3, 13]
RNN = {
    "kind": "rnn",
    "dim": 8,
    "embedding": 6,
    "dropout": 0.0,
    "attention": {"kind": "additive", "hidden": 7},
    "bridge": "zeros",
}


def make(decoder: dict[str, Any] | None = None, **options: Any) -> SpeechModel:
    spec = {"kind": "composed", "encoder": {"kind": "rnn", "dim": 8, "dropout": 0.0}, "decoder": {**RNN, **(decoder or {})}}
    sizes = Sizes(WORDS, GROUP * MELS + 1, writes="vectors")
    speech = SpeechOptions(frames_per_step=GROUP, prenet=9, postnet_channels=4, **options)
    model = build_speech_model(spec, sizes, MELS, speech)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


def batch() -> PairBatch:
    draw = np.random.default_rng(1)
    recordings = [draw.standard_normal((count, MELS)) for count in COUNTS]
    ids = np.array([token for text in TEXTS for token in text])
    return make_speech(ids, np.array(list(map(len, TEXTS))), recordings, GROUP)


def gru(x: Tensor, h: Tensor, cell: nn.GRU) -> Tensor:
    (wi, wh, bi, bh) = (getattr(cell, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    (ir, iz, ii), (hr, hz, hi) = (wi @ x + bi).chunk(3), (wh @ h + bh).chunk(3)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    return z * h + (1 - z) * (ii + r * hi).tanh()


class Loop:
    """One text alone, step by step: prenet, attention of the last state, GRU, frames and end (Wang et al. 2017)."""

    def __init__(self, model: SpeechModel, text: list[int]) -> None:
        self.model, self.decoder = model, model.decoder
        self.memory = model.encode(Source(torch.tensor([text]))).memory[0]
        self.state = torch.zeros(8, dtype=torch.float64)
        self.weights: list[Tensor] = []

    def attend(self) -> Tensor:
        """Σ_s α_s h_s with α = softmax_s vᵀ tanh(W s + b + U h_s)."""
        score = self.decoder.cross.head.score
        energies = [
            score.score.weight[0] @ torch.tanh(score.query.weight @ self.state + score.query.bias + score.key.weight @ h)
            for h in self.memory
        ]
        alpha = torch.stack(energies).softmax(0)
        self.weights.append(alpha)
        return sum(weight * h for weight, h in zip(alpha, self.memory, strict=True))

    def step(self, frame: Tensor) -> tuple[Tensor, Tensor]:
        """The next R frames [R, M] and the logit of the end, after the frame [M]."""
        first, second = self.model.prenet.layers
        x = torch.relu(first.weight @ frame + first.bias)
        x = torch.relu(second.weight @ x + second.bias)
        context = self.attend()
        self.state = gru(torch.cat([x, context]), self.state, self.decoder.stack.layers[0].rnn)
        mix, output = self.decoder.readout.mix, self.decoder.output
        hidden = torch.tanh(mix.weight @ torch.cat([self.state, x, context]) + mix.bias)
        written = output.weight @ hidden + output.bias
        return written[:-1].view(GROUP, MELS), written[-1]


def run(loop: Loop, steps: int) -> Iterator[tuple[Tensor, float]]:
    """The frames of each step, fed the last of the step before, and the logit of the end."""
    frame = torch.zeros(MELS, dtype=torch.float64)
    for _ in range(steps):
        frames, end = loop.step(frame)
        yield frames, float(end)
        frame = frames[-1]


def refined(model: SpeechModel, frames: Tensor) -> Tensor:
    """frames [N, M] + convolutions 5 wide with tanh between them; there are zeros around the frames."""
    if model.postnet is None:
        return frames
    x = frames
    for place, layer in enumerate(model.postnet.layers):
        x = torch.tanh(x) if place else x
        rows = []
        for n in range(len(x)):
            near = [x[k] if 0 <= k < len(x) else torch.zeros_like(x[0]) for k in range(n - 2, n + 3)]
            rows.append(layer.weight @ torch.cat(near) + layer.bias)
        x = torch.stack(rows)
    return frames + x


@pytest.mark.parametrize("postnet", [0, 2])
def test_teacher_forcing_is_the_loop_of_each_text_alone(postnet: int) -> None:
    model, given = make(postnet=postnet), batch()
    outputs = model.teacher_forced(given)
    for row, (text, count) in enumerate(zip(TEXTS, COUNTS, strict=True)):
        loop, steps = Loop(model, text), math.ceil(count / GROUP)
        truth = given.labels[row, :steps].reshape(-1, MELS)
        frame, written = torch.zeros(MELS, dtype=torch.float64), []
        for t in range(steps):
            frames, end = loop.step(frame)
            written.append(frames)
            torch.testing.assert_close(outputs.ends[row, t], end)
            frame = truth[(t + 1) * GROUP - 1]
        alone = torch.cat(written)
        torch.testing.assert_close(outputs.frames[row, :steps].reshape(-1, MELS), alone)
        torch.testing.assert_close(outputs.refined[row, :steps].reshape(-1, MELS), refined(model, alone))


@pytest.mark.parametrize("postnet", [0, 2])
def test_speaking_feeds_the_last_frame_of_each_step_until_the_end(postnet: int) -> None:
    model, given = make(postnet=postnet), batch()
    with torch.no_grad():
        highest = [max(end for _, end in run(Loop(model, text), 9)) for text in TEXTS]
        model.decoder.output.bias[-1] -= (min(highest) + max(highest)) / 2  # so that some texts end, and others do not
        spoken = model.speak(given.source, [9, 9, 9], [0, 0, 0])
        for text, found in zip(TEXTS, spoken, strict=True):
            written, score, ended = [], 0.0, False
            for frames, end in run(Loop(model, text), 9):
                written.append(frames)
                ended = end > 0
                score += math.log(1 / (1 + math.exp(-end if ended else end)))
                if ended:
                    break
            np.testing.assert_allclose(found.frames, refined(model, torch.cat(written)), rtol=1e-4, atol=1e-5)
            assert found.ended == ended
            assert found.score == pytest.approx(score, abs=1e-4)
    assert {found.ended for found in spoken} == {True, False}, "both cases occur"


def test_batches_hold_the_frames_of_each_step_and_the_one_before() -> None:
    given = batch()
    draw = np.random.default_rng(1)
    recordings = [draw.standard_normal((count, MELS)) for count in COUNTS]
    ends = end_labels(given.target_layout)
    for row, frames in enumerate(recordings):
        steps = math.ceil(len(frames) / GROUP)
        assert given.target_layout.counts[row] == steps
        for t in range(steps):
            own = [frames[min(t * GROUP + place, len(frames) - 1)] for place in range(GROUP)]
            np.testing.assert_array_equal(given.labels[row, t].view(GROUP, MELS), np.stack(own))
            before = frames[t * GROUP - 1] if t else np.zeros(MELS)
            np.testing.assert_array_equal(given.target[row, t], before)
            assert float(ends[row, t]) == (t == steps - 1)


@pytest.mark.parametrize(("kind", "power"), [("l1", 1), ("l2", 2)])
def test_the_distance_of_a_step_is_the_mean_over_its_values(kind: Any, power: int) -> None:
    a, b = torch.randn(2, 2, 3, 4, dtype=torch.float64).unbind(0)
    found = frame_distance(a, b, kind)
    expected = sum(abs(float(x) - float(y)) ** power for x, y in zip(a[1, 2], b[1, 2], strict=True)) / 4
    assert float(found[1, 2]) == pytest.approx(expected, rel=1e-5)


def test_attention_near_the_diagonal() -> None:
    given, (source, steps) = batch(), (len(TEXTS[2]), math.ceil(COUNTS[2] / GROUP))
    weights = torch.rand(3, 1, given.target.size(1), given.source.values.size(1)).softmax(-1)
    total = 0.0
    for row, (text, count) in enumerate(zip(TEXTS, COUNTS, strict=True)):
        for t in range(steps := math.ceil(count / GROUP)):
            for s in range(len(text)):
                total += float(weights[row, 0, t, s]) * (abs(s / len(text) - t / steps) <= 0.2)
    found, number = diagonal_share(weights, given.target_layout, given.source.layout)
    assert found == pytest.approx(total, rel=1e-5)
    assert number == sum(math.ceil(count / GROUP) for count in COUNTS)
    straight = torch.zeros(1, 1, 12, 6)
    straight[0, 0, torch.arange(12), torch.arange(12) // 2] = 1
    assert float(guided_penalty(straight).sum()) < 0.2
    assert source == 6


def dft(samples: np.ndarray, fft: int, step: int, window: np.ndarray) -> np.ndarray:
    """[F, T]: spectra of windows centred on every step-th sample, with silence around the sound, by the definition."""
    padded = np.concatenate([np.zeros(fft // 2), samples, np.zeros(fft // 2)])
    waves = np.exp(-2j * np.pi * np.arange(fft // 2 + 1)[:, None] * np.arange(fft)[None] / fft)
    return np.stack([waves @ (window * padded[t : t + fft]) for t in range(0, len(samples) + 1, step)], 1)


def inverse(spectrum: np.ndarray, fft: int, step: int, window: np.ndarray, count: int) -> np.ndarray:
    """The sound whose spectra are nearest: windowed inverse transforms, added and divided by the sum of squared windows."""
    sound, weight = np.zeros(count + 2 * fft), np.zeros(count + 2 * fft)
    for t, column in enumerate(spectrum.T):
        sound[t * step : t * step + fft] += window * np.fft.irfft(column, fft)
        weight[t * step : t * step + fft] += window**2
    return (sound / np.maximum(weight, 1e-11))[fft // 2 : fft // 2 + count]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_griffin_lim_is_the_published_iteration(momentum: float) -> None:
    fft, step, length, frames = 16, 4, 12, 9
    window = np.zeros(fft)
    window[2:14] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    magnitudes = np.abs(dft(np.random.default_rng(2).standard_normal((frames - 1) * step), fft, step, window))
    angles = torch.rand(magnitudes.shape, generator=torch.Generator().manual_seed(frames), dtype=torch.float64)
    phases, before = np.exp(2j * np.pi * angles.numpy()), 0
    for _ in range(5):
        found = dft(inverse(magnitudes * phases, fft, step, window, (frames - 1) * step), fft, step, window)
        moved = found + momentum * (found - before)
        phases, before = moved / np.abs(moved), found
    expected = inverse(magnitudes * phases, fft, step, window, (frames - 1) * step)
    sound = griffin_lim(torch.from_numpy(magnitudes), fft, step, length, 5, momentum)
    np.testing.assert_allclose(sound.numpy(), expected, atol=1e-8)


def test_powers_of_bands_come_from_frequencies() -> None:
    """Powers that some frequencies have are found again, to the accuracy of the updates, and none is negative."""
    bands = 3 * torch.tensor([[0.0, 1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0, 0.5]])
    powers = bands @ torch.tensor([[3.0, 0.0], [1.0, 2.0], [0.0, 5.0], [1e-6, 1.0], [2e-6, 0.0]])
    found = spectrum_of(powers, bands)
    torch.testing.assert_close(bands @ found, powers, rtol=1e-2, atol=1e-9)
    assert bool((found >= 0).all()) and bool((found[0] == 0).all())


def plain_warp(apart: np.ndarray, i: int, j: int) -> float:
    """The least sum along a path to (i, j), by recursion."""
    before = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
    return float(apart[i, j]) + min((plain_warp(apart, *place) for place in before if min(place) >= 0), default=0.0)


def test_mel_cepstral_distortion() -> None:
    draw = np.random.default_rng(3)
    ours, theirs = draw.standard_normal((6, 20)), draw.standard_normal((5, 20))
    cepstra = []
    for frames in (ours, theirs):
        rows = [
            [2 / 20 * sum(frame[m] / 2 * math.cos(math.pi * k * (m + 0.5) / 20) for m in range(20)) for k in range(1, 14)]
            for frame in frames
        ]
        np.testing.assert_allclose(cepstrum(frames), rows)
        cepstra.append(rows)
    apart = np.array(
        [
            [10 / math.log(10) * math.sqrt(2 * sum((a - b) ** 2 for a, b in zip(x, y, strict=True))) for y in cepstra[1]]
            for x in cepstra[0]
        ]
    )
    assert mel_cepstral_distortion(ours, theirs) == pytest.approx(plain_warp(apart, 5, 4) / 5)
    assert mel_cepstral_distortion(ours, np.repeat(ours, 3, 0)) == 0
    assert mel_cepstral_distortion(ours, ours + 7) == pytest.approx(0, abs=1e-9), "loudness does not count"
