"""A model that speaks: an encoder and a decoder of any kind, fed frames through a prenet; it writes several frames per step.

As Tacotron (Wang et al. 2017) and Tacotron 2 (Shen et al. 2018) do, but the encoder, the decoder and its attention are those of
the section model. Shapes: B texts · T steps of the decoder, each of R frames · M mel bands · D width of what a decoder is fed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.core.weight_recorder import cross_attentions, record_weights
from weft.data.batch import Layout, PairBatch, Source
from weft.decoding.token_selection import uniform
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.embeddings_and_rotary_positions import GivenVectors
from weft.layers.linear_norm_dropout import Rate, dropout
from weft.models.base import Encoded, LinearDecoder, Model, Network, Sizes, least, times
from weft.models.encoder_decoder import build_encoder_decoder
from weft.tasks.transcription.log_mel import Frames

ENDS = 0.5
"""A text ends with the first step whose probability of being the last one exceeds this."""

CHECKED_EVERY = 8
"""Steps after which a GPU is asked whether all texts have ended."""


@dataclass(frozen=True)
class SpeechOptions:
    """Options of the layers around a decoder that writes frames.

    frames_per_step: R, the frames that a step of the decoder writes; with more, fewer steps are to be aligned
    prenet: width of the first of two layers through which the decoder reads the last frame
    prenet_dropout: share of units dropped in the prenet. It keeps the decoder from copying the frame before
    test_dropout: whether the prenet drops units after training too, as in Tacotron 2; which ones follows from the text
    postnet: convolutions that add details to the frames in both directions; 0: none
    postnet_channels: width between them
    """

    frames_per_step: PositiveInt = 4
    prenet: PositiveInt = 64
    prenet_dropout: Rate = 0.5
    test_dropout: bool = False
    postnet: NonNegativeInt = 0
    postnet_channels: PositiveInt = 64


class Prenet(nn.Module):
    """Two layers of rectified units with dropout, from the last frame to what a decoder is fed."""

    def __init__(self, mels: int, hidden: int, width: int, share: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(mels, hidden), nn.Linear(hidden, width)])
        self.share = share

    def forward(self, frames: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
        """frames [B, T, M] → [B, T, D]. masks: the factors of each layer's units after training; None: nothing is dropped."""
        x = frames
        for place, layer in enumerate(self.layers):
            x = dropout(F.relu(layer(x)), self.share, self.training)
            x = x if masks is None else x * masks[place]
        return x

    def masks(self, seeds: Tensor, step: int) -> list[Tensor]:
        """[B, 1, units] for each layer: factors 0 or 1 / (1 − share) of one step, which follow from the texts' `seeds` [B]."""
        widths = [layer.out_features for layer in self.layers if isinstance(layer, nn.Linear)]
        units = torch.arange(sum(widths), device=seeds.device)
        drawn = uniform(0, seeds, units, torch.tensor(step, device=seeds.device))
        kept = (drawn >= self.share).float() / (1 - self.share)
        return list(kept[:, None].split(widths, -1))


class Postnet(nn.Module):
    """Convolutions over all frames, each 5 wide and with tanh after all but the last, whose output is added to the frames."""

    def __init__(self, mels: int, channels: int, layers: int) -> None:
        super().__init__()
        widths = [mels, *[channels] * (layers - 1)]
        self.windows = [TokenWindow(width, 5) for width in widths]
        above = [*widths[1:], mels]
        self.layers = nn.ModuleList(nn.Linear(5 * width, out) for width, out in zip(widths, above, strict=True))

    def forward(self, frames: Tensor, layout: Layout | None) -> Tensor:
        """frames [B, N, M] → [B, N, M]."""
        x = frames
        for place, (window, layer) in enumerate(zip(self.windows, self.layers, strict=True)):
            x = layer(window(torch.tanh(x) if place else x, None, layout)[0])
        return frames + x


@dataclass
class SpeechOutputs:
    """frames [B, T, R · M] · refined: the same after the postnet · ends [B, T]: logits of a step being the last."""

    frames: Tensor
    refined: Tensor
    ends: Tensor


@dataclass
class SpokenFrames:
    """The frames [N, M] of one text · ended: whether they end by themselves · score: log-probability of where they end."""

    frames: Frames
    ended: bool
    score: float


class SpeechModel(Network):
    """An encoder and a decoder that writes frames, with a prenet before it and perhaps a postnet behind it."""

    def __init__(self, model: Model, decoder: LinearDecoder, fed: int, mels: int, options: SpeechOptions) -> None:
        super().__init__()
        self.encoder, self.decoder, self.dim = model.encoder, decoder, model.dim
        self.prenet = Prenet(mels, options.prenet, fed, options.prenet_dropout)
        self.postnet = Postnet(mels, options.postnet_channels, options.postnet) if options.postnet else None
        self.mels, self.group, self.test_dropout = mels, options.frames_per_step, options.test_dropout
        self.max_source = model.max_source
        self.max_target = model.max_target

    @property
    def max_length(self) -> int | None:
        """In tokens and frames."""
        return least(self.max_source, times(self.max_target, self.group))

    def encode(self, source: Source) -> Encoded:
        return self.encoder(source)

    def forward(self, source: Source) -> list[SpokenFrames]:
        """Speaks texts; for benchmarks, which measure as many steps as tokens."""
        rows, extent = source.values.shape
        return self.speak(source, [extent] * rows, list(range(rows)))

    def teacher_forced(self, batch: PairBatch) -> SpeechOutputs:
        """The outputs of all steps, each fed the true frame before it."""
        encoded, layout = self.encode(batch.source), batch.target_layout
        fed = self.prenet(batch.target)
        hidden = self.decoder.hidden_states(fed, self.decoder.init_state(encoded), layout).hidden
        frames, ends = self._outputs(hidden)
        return SpeechOutputs(frames, self._refined(frames, layout), ends)

    def speak(self, source: Source, limits: Sequence[int], seeds: Sequence[int]) -> list[SpokenFrames]:
        """Speaks each text, feeding the decoder its own frames, for at most as many steps as its limit says.

        seeds: decide which units `test_dropout` drops. A text does not depend on the others.
        """
        encoded = self.encode(source)
        written, ends = zip(*self._steps(encoded, max(limits), torch.tensor(seeds, device=self.device)), strict=True)
        chances = torch.cat(ends, 1).float()
        last = torch.tensor(limits, device=self.device).clamp_max(chances.size(1)) - 1
        over = chances.sigmoid() > ENDS
        first = torch.where(over.any(1), over.to(torch.uint8).argmax(1), chances.size(1))
        ended, counts = (first <= last).tolist(), torch.minimum(first, last).add(1).tolist()
        frames = torch.cat(written, 1)
        layout = Layout.padded(counts).to(frames.device)
        refined = self._refined(frames[:, : max(counts)], layout).float()
        spoken = []
        for row, count, done, logits in zip(refined, counts, ended, chances, strict=True):
            score = -F.softplus(logits[: count - done]).sum() + (F.logsigmoid(logits[count - 1]) if done else 0)
            written_frames = row[:count].reshape(-1, self.mels).cpu().numpy()
            spoken.append(SpokenFrames(written_frames, done, float(score)))
        return spoken

    def _steps(self, encoded: Encoded, most: int, seeds: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The frames [B, 1, R · M] and the logits of the end [B, 1] of each step, until all texts have ended."""
        state = self.decoder.init_state(encoded)
        fed = encoded.memory.new_zeros(encoded.memory.size(0), 1, self.mels)
        over = torch.zeros_like(seeds, dtype=torch.bool)
        for step in range(most):
            masks = self.prenet.masks(seeds, step) if self.test_dropout else None
            features = self.decoder.hidden_states(self.prenet(fed, masks), state)
            frames, ends = self._outputs(features.hidden)
            yield frames, ends
            state, fed = features.state, frames[..., -self.mels :]
            over = over | (ends[:, -1].sigmoid() > ENDS)
            if (self.device.type == "cpu" or step % CHECKED_EVERY == 0) and bool(over.all()):
                return

    def _outputs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The frames [B, T, R · M] of each step, and the logit [B, T] of it being the last one."""
        written = self.decoder.logits(hidden)
        return written[..., :-1], written[..., -1]

    def _refined(self, frames: Tensor, layout: Layout) -> Tensor:
        """Frames [B, T, R · M] after the postnet, if there is one."""
        if self.postnet is None:
            return frames
        rows, steps, _ = frames.shape
        each = Layout.padded([self.group * count for count in layout.counts], steps * self.group).to(frames.device)
        return self.postnet(frames.reshape(rows, -1, self.mels), each).reshape(frames.shape)


def build_speech_model(spec: Mapping[str, Any], sizes: Sizes, mels: int, options: SpeechOptions) -> SpeechModel:
    """The model of `spec`, the section model, with the layers that frames need around its decoder."""
    model = build_encoder_decoder(spec, sizes)
    decoder = model.decoder
    embedding = getattr(decoder, "embedding", None)
    table = getattr(embedding, "table", None)
    if decoder.parallel or not (isinstance(decoder, LinearDecoder) and isinstance(table, GivenVectors)):
        raise ConfigError(
            f"model.decoder: {type(decoder).__name__} cannot write frames of sound one after the other; choose another "
            "decoder, such as rnn or transformer"
        )
    if getattr(embedding, "ngrams", None) is not None:
        raise ConfigError("model.decoder.ngrams: frames of sound form no n-grams; set it to 1")
    return SpeechModel(model, decoder, table.embedding_dim, mels, options)


Distance = Literal["l1", "l2"]


def frame_distance(written: Tensor, labels: Tensor, kind: Distance) -> Tensor:
    """[B, T]: the mean distance of the values of each step, |x − y| or (x − y)²."""
    apart = written.float() - labels
    return (apart.abs() if kind == "l1" else apart.square()).mean(-1)


def end_labels(layout: Layout) -> Tensor:
    """[B, T]: 1 at the last step of each row, else 0."""
    return (layout.positions == layout.lengths[:, None] - 1).float()


def attended(model: SpeechModel, batch: PairBatch) -> tuple[SpeechOutputs, Tensor | None]:
    """The outputs when true frames are fed, and the weights [B, H, T, S] of the last attention to the text that has any."""
    shown = [each for each in cross_attentions(model.decoder).values() if each.weights_sum is not None][-1:]
    with record_weights(shown) as recorded:
        outputs: SpeechOutputs = model.teacher_forced(batch)
    return outputs, torch.cat(recorded[0], 2) if recorded else None
