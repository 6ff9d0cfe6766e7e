"""Synthesis: texts to recordings. The recording of a text does not depend on its batch."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import EOS, Layout, Source, pad
from weft.data.tokenizers import Tokenizer
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.predictor import BatchItem, Prediction, TextInput, TextPredictor, json_number, seed_of
from weft.decoding.search_loop import Cancellation
from weft.errors import DataError
from weft.explain.attention_heatmap import mean_attention, sound_rows
from weft.explain.html_page import audio, notes
from weft.tasks.synthesis.griffin_lim import InvertibleLogMel, wav_content
from weft.tasks.synthesis.model import SpeechModel, SpokenFrames
from weft.tasks.transcription.log_mel import Frames, Samples


@dataclass
class Speech(Prediction):
    """A spoken text. `score` is the log-probability that the model gives to its end.

    samples: [N] between −1 and 1, `rate` of them per second · frames: scaled log-mel frames [T, M].
    """

    samples: Samples = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    rate: int = 0
    frames: Frames = field(default_factory=lambda: np.zeros((0, 0), np.float32), repr=False)

    @property
    def seconds(self) -> float:
        return len(self.samples) / max(1, self.rate)

    def content(self) -> bytes:
        """The bytes of a wav file."""
        return wav_content(self.samples, self.rate)

    def save(self, path: str | Path) -> None:
        """Writes a wav file."""
        Path(path).write_bytes(self.content())

    def document(self) -> dict[str, Any]:
        """The wav file is in base64."""
        plain = {"text": self.text, "score": json_number(self.score), "seconds": round(self.seconds, 3)}
        return {**plain, "audio": base64.b64encode(self.content()).decode()}


@dataclass(eq=False)
class SpokenPart(BatchItem):
    """The token ids of a text with EOS, and the number that decides what its prenet drops."""

    seed: int


class SynthesisPredictor(TextPredictor[Speech]):
    """A model that speaks. Of the decoding options it uses max_length and max_ratio, in steps, batch_tokens and precision."""

    no_fields = "a spoken text has no prefix and no terms; leave them out"
    reader: Tokenizer
    model: SpeechModel

    def __init__(
        self,
        model: SpeechModel,
        reader: Tokenizer,
        mel: InvertibleLogMel,
        options: DecodingOptions,
        warn: Warn | None = None,
        *,
        lowercase: bool = False,
    ) -> None:
        super().__init__(model, reader, options, warn)
        self.mel, self.lowercase = mel, lowercase

    def encode_input(self, inputs: Sequence[TextInput], first_line: int) -> list[list[SpokenPart]]:
        texts = [given.text.strip().lower() if self.lowercase else given.text.strip() for given in inputs]
        return [self._parts(text, line) for line, text in enumerate(texts, start=first_line)]

    def _parts(self, text: str, line: int) -> list[SpokenPart]:
        if not text:
            return []
        if unknown := self.reader.unknown(text):
            self.warn(f"line {line}: not in the training texts, so the model does not know how to say: {', '.join(unknown)}")
        ids, most = [*self.reader.encode(text), EOS], self.model.max_source
        if most is not None and len(ids) > most:
            raise DataError(
                f"line {line}: the text has {len(ids):,} tokens, and the model has positions for {most:,} only; cut it"
            )
        return [SpokenPart(ids, seed_of(text.encode()))]

    def run(self, parts: list[SpokenPart], control: Cancellation | None = None) -> list[SpokenFrames]:
        limits = self.options.request([len(part.ids) for part in parts]).max_tokens
        if self.model.max_target is not None:
            limits = [min(each, self.model.max_target) for each in limits]
        layout = Layout.padded([len(part.ids) for part in parts])
        source = Source(pad([part.ids for part in parts]), layout).to(self.model.device)
        with self.arithmetic(1):
            return self.model.speak(source, limits, [part.seed for part in parts])

    def join_outputs(self, given: TextInput, parts: list[SpokenPart], results: list[SpokenFrames]) -> Speech:
        """Weights are over the tokens of the text, [heads, steps, tokens]."""
        if not results:
            return Speech("", 0.0, rate=self.mel.rate)
        (spoken,), (part,) = results, parts
        if not spoken.ended:
            steps = len(spoken.frames) // self.model.group
            self.warn(
                f"{given.text.strip()[:40]!r} did not end within {steps} steps, so its recording is cut; if it is that long, "
                "raise decode.max_length and decode.max_ratio"
            )
        frames, tokens = spoken.frames, self.reader.tokens(part.ids)
        speech = Speech(given.text.strip(), spoken.score, part.ids, tokens, tokens)
        speech.samples, speech.rate, speech.frames = self.mel.sound(frames), self.mel.rate, frames
        if given.attention:
            with record(self.model) as recorded:
                self.run(parts)
            speech.attention, speech.uses = first_row(self.model, recorded)
        return speech

    def explanation(self, speech: Speech) -> str:
        """HTML with the recording, its spectrogram, and below it when each token was attended to."""
        weights = mean_attention(speech, "cross")
        views = {} if weights is None else {"attention": weights.T}
        player = audio(speech.content(), f"the recording of {speech.text}")
        table = sound_rows(speech.frames, speech.seconds, speech.source_tokens, views)
        return f"<p>{player}</p>\n{table}" + notes([] if views else ["the decoder shows no attention weights"])
