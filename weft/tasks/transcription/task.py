"""Transcription: recordings to texts, by attention, by CTC or by both, scored by the loss and by word and character errors.

The columns of the corpus are `source`, log-mel frames, and `target`, with EOS at the end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from html import escape
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from weft.data.batch import EOS, PairBatch
from weft.data.corpus import Columns, Corpus, Encoding, ids_below
from weft.data.data_format import listed_files
from weft.data.formats import Pairs, Texts
from weft.data.sentence_pairs import PairFilters, make_pairs
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import ConfigError
from weft.evaluation.metrics import ExactMatch
from weft.explain.attention_heatmap import mean_attention
from weft.explain.html_page import image
from weft.inference.decoding_options import DecodingOptions, Warn
from weft.inference.predictor import Prediction
from weft.losses.ctc_loss import CtcLoss, ctc_loss
from weft.models.base import Model, Network, Sizes
from weft.tasks.base import LOSS, Loss, Measure, Share, TaskContext, TaskInfo
from weft.tasks.seq2seq_task import Seq2SeqObjective, Seq2SeqTask
from weft.tasks.transcription.log_mel import LogMel, features, read_wav
from weft.tasks.transcription.metrics import CharacterErrorRate, WordErrorRate
from weft.tasks.transcription.model import CtcModel, JointModel, with_ctc
from weft.tasks.transcription.predictor import TranscriptionPredictor
from weft.tasks.transcription.spec_augment import SpecAugment

CHUNK = 256
"""Recordings whose features are held in memory at a time."""

VERSION = 1
"""Changes when the same recording gives other features than before."""


def recording_encoding(target: Tokenizer, mel: LogMel, max_length: int, drop_duplicates: bool = False) -> Encoding:
    """The corpus of wav files and their texts.

    Left out are recordings without a text, and those with more than `max_length` frames or tokens.
    """
    filters = PairFilters(max_length, None, drop_duplicates)

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        sources = [features(name, mel) for name, _ in texts]
        targets = target.encode_batch([text for _, text in texts])
        kept, reasons = filters(texts, sources, targets)
        return {"source": [sources[i] for i in kept], "target": [[*targets[i], EOS] for i in kept]}, reasons

    key = ["recordings", VERSION, target.digest(), astuple(mel), max_length, drop_duplicates]
    columns = {"source": f"({mel.mels},)float32", "target": ids_below(target.size)}
    return Encoding(key, encode, columns, ["source", "target"], unit="recordings", chunk=CHUNK)


def count_unalignable(corpus: Corpus, shortens: int) -> int:
    """Recordings whose text CTC cannot align: they have fewer vectors than tokens, counting repeated tokens twice.

    shortens: frames per vector of the model.
    """
    frames, tokens = np.asarray(corpus.lengths, np.int64).T
    ids, begins = np.asarray(corpus.values["target"]), np.asarray(corpus.offsets["target"]).astype(np.int64)
    repeats = np.zeros(len(ids) + 1, np.int64)
    repeats[2:] = ids[1:] == ids[:-1]  # EOS ends every row, so no row repeats the end of the one before
    total = repeats.cumsum()
    needed = tokens - 1 + total[begins[1:]] - total[begins[:-1]]
    return int((-(-frames // shortens) < needed).sum())


pass

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
        metric_types=(WordErrorRate, CharacterErrorRate, ExactMatch),
        bf16_weights=False,
        typical_length=256,
    )
    measures = (*(Measure(metric.key(), metric.name, metric.higher_is_better) for metric in info.metric_types), LOSS)
    sentences = (0,)
    data_format = listed_files((".wav",))

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
        """Random frames, with a text of an eighth of their number."""
        draw, tokens = np.random.default_rng(length), max(1, length // 8)
        frames = draw.standard_normal((rows * length, sizes.source), np.float32)
        text = draw.integers(RESERVED, max(RESERVED + 1, sizes.target), rows * tokens)
        return make_pairs(frames, text, np.tile([length, tokens], (rows, 1)), rounded=rounded, budget=rows * length)

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
