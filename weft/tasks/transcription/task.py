"""Transcription: recordings to texts, by attention, by CTC or by both, scored by the loss and by word and character errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from weft.data.batch import PairBatch, Position
from weft.data.corpus import Corpus, Rows
from weft.data.data_format import listed_files
from weft.data.formats import Pairs
from weft.data.sentence_pairs import collate_pairs, make_pairs
from weft.data.tokenizers import RESERVED, has_tokenizers
from weft.data.tokenizers.added_tokens import load_extended, save_extended
from weft.errors import ConfigError
from weft.evaluation.metrics import ExactMatch, Metric, score
from weft.explain.attention_heatmap import mean_attention
from weft.explain.html_parts import image
from weft.inference.decoding_options import DecodingOptions, changed, resolve_options
from weft.inference.predictor import Prediction
from weft.losses.ctc_loss import CtcLoss, ctc_loss
from weft.models.base import Encoded, Model, Network, Sizes
from weft.models.composition import build_encoder, build_encoder_decoder
from weft.models.ctc_model import CtcModel, JointModel
from weft.tasks.base import LOSS, Loss, Measure, Share, TaskContext
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.tokenizer_setup import learn_tokenizer
from weft.tasks.transcription.data import count_unalignable, prepare_recordings
from weft.tasks.transcription.log_mel import LogMel, Scaling, features, read_wav
from weft.tasks.transcription.metrics import CharacterErrorRate, WordErrorRate
from weft.tasks.transcription.predictor import TranscriptionPredictor
from weft.tasks.transcription.spec_augment import SpecAugment

Weight = Annotated[float, Field(ge=0, le=1)]


class TranscriptionTask(CorpusTask):
    """Sound to text: (1 − ctc_weight) · cross-entropy of the decoder + ctc_weight · CTC over the encoder's memory.

    The data lists wav files with their texts; file names are relative to the list. data.max_length limits frames and tokens.

    ctc_weight: weight of CTC; 0: none, 1: CTC alone, and then no decoder is built
    decode_ctc: how much CTC counts when a text is chosen; null: ctc_weight. Between 0 and 1, texts that attention and CTC
        propose are ranked by both
    label_smoothing: share of the probability that is spread evenly over the vocabulary
    rate: samples per second; recordings of other rates are resampled. 0: the rate of the first training recording
    mels: mel bands per frame
    window: length of a frame in seconds
    hop: seconds from one frame to the next
    scaling: of the bands. recording: to mean 0 and variance 1 in each recording, which hides differences of microphones, and
        of the sounds of a short recording; fixed: by constants, which sound that is transcribed as it comes needs
    time_masks: masks over time per recording (SpecAugment, Park et al. 2019)
    time_mask: frames of the longest such mask; at most a fifth of a recording
    frequency_masks: masks over frequencies per recording
    frequency_mask: bands of the largest such mask
    tempo: largest random change of speed in training; 0.1: ten per cent
    pitch: largest random change of all frequencies in training
    level: largest random change in training of the volume, and of the outermost bands against the middle one, in units of
        scaled bands
    """

    example = "recordings.tsv (a wav file, a tab, its text)"
    commands = ("weft predict {run} recording.wav", "weft evaluate {run} --data recordings.tsv")
    measures = (
        Measure("wer", "WER", higher_is_better=False),
        Measure("cer", "CER", higher_is_better=False),
        Measure("exact", "exact match"),
        LOSS,
    )
    sentences = (0,)
    bf16_weights = False
    data_format = listed_files((".wav",))

    def __init__(
        self,
        context: TaskContext,
        *,
        ctc_weight: Weight = 0.3,
        decode_ctc: Weight | None = None,
        label_smoothing: Share = 0.1,
        rate: NonNegativeInt = 0,
        mels: PositiveInt = 40,
        window: PositiveFloat = 0.025,
        hop: PositiveFloat = 0.01,
        scaling: Scaling = "recording",
        time_masks: NonNegativeInt = 0,
        time_mask: NonNegativeInt = 20,
        frequency_masks: NonNegativeInt = 0,
        frequency_mask: NonNegativeInt = 8,
        tempo: Share = 0.0,
        pitch: Share = 0.0,
        level: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(context)
        if decode_ctc is not None and ctc_weight in (0, 1) and decode_ctc != ctc_weight:
            raise ConfigError(
                f"task.decode_ctc: {decode_ctc:g} needs a model that was trained by attention and CTC, and task.ctc_weight is "
                f"{ctc_weight:g}; leave decode_ctc out"
            )
        self.weight, self.smoothing = ctc_weight, label_smoothing
        self.decode_weight = ctc_weight if decode_ctc is None else decode_ctc
        self.mel = LogMel(rate, mels, window, hop, scaling)
        masks = time_masks, time_mask, frequency_masks, frequency_mask
        self.augment = SpecAugment(*masks, tempo, pitch, level, self.config.data.max_length)
        self.valid_pairs: list[tuple[str, str]] = []

    def prepare(self) -> Sizes:
        sizes = super().prepare()
        self.valid_pairs = list(islice(chain.from_iterable(self.references), self.config.train.validate_sentences or None))
        return sizes

    def learn(self, train: list[Pairs]) -> None:
        """Takes over the rate of the first recording as well, if none is set."""
        if not self.mel.rate:
            first = next(iter(train[0]))[0]
            self.mel = replace(self.mel, rate=read_wav(first).rate)
            self.config = self.config.replaced({"task.rate": self.mel.rate})
            self.report(f"task.rate: {self.mel.rate:,} samples per second, as in {first}")
        if not has_tokenizers(self.run):
            tokenizer = learn_tokenizer(self.config, train, self.report, side=1)
            save_extended(self.run, tokenizer, tokenizer)

    def reopen(self) -> Sizes:
        self.source = self.target = load_extended(self.run, self.config.data.tokenizer)[1]
        return Sizes(self.mel.mels, self.target.size, reads="frames")

    def placeholder_sizes(self) -> Sizes:
        return Sizes(self.mel.mels, 8, reads="frames")

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        if not self.weight:
            return build_encoder_decoder(spec, sizes)
        if self.weight == 1:
            encoder = build_encoder(spec, sizes)
            self._tell_unalignable(encoder.shortens)
            return CtcModel(encoder, sizes.target)
        model = build_encoder_decoder(spec, sizes)
        self._tell_unalignable(model.encoder.shortens)
        return JointModel(model.encoder, model.decoder, sizes.target)

    def _tell_unalignable(self, shortens: int) -> None:
        """Says how many training recordings are too short for their texts, once the data is there."""
        count = count_unalignable(self.train, shortens) if hasattr(self, "train") else 0
        if count:
            self.report(
                f"warning: {count:,} of {len(self.train):,} training recordings have too few vectors for CTC to align their "
                f"texts (one vector per {shortens} frames), and add nothing to its loss; shorten less in model.front, or use a "
                "tokenizer with longer tokens"
            )

    def vocabularies(self) -> list[str]:
        return [self.target.digest(), str(self.mel)]

    def predictor(
        self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> TranscriptionPredictor:
        return TranscriptionPredictor(model, self.target, self.mel, resolved, weight=self.decode_weight, warn=warn)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return [WordErrorRate(), CharacterErrorRate(), ExactMatch()]

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        data = self.config.data
        return prepare_recordings(
            pairs,
            self.target,
            self.mel,
            folder=folder,
            max_length=data.max_length,
            drop_duplicates=data.drop_duplicates and training,
            progress=progress,
        )

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> PairBatch:
        return collate_pairs(corpus, rows, **layout)

    def batches(self, position: Position) -> Iterator[tuple[PairBatch, Position]]:
        """Augmented batches. The changes follow from the seed and the position, so resuming repeats them."""
        here = position
        for batch, following in super().batches(position):
            key = (self.config.train.seed, *here)
            yield self.augment.batch(batch, key) if self.augment else batch, following
            here = following

    def losses(self, model: nn.Module, batch: PairBatch, update: int) -> Iterator[Loss]:
        assert isinstance(model, Model | CtcModel)
        count, metrics = batch.target_layout.ok.sum(), {}
        encoded, total = model.encode(batch.source), torch.zeros((), device=count.device)
        if isinstance(model, Model):
            found = model.decoder.features(batch.target, model.decoder.start(encoded), batch.target_layout)
            loss, metrics["nll"] = model.decoder.loss(found.hidden, batch.labels, self.smoothing)
            total = total + (1 - self.weight) * loss
        if isinstance(model, CtcModel | JointModel):
            aligned = _ctc(model, encoded, batch)
            metrics |= {"ctc": aligned.nll.detach().sum(), "unalignable": (~aligned.alignable).sum()}
            total = total + self.weight * aligned.nll.sum()
        yield Loss(total, count, metrics)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The loss per token on all validation data, without smoothing; errors of greedy texts on some of it."""
        if self.valid is None:
            return {}
        assert isinstance(model, Model | CtcModel)
        total, count = 0.0, 0
        for batch in self.validation(model):
            encoded, nll = model.encode(batch.source), torch.zeros(())
            if isinstance(model, Model):
                found = model.decoder.features(batch.target, model.decoder.start(encoded), batch.target_layout)
                nll = (1 - self.weight) * model.decoder.loss(found.hidden, batch.labels)[1]
            if isinstance(model, CtcModel | JointModel):
                nll = nll + self.weight * _ctc(model, encoded, batch).nll.sum()
            total, count = total + float(nll), count + int(batch.target_layout.ok.sum())
        references = [text for _, text in self.valid_pairs]
        results = score(self.transcripts(model), references, self.metrics())
        return {"loss": total / max(1, count), **{each.key: each.value for each in results.values()}}

    def transcripts(self, model: Network) -> list[str]:
        """Greedy texts of the validation recordings."""
        section = changed(self.config.decode, {"search": "greedy", "rerank": "none", "n_best": 1})
        predictor = self.predictor(model, resolve_options(section, model.device))
        inputs = (predictor.parse_input(name) for name, _ in self.valid_pairs)
        return [found.text for found in predictor.predict(inputs, together=True)]

    def explanation(self, predictor: TranscriptionPredictor, prediction: Prediction, text: str) -> str:
        """The spectrogram, and below it where each token was heard: by attention (mean of all layers and heads), and by CTC."""
        frames = features(text.strip(), self.mel)
        low, high = float(frames.min()), float(frames.max())
        spectrum = (255 * (frames.T[::-1] - low) / max(high - low, 1e-9)).astype(np.uint8)
        views = {"attention": mean_attention(prediction, "cross")}
        if "ctc" in prediction.attention:
            views["CTC"] = prediction.attention["ctc"][0]
        seconds = len(frames) * self.mel.step / self.mel.rate
        rows = f"<tr><th>{seconds:.2f} s</th><td>{image(spectrum, 'spectrogram', kind='wide')}</td></tr>\n"
        for name, weights in views.items():
            for token, row in zip(prediction.tokens, [] if weights is None else weights):
                shade = (255 * row / max(float(row.max()), 1e-9)).astype(np.uint8)[None]
                line = image(shade, f"{name} of {token}", kind="wide")
                rows += f"<tr><th>{escape(token)} <small>{name}</small></th><td>{line}</td></tr>\n"
        return f"<table class=sound>{rows}</table>\n"

    def describe(self) -> dict[str, Any]:
        facts = {"ids": self.target.size, "training recordings": len(self.train)}
        return facts | ({} if self.valid is None else {"validation recordings": len(self.valid)})

    @property
    def typical_length(self) -> int:
        return min(256, self.config.data.max_length)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> PairBatch:
        """Random frames, with a text of an eighth of their number."""
        draw, tokens = np.random.default_rng(length), max(1, length // 8)
        frames = draw.standard_normal((rows * length, sizes.source), np.float32)
        text = draw.integers(RESERVED, max(RESERVED + 1, sizes.target), rows * tokens)
        return make_pairs(frames, text, np.tile([length, tokens], (rows, 1)), rounded=rounded, budget=rows * length)


def _ctc(model: CtcModel | JointModel, encoded: Encoded, batch: PairBatch) -> CtcLoss:
    """CTC of the labels without EOS."""
    emitted = model.ctc(encoded)
    counts: Tensor = batch.target_layout.lengths - 1
    return ctc_loss(emitted.logits, emitted.lengths, batch.labels, counts, blank=emitted.blank)
