"""Synthesis: texts to recordings, scored by the mel-cepstral distortion of what the model speaks by itself.

The columns of the corpus are `source`, token ids with EOS, and `target`, log-mel frames.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from weft.data.batch import PairBatch
from weft.data.corpus import Corpus, Encoding, Rows
from weft.data.formats import Pairs
from weft.decoding.decoding_options import DecodingOptions, Warn, changed, resolve_options
from weft.losses.attention_penalties import Penalties
from weft.models.base import Network, Sizes
from weft.tasks.base import LOSS, Loss, Measure, TaskContext, TaskInfo
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.synthesis.data import collate_speech, random_speech, speech_encoding, spoken_texts
from weft.tasks.synthesis.griffin_lim import InvertibleLogMel
from weft.tasks.synthesis.metrics import diagonal_share, mel_cepstral_distortion
from weft.tasks.synthesis.model import (
    Distance,
    SpeechModel,
    SpeechOptions,
    SpeechOutputs,
    attended,
    build_speech_model,
    end_labels,
    frame_distance,
)
from weft.tasks.synthesis.predictor import Speech, SynthesisPredictor
from weft.tasks.transcription.log_mel import DEVIATION, features, read_wav


class SynthesisTask(CorpusTask):
    """Text to sound: frames by an encoder and a decoder, which is fed its own frames, and phases by Griffin–Lim.

    The data lists texts with their wav files; file names are relative to the list. data.max_length limits tokens and frames.
    The loss of a step is the distance of its frames, before and after the postnet, and the cross-entropy of whether it is the
    last one.

    distance: between frames: l1, which blurs less, or l2
    lowercase: read texts in lower case
    guided_weight: penalty on attention away from the diagonal (Tachibana et al. 2017); 0: none
    guided_width: width of the diagonal that costs little, as a share of the text
    """

    example = "spoken.tsv (a text, a tab, a wav file)"
    info = TaskInfo(
        commands=('weft predict {run} "a text" -o speech.wav', "weft evaluate {run} --data spoken.tsv"),
        count_unit="steps",
        inference_kind="forward",
        bf16_weights=False,
        typical_length=256,
        output_suffix=".wav",
    )
    measures = (
        Measure("mcd", "mel-cepstral distortion (dB)", higher_is_better=False),
        Measure("unended", "texts without an end (%)", higher_is_better=False),
        Measure("diagonal", "attention near the diagonal (%)"),
        LOSS,
    )
    sentences = (0,)
    tokenized = 0
    quick: Mapping[str, Any] = {"search": "greedy", "rerank": "none", "n_best": 1}

    def __init__(
        self,
        context: TaskContext,
        *,
        mel: InvertibleLogMel,
        speech: SpeechOptions,
        distance: Distance = "l1",
        lowercase: bool = True,
        guided_weight: NonNegativeFloat = 1.0,
        guided_width: PositiveFloat = 0.2,
    ) -> None:
        super().__init__(context)
        mel.check()
        self.mel, self.speech, self.distance, self.lowercase = mel, speech, distance, lowercase
        self.data_format = spoken_texts(lowercase)
        self.penalties = Penalties({"guided": guided_weight}, guided_width, [-1])

    def learn(self, train: list[Pairs]) -> None:
        """Takes over the rate of the first recording as well, if none is set."""
        if not self.mel.rate:
            _, first = next(iter(train[0]))
            self.mel = replace(self.mel, rate=read_wav(first).rate)
            self.config = self.config.replaced({"task.rate": self.mel.rate})
            self.report(f"task.rate: {self.mel.rate:,} samples per second, as in {first}")
        super().learn(train)

    def placeholder_sizes(self) -> Sizes:
        return self._sizes(8)

    def reopen(self) -> Sizes:
        super().reopen()
        return self._sizes(self.source.size)

    def _sizes(self, vocabulary: int) -> Sizes:
        return Sizes(vocabulary, self.speech.frames_per_step * self.mel.mels + 1, writes="vectors")

    def vocabulary_size(self, sizes: Sizes) -> int:
        return sizes.source

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        return build_speech_model(spec, sizes, self.mel.mels, self.speech)

    def encoding(self, *, training: bool) -> Encoding:
        data = self.config.data
        return speech_encoding(self.source, self.mel, data.max_length, data.drop_duplicates and training)

    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> PairBatch:
        rows = np.asarray(rows, np.int64)
        return collate_speech(corpus, rows, self.speech.frames_per_step, budget=budget, rounded=rounded)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> PairBatch:
        return random_speech(length, rows, sizes.source, self.mel.mels, self.speech.frames_per_step, rounded=rounded)

    def losses(self, model: SpeechModel, batch: PairBatch, update: int) -> Iterator[Loss]:
        with self.penalties.recording(model.decoder) as recorded:
            outputs = model.teacher_forced(batch)
        real = batch.target_layout.mask
        terms = {name: torch.where(real, each, 0.0).sum() for name, each in self._terms(model, outputs, batch).items()}
        loss = Loss(torch.stack([*terms.values()]).sum(), real.sum(), {name: each.detach() for name, each in terms.items()})
        for name, value in self.penalties.sums(recorded, batch).items():
            loss = loss.plus(name, value, self.penalties.weights[name])
        yield loss

    def _terms(self, model: SpeechModel, outputs: SpeechOutputs, batch: PairBatch) -> dict[str, Tensor]:
        """[B, T]: the parts of the loss of each step."""
        labels = end_labels(batch.target_layout)
        terms = {
            "frames": frame_distance(outputs.frames, batch.labels, self.distance),
            "ends": F.binary_cross_entropy_with_logits(outputs.ends.float(), labels, reduction="none"),
        }
        if model.postnet is not None:
            terms["refined"] = frame_distance(outputs.refined, batch.labels, self.distance)
        return terms

    def evaluate(self, model: SpeechModel) -> dict[str, float]:
        """The distortion of what is spoken for validation texts, and, with true frames fed, the attention and the loss."""
        if self.valid is None:
            return {}
        total, steps, near = 0.0, 0, list[float]()
        for batch in self.validation(model):
            layout = batch.target_layout
            outputs, recorded = attended(model, batch)
            terms = torch.stack([*self._terms(model, outputs, batch).values()]).sum(0)
            total, steps = total + float(torch.where(layout.mask, terms, 0.0).sum()), steps + int(layout.mask.sum())
            if recorded is not None:
                near.append(diagonal_share(recorded.float(), layout, batch.source.layout)[0])
        scores = {"diagonal": 100 * sum(near) / steps} if near else {}
        return {**self._spoken_scores(model), **scores, "loss": total / steps}

    def _spoken_scores(self, model: SpeechModel) -> dict[str, float]:
        """The scores of recordings that the model makes, unless it is busy learning (train.validate_bleu: false)."""
        if not (self.config.train.validate_bleu and self.decoded_examples):
            return {}
        predictor = self.predictor(model, resolve_options(changed(self.config.decode, self.quick), model.device))
        parts = [
            part for (part,) in predictor.encode_input([predictor.parse_input(text) for text, _ in self.decoded_examples], 1)
        ]
        spoken = []
        for first in range(0, len(parts), 32):
            spoken += predictor.run(parts[first : first + 32])
        distortions = [
            mel_cepstral_distortion(DEVIATION * each.frames, DEVIATION * features(path, self.mel))
            for each, (_, path) in zip(spoken, self.decoded_examples, strict=True)
        ]
        return {"mcd": float(np.mean(distortions)), "unended": 100 * float(np.mean([not each.ended for each in spoken]))}

    def predictor(self, model: Any, resolved: DecodingOptions, warn: Warn | None = None) -> SynthesisPredictor:
        return SynthesisPredictor(model, self.source, self.mel, resolved, warn, lowercase=self.lowercase)

    def explanation(self, predictor: SynthesisPredictor, prediction: Speech, text: str) -> str:
        """The recording, its spectrogram, and when each token was attended to."""
        return predictor.explanation(prediction)

    def describe(self) -> dict[str, Any]:
        return {"ids": self.source.size, **super().describe()}
