"""Transcription: recordings to texts, by attention, by CTC or by both, scored by the loss and by word and character errors.

The columns of the corpus are `source`, log-mel frames, and `target`, with EOS at the end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.data.batch import PairBatch
from weft.data.corpus import Encoding
from weft.data.formats import Pairs
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.errors import ConfigError
from weft.models.base import Network, Sizes
from weft.tasks.base import Loss, Share, TaskContext, TaskInfo, measures_of
from weft.tasks.seq2seq_task import Seq2SeqObjective, Seq2SeqTask
from weft.tasks.transcription.data import RECORDINGS, count_unalignable, random_recordings, recording_encoding
from weft.tasks.transcription.log_mel import LogMel, read_wav
from weft.tasks.transcription.metrics import METRICS
from weft.tasks.transcription.model import attention_and_ctc, with_ctc
from weft.tasks.transcription.predictor import TranscriptionPredictor
from weft.tasks.transcription.spec_augment import SpecAugment

Weight = Annotated[float, Field(ge=0, le=1)]


class TranscriptionTask(Seq2SeqTask):
    """Sound to text: (1 − ctc_weight) · cross-entropy of the decoder + ctc_weight · CTC over the encoder's memory.

    The data lists wav files with their texts; file names are relative to the list. data.max_length limits frames and tokens.

    ctc_weight: weight of CTC; 0: none, 1: CTC alone, and then no decoder is built
    decode_ctc: how much CTC counts when a text is chosen; null: ctc_weight. Between 0 and 1, texts that attention and CTC
        propose are ranked by both
    label_smoothing: share of the probability that is spread evenly over the vocabulary
    """

    example = "recordings.tsv (a wav file, a tab, its text)"
    info = TaskInfo(
        commands=("weft predict {run} recording.wav", "weft evaluate {run} --data recordings.tsv"),
        metric_types=METRICS,
        bf16_weights=False,
        typical_length=256,
    )
    measures = measures_of(METRICS)
    sentences = (0,)
    data_format = RECORDINGS

    def __init__(
        self,
        context: TaskContext,
        *,
        ctc_weight: Weight = 0.3,
        decode_ctc: Weight | None = None,
        label_smoothing: Share = 0.1,
        mel: LogMel,
        augment: SpecAugment,
    ) -> None:
        super().__init__(context, objective=Seq2SeqObjective(label_smoothing=label_smoothing))
        if decode_ctc is not None and ctc_weight in (0, 1) and decode_ctc != ctc_weight:
            raise ConfigError(
                f"task.decode_ctc: {decode_ctc:g} needs a model that was trained by attention and CTC, and task.ctc_weight is "
                f"{ctc_weight:g}; leave decode_ctc out"
            )
        self.weight, self.decode_weight = ctc_weight, ctc_weight if decode_ctc is None else decode_ctc
        self.mel, self.augment = mel, augment
        self.info = replace(self.info, capturable=False)

    def learn(self, train: list[Pairs]) -> None:
        """Takes over the rate of the first recording as well, if none is set."""
        if not self.mel.rate:
            first = next(iter(train[0]))[0]
            self.mel = replace(self.mel, rate=read_wav(first).rate)
            self.config = self.config.replaced({"task.rate": self.mel.rate})
            self.report(f"task.rate: {self.mel.rate:,} samples per second, as in {first}")
        super().learn(train)

    def placeholder_sizes(self) -> Sizes:
        return Sizes(self.mel.mels, 8, reads="frames")

    def encoding(self, *, training: bool) -> Encoding:
        data = self.config.data
        return recording_encoding(self.target, self.mel, data.max_length, data.drop_duplicates and training)

    def augmented(self, batch: PairBatch, key: tuple[int, ...]) -> PairBatch:
        return self.augment.batch(batch, key, self.config.data.max_length) if self.augment else batch

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> PairBatch:
        return random_recordings(length, rows, sizes.source, sizes.target, rounded=rounded)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = None if self.weight == 1 else super().build(spec, sizes)
        if model is not None and not self.weight:
            return model
        transcriber = with_ctc(model, spec, sizes)
        self._report_unalignable(transcriber.encoder.shortens)
        return transcriber

    def _report_unalignable(self, shortens: int) -> None:
        """Reports how many training recordings are too short for their texts, once the data is there."""
        count = count_unalignable(self.train, shortens) if hasattr(self, "train") else 0
        if count:
            self.report(
                f"warning: {count:,} of {len(self.train):,} training recordings have too few vectors for CTC to align their "
                f"texts (one vector per {shortens} frames), and add nothing to its loss; shorten less in model.front, or use a "
                "tokenizer with longer tokens"
            )

    def predictor(self, model: Network, resolved: DecodingOptions, warn: Warn | None = None) -> TranscriptionPredictor:
        return TranscriptionPredictor(model, self.target, self.mel, resolved, weight=self.decode_weight, warn=warn)

    def losses(self, model: nn.Module, batch: PairBatch, update: int) -> Iterator[Loss]:
        attended, aligned = attention_and_ctc(model, batch, self.smoothing)
        total, metrics = torch.zeros((), device=batch.labels.device), {}
        if attended is not None:
            total, metrics["nll"] = total + (1 - self.weight) * attended[0], attended[1]
        if aligned is not None:
            metrics |= {"ctc": aligned.nll.detach().sum(), "unalignable": (~aligned.alignable).sum()}
            total = total + self.weight * aligned.nll.sum()
        yield Loss(total, batch.target_layout.mask.sum(), metrics)

    def validation_loss(self, model: nn.Module, batch: PairBatch) -> tuple[Tensor, Tensor]:
        attended, aligned = attention_and_ctc(model, batch)
        nll = torch.zeros(()) if attended is None else (1 - self.weight) * attended[1]
        return nll if aligned is None else nll + self.weight * aligned.nll.sum(), batch.target_layout.mask.sum()

    def explanation(self, predictor: TranscriptionPredictor, prediction: Any, text: str) -> str:
        """The spectrogram with the places where each token was heard."""
        return predictor.explanation(prediction, text)
