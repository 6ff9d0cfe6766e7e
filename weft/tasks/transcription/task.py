"""Transcription: recordings to texts, by attention, by CTC or by both, scored by the loss and by word and character errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.data.batch import PairBatch
from weft.errors import ConfigError, RunError
from weft.inference.decoding_options import DecodingOptions, Warn
from weft.inference.predictor import Prediction
from weft.losses.ctc_loss import CtcLoss, ctc_loss
from weft.models.base import Model, Network, Sizes
from weft.tasks.base import LOSS, Loss, Measure, Share, TaskContext
from weft.tasks.seq2seq_objective import Seq2SeqObjective
from weft.tasks.seq2seq_task import Seq2SeqTask
from weft.tasks.transcription.data import Recordings, SoundOptions, count_unalignable
from weft.tasks.transcription.explanation import spectrogram_table
from weft.tasks.transcription.metrics import METRICS
from weft.tasks.transcription.model import CtcModel, JointModel, with_ctc
from weft.tasks.transcription.predictor import TranscriptionPredictor

Weight = Annotated[float, Field(ge=0, le=1)]


class TranscriptionTask(Recordings, Seq2SeqTask):
    """Sound to text: (1 − ctc_weight) · cross-entropy of the decoder + ctc_weight · CTC over the encoder's memory.

    The data lists wav files with their texts; file names are relative to the list. data.max_length limits frames and tokens.

    ctc_weight: weight of CTC; 0: none, 1: CTC alone, and then no decoder is built
    decode_ctc: how much CTC counts when a text is chosen; null: ctc_weight. Between 0 and 1, texts that attention and CTC
        propose are ranked by both
    label_smoothing: share of the probability that is spread evenly over the vocabulary
    """

    example = "recordings.tsv (a wav file, a tab, its text)"
    commands = ("weft predict {run} recording.wav", "weft evaluate {run} --data recordings.tsv")
    metric_types = METRICS
    measures = (*(Measure(metric.key(), metric.name, metric.higher_is_better) for metric in METRICS), LOSS)
    sentences = (0,)
    bf16_weights = False

    def __init__(
        self,
        context: TaskContext,
        *,
        ctc_weight: Weight = 0.3,
        decode_ctc: Weight | None = None,
        label_smoothing: Share = 0.1,
        sound: SoundOptions,
    ) -> None:
        super().__init__(context, objective=Seq2SeqObjective(label_smoothing=label_smoothing))
        if decode_ctc is not None and ctc_weight in (0, 1) and decode_ctc != ctc_weight:
            raise ConfigError(
                f"task.decode_ctc: {decode_ctc:g} needs a model that was trained by attention and CTC, and task.ctc_weight is "
                f"{ctc_weight:g}; leave decode_ctc out"
            )
        self.weight, self.decode_weight = ctc_weight, ctc_weight if decode_ctc is None else decode_ctc
        self.mel, self.augment = sound.mel, sound.augment(self.config.data.max_length)
        self.capturable = False

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
        attended, aligned = self._losses(model, batch, self.smoothing)
        total, metrics = torch.zeros((), device=batch.labels.device), {}
        if attended is not None:
            total, metrics["nll"] = total + (1 - self.weight) * attended[0], attended[1]
        if aligned is not None:
            metrics |= {"ctc": aligned.nll.detach().sum(), "unalignable": (~aligned.alignable).sum()}
            total = total + self.weight * aligned.nll.sum()
        yield Loss(total, batch.target_layout.mask.sum(), metrics)

    def validation_loss(self, model: nn.Module, batch: PairBatch) -> tuple[Tensor, Tensor]:
        attended, aligned = self._losses(model, batch, 0.0)
        nll = torch.zeros(()) if attended is None else (1 - self.weight) * attended[1]
        return nll if aligned is None else nll + self.weight * aligned.nll.sum(), batch.target_layout.mask.sum()

    def _losses(
        self, model: nn.Module, batch: PairBatch, smoothing: float
    ) -> tuple[tuple[Tensor, Tensor] | None, CtcLoss | None]:
        """The loss of the decoder and that of CTC, which is of the labels without EOS, if the model has them."""
        assert isinstance(model, Model | CtcModel)
        encoded, attended, aligned = model.encode(batch.source), None, None
        if isinstance(model, Model):
            features = model.decoder.hidden_states(batch.target, model.decoder.init_state(encoded), batch.target_layout)
            attended = model.decoder.loss(features.hidden, batch.labels, smoothing)
        if isinstance(model, CtcModel | JointModel):
            emitted, counts = model.ctc(encoded), batch.target_layout.lengths - 1
            aligned = ctc_loss(emitted.logits, emitted.lengths, batch.labels, counts, blank=emitted.blank)
        return attended, aligned

    def ensemble(self, models: Sequence[Network]) -> Network:
        raise RunError("models of this task cannot form an ensemble; name one run")

    def explanation(self, predictor: TranscriptionPredictor, prediction: Prediction, text: str) -> str:
        return spectrogram_table(prediction, text.strip(), self.mel)
