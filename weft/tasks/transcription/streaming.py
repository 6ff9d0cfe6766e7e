"""Transcription of sound as it comes: words are written as soon as no later sound can change them.

Frames, the front and the encoder run once over each chunk of the audio. The decoder writes greedily: monotonic attention scans
for the place of the next word, and while it finds none, the word waits for more sound. So the text is the one that greedy
search finds for the whole recording.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.attention.monotonic import MonotonicAttention
from weft.data.batch import BOS, EOS, Source
from weft.decoding.generate import max_tokens
from weft.decoding.ngram_blocking_and_rules import NEVER, usual_constraints
from weft.errors import ConfigError
from weft.layers.decoder_state import State
from weft.models.base import Encoded, Model, Network
from weft.models.encoder_decoder import VectorEncoder
from weft.models.rnn import RecurrentDecoder, RecurrentState
from weft.tasks.language_modeling.predictor import StreamingDetokenizer
from weft.tasks.transcription.log_mel import Frames, Samples, StreamingLogMel, stream_wav
from weft.tasks.transcription.predictor import TranscriptionPredictor


class StreamingEncoder:
    """The memory of an encoder over frames as they come. A vector is made once the front has all frames that it depends on."""

    def __init__(self, encoder: VectorEncoder) -> None:
        front = encoder.front
        if front.reach is None:
            raise ConfigError(
                f"model.front: {type(front).__name__} reads a source as a whole, so it cannot listen to sound as it comes; "
                "train with model.front: frames"
            )
        self.encoder, self.front, self.reach = encoder, front, front.reach
        self.state: State = None
        self.count, self._heard, self._held = 0, 0, torch.zeros(1, 0, 0)
        # Raises now if the encoder cannot continue.
        self.encoder.read_on(torch.zeros(1, 1, encoder.input_width, device=self.device), None)

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def __call__(self, frames: Frames, *, last: bool = False) -> Tensor | None:
        """The memory [1, S, M] that these frames [T, F] complete, if any; last: no more frames follow."""
        new = torch.from_numpy(frames)[None].to(self.device)
        self._held = torch.cat([self._held, new], 1) if self._heard else new
        self._heard += len(frames)
        shortens = self.front.shortens
        known = -(-self._heard // shortens) if last else (self._heard - 1 - self.reach) // shortens + 1
        if known <= self.count:
            return None
        first = (self._heard - self._held.size(1)) // shortens
        vectors, _ = self.front(Source(self._held))
        memory, self.state = self.encoder.read_on(vectors[:, self.count - first : known - first], self.state)
        self.count = known
        needed = max(0, known * shortens - self.reach) // shortens
        self._held = self._held[:, (needed - first) * shortens :]
        return memory


class StreamingTranscriber:
    """A transcription in progress. The model must have been trained to listen to sound as it comes."""

    def __init__(self, predictor: TranscriptionPredictor) -> None:
        self.predictor, model = predictor, predictor.model
        if predictor.mel.scaling != "fixed":
            raise ConfigError(
                "task.scaling: recording needs whole recordings; to listen to sound as it comes, train with task.scaling: fixed"
            )
        search = predictor.options.search
        if search.kind not in ("greedy", "beam") or search.width(1) > 1:
            raise ConfigError("decode.search: text that is written as sound comes is searched greedily; set decode.beam: 1")
        self.attention, self.decoder = _monotonic(model)
        with predictor.arithmetic(1):
            self.frames, self.memory = StreamingLogMel(predictor.mel), StreamingEncoder(model.encoder)
        self.detokenizer = StreamingDetokenizer(predictor.tokenizer, [])
        self.ids: list[int] = []
        self.ended, self._last = False, torch.tensor([[BOS]], device=model.device)
        self._state: RecurrentState | None = None
        section = predictor.options.config
        self._constraints = usual_constraints(section.no_repeat_ngram, section.max_length + 1)
        self._noted = [each.init_state(1, model.device) for each in self._constraints]

    def hear(self, samples: Samples | None) -> str:
        """The text that the next samples [N] of the sound make certain; None: no more samples follow."""
        if self.ended:
            return ""
        text, last = "", samples is None
        with self.predictor.arithmetic(1):
            chunk = np.zeros(0, np.float32) if samples is None else np.asarray(samples, np.float32)
            memory = self.memory(self.frames(chunk, last=last), last=last)
            if memory is not None:
                self._extend(memory)
            while self._state is not None and not self.ended and (token := self._next(self._state, last)) is not None:
                text += "" if token == EOS else self.detokenizer(token)
        return text

    def _extend(self, memory: Tensor) -> None:
        if self._state is None:
            self._state = self.decoder.init_state(Encoded(memory))
        else:
            self._state = replace(self._state, attention=self.attention.lengthen(self._state.attention, memory))

    def _next(self, state: RecurrentState, last: bool) -> int | None:
        """The next token; None if it depends on sound that is still to come."""
        (most,) = max_tokens(self.predictor.model, self.predictor.options.request([self.memory.count]))
        fed = self.decoder.hidden_states(self._last, state)
        if not last and (len(self.ids) + 1 >= most or self.attention.waits(fed.state.attention)):
            return None
        token = self._choose(self.decoder.logits(fed.hidden[:, -1]), most)
        self.ids.append(token)
        self._state, self._last = fed.state, torch.full_like(self._last, token)
        self.ended = token == EOS or len(self.ids) >= most
        return token

    def _choose(self, logits: Tensor, most: int) -> int:
        """The best token that decode.min_length and the constraints allow."""
        if len(self.ids) < min(self.predictor.options.config.min_length, most - 1):
            logits[:, EOS] = NEVER
        for place, constraint in enumerate(self._constraints):
            logits, self._noted[place] = constraint(logits, self._last, self._noted[place], None)
        return int(logits.argmax(-1))


def transcribe_stream(predictor: TranscriptionPredictor, sound: Any) -> Iterator[str]:
    """The text of a wav file, a wav stream or chunks [N] of samples, in parts that are certain when they are given."""
    transcriber = StreamingTranscriber(predictor)
    chunks = stream_wav(sound, predictor.mel.rate) if isinstance(sound, str) or hasattr(sound, "read") else sound
    return filter(None, map(transcriber.hear, chain(chunks, [None])))


def _monotonic(model: Network) -> tuple[MonotonicAttention, RecurrentDecoder]:
    """The attention and the decoder of a model; ConfigError if it cannot write before it has heard everything."""
    decoder = model.decoder if isinstance(model, Model) else None
    cross = decoder.cross if isinstance(decoder, RecurrentDecoder) and decoder.bridge.kind == "zeros" else None
    if isinstance(decoder, RecurrentDecoder) and isinstance(cross, MonotonicAttention):
        return cross, decoder
    raise ConfigError(
        "only a recurrent decoder with monotonic attention can write while it listens; train with model.decoder: {kind: rnn, "
        "attention: monotonic, bridge: zeros} and a task.ctc_weight below 1"
    )
