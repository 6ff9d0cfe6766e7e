"""Translation with a decoder that writes all tokens at once: its training with blanks, masks, glancing and CTC.

Shapes: B rows · T target positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from weft.config.corpus_entries import TrainingCorpus
from weft.data.batch import EOS, PAD, Batch, FertilityBatch, Layout, PairBatch
from weft.data.corpus import Corpus, Rows
from weft.data.word_noise import CorpusNoise
from weft.errors import ConfigError, RunError
from weft.layers.linear_norm_dropout import without_gradient
from weft.losses.ctc_loss import alignable, best_alignment, ctc_loss
from weft.models.base import Encoded, Model, Network, Sizes
from weft.models.nonautoregressive import NonAutoregressiveDecoder
from weft.tasks.base import Loss, Share, TaskContext
from weft.tasks.nonautoregressive.fertility import Count, attach, attached, counted_alignment, linked
from weft.tasks.seq2seq_task import Seq2SeqObjective
from weft.tasks.translation.attention_alignment import CharacterCounter
from weft.tasks.translation.task import TranslationTask


def mask_some(tokens: Tensor, real: Tensor, blank: int) -> Tensor:
    """`tokens` [B, T] with n of the N `real` ones of each row replaced by blanks, n drawn evenly from 1 … N.

    Every n is trained, all N included, because decoding begins with blanks only (Ghazvininejad et al. 2019).
    """
    lengths = real.sum(1)
    count = (torch.rand(lengths.shape, device=tokens.device) * lengths).long().clamp_max(lengths - 1) + 1
    return tokens.masked_fill(_first(count, real), blank)


def glance(truth: Tensor, predicted: Tensor, real: Tensor, share: float | Tensor, blank: int) -> Tensor:
    """Blanks [B, T], but some true tokens at random: `share` of as many as were predicted wrongly (GLAT, Qian et al. 2021)."""
    wrong = ((truth != predicted) & real).sum(1)
    return truth.masked_fill(~_first((share * wrong).long(), real), blank)


def _first(count: Tensor, real: Tensor) -> Tensor:
    """[B, T] bool: `count` [B] of the real positions of each row, at random."""
    order = torch.rand(real.shape, device=real.device).masked_fill(~real, 2.0).argsort(1)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(real.size(1), device=real.device).expand_as(order))
    return (rank < count[:, None]) & real


@dataclass(frozen=True)
class DecoderPass:
    """The targets of a batch as a canvas holds them: labels [B, T], PAD behind each text · lengths [B] · fertilities [B, S]."""

    labels: Tensor
    lengths: Tensor
    fertilities: Tensor | None = None

    @property
    def real(self) -> Tensor:
        return self.labels != PAD


class NonAutoregressiveTranslationTask(TranslationTask):
    """Text to text with a decoder that writes all tokens at once. Train it on the translations of a teacher (--teacher).

    The canvas of the decoder decides the loss: cross-entropy of the token at each position, or CTC if it holds paths.

    label_smoothing: share of the probability that is spread evenly over the vocabulary
    masking: show some true tokens and learn the others, from one to all, as decoding in several passes needs (mask-predict)
    glancing: show as many true tokens as this share of those that a first pass gets wrong (GLAT); 0: none
    glancing_end: the share at the end of training; it changes linearly
    """

    def __init__(
        self,
        context: TaskContext,
        *,
        label_smoothing: Share = 0.1,
        masking: bool = False,
        glancing: Share = 0.0,
        glancing_end: Share = 0.0,
    ) -> None:
        super().__init__(context, objective=Seq2SeqObjective(label_smoothing=label_smoothing))
        self.masking, self.glancing, self.glancing_end = masking, glancing, glancing_end
        self.quick = {"rerank": "none", "n_best": 1, "fusion": "none"}
        canvas = self.config.model.get("decoder", {}).get("canvas", {})
        self.fertile = canvas.get("kind") == "fertility"
        self._share = torch.tensor(glancing)
        if masking and (glancing or glancing_end):
            raise ConfigError("task.masking already shows true tokens; set task.glancing and task.glancing_end to 0")

    def check_model(self, model: Model) -> None:
        if not isinstance(model.decoder, NonAutoregressiveDecoder):
            raise ConfigError(
                "model: the task parallel_translation needs a decoder that writes all tokens at once; set model: {kind: "
                "composed, decoder: parallel}, or task: translation"
            )
        plan = model.decoder.canvases
        if self.masking and (plan.holds != "text" or plan.needs_fertilities):
            raise ConfigError("task.masking needs a canvas as long as the text; set model.decoder.canvas: length")

    def reopen(self) -> Sizes:
        sizes = super().reopen()
        # The blank is one more token, the last one.
        return Sizes(sizes.source + sizes.shared, sizes.target + 1, sizes.shared)

    def vocabulary_size(self, sizes: Sizes) -> int:
        return max(self.source.size, self.target.size)

    def ensemble(self, models: Sequence[Network]) -> Network:
        raise RunError("decoders that write all tokens at once cannot form an ensemble; name one run")

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, **layout: bool) -> Batch:
        batch = super().dummy_batch(length, Sizes(sizes.source - sizes.shared, sizes.target - 1), rows, **layout)
        assert isinstance(batch, PairBatch)
        return with_fertilities(batch, batch.source.values != PAD) if self.fertile else batch

    def prepare(self) -> Sizes:
        sizes = super().prepare()
        if self.fertile:
            corpora = [part for corpus in (self.train, self.valid) if corpus is not None for part in corpus.parts]
            attach(self.run, corpora, self._fertilities)
        return sizes

    def noising(self, corpus: TrainingCorpus) -> CorpusNoise | None:
        if corpus.noise.any and self.fertile:
            raise ConfigError("data.train: noise would change the source tokens whose fertilities are known; remove it")
        return super().noising(corpus)

    def _fertilities(self) -> Count:
        """Counts fertilities by the attention of the teacher, or without one by an alignment of the training data."""
        self.report("aligning the training data")
        if not self.config.data.teacher or self.teacher is None:
            return counted_alignment(self.train, self.target.size)
        align, source, target = self.teacher.aligner(self.config), CharacterCounter(self.source), CharacterCounter(self.target)

        def count(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> list[NDArray[Any]]:
            texts = [(self.source.decode(ids.tolist()), self.target.decode(other.tolist())) for ids, other in pairs]
            fertilities = []
            for (ids, other), (before, after), each in zip(pairs, texts, align(texts), strict=True):
                weights = np.zeros((len(other), len(ids)))
                if each is not None:
                    weights += each.between(target(other.tolist(), after), source(ids.tolist(), before))
                fertilities.append(linked(weights))
            return fertilities

        return count

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> PairBatch:
        batch = super().collate(corpus, rows, **layout)
        assert isinstance(batch, PairBatch)
        if not self.fertile or batch.source.layout is None:
            return batch
        return with_fertilities(batch, attached(corpus, rows, batch.source.layout))

    def on_update_start(self, update: int) -> None:
        done = min(1.0, (update - 1) / max(1, self.config.train.steps - 1))
        self._share.fill_(self.glancing + done * (self.glancing_end - self.glancing))

    def losses(self, model: Model, batch: PairBatch, update: int) -> Iterator[Loss]:
        source = model.encode(batch.source)
        decoder, written = decoder_pass(model, batch)
        shown = None
        if self.masking:
            shown = mask_some(written.labels, written.real, decoder.blank)
        elif self.glancing or self.glancing_end:
            self._share = self._share.to(batch.labels.device)
            shown = self._glance(decoder, source, written, self._share)
        total, metrics = self._pass_loss(decoder, source, written, shown)
        own = decoder.canvases.loss(source, written.lengths, written.fertilities)
        if own is not None:
            total, metrics["length"] = total + own, own.detach()
        counted = metrics.pop("count")
        yield Loss(total, counted, metrics)

    def _pass_loss(
        self, decoder: NonAutoregressiveDecoder, source: Encoded, written: DecoderPass, shown: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss if the decoder reads `shown`, or blanks only, with `nll` and the `count` of what was predicted."""
        tokens, hidden, layout = read_canvas(decoder, source, written, shown)
        if decoder.canvases.holds == "path":
            return self._path_loss(decoder, hidden, layout.lengths, written)
        labels = fitted(written.labels, layout.positions)
        labels = labels.masked_fill(tokens != decoder.blank, PAD)
        total, nll = decoder.loss(hidden, labels, self.smoothing)
        return total, {"nll": nll, "count": (labels != PAD).sum()}

    def _path_loss(
        self, decoder: NonAutoregressiveDecoder, hidden: Tensor, positions: Tensor, written: DecoderPass
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = decoder.logits(hidden)
        path_loss = ctc_loss(logits, positions, written.labels, written.lengths, blank=decoder.blank)
        nll = path_loss.nll.sum()
        total = nll
        if self.smoothing:
            inside = torch.arange(logits.size(1), device=logits.device) < positions[:, None]
            even = -logits.float().log_softmax(-1).mean(-1).where(inside & path_loss.alignable[:, None], 0.0).sum()
            total = (1 - self.smoothing) * nll + self.smoothing * even
        counts = {"unalignable": (~path_loss.alignable).sum(), "count": written.lengths.where(path_loss.alignable, 0).sum()}
        return total, {"nll": nll.detach(), **counts}

    @without_gradient()
    def _glance(self, decoder: NonAutoregressiveDecoder, source: Encoded, written: DecoderPass, share: Tensor) -> Tensor:
        """Blanks and some true tokens, by a first pass over blanks. A path is compared with the best alignment of the text."""
        _, hidden, layout = read_canvas(decoder, source, written)
        logits = decoder.logits(hidden)
        truth, real = fitted(written.labels, layout.positions), layout.mask
        if decoder.canvases.holds == "path":
            possible = alignable(layout.lengths, written.labels, written.lengths)
            real = real & possible[:, None]
            truth = best_alignment(logits, layout.lengths, written.labels, written.lengths, blank=decoder.blank)
        else:
            real = real & (truth != PAD)
        return glance(truth, logits.argmax(-1), real, share, decoder.blank)

    def validation_loss(self, model: Model, batch: PairBatch) -> tuple[Tensor, Tensor]:
        decoder, written = decoder_pass(model, batch)
        _, metrics = self._pass_loss(decoder, model.encode(batch.source), written, None)
        return metrics["nll"], metrics["count"]


def decoder_pass(model: Model, batch: PairBatch) -> tuple[NonAutoregressiveDecoder, DecoderPass]:
    """The decoder of the model, and the targets of the batch as its canvas holds them."""
    decoder = model.decoder
    assert isinstance(decoder, NonAutoregressiveDecoder)
    labels = batch.labels
    if decoder.canvases.holds != "ended":
        labels = labels.masked_fill(labels == EOS, PAD)
    fertilities = batch.fertilities if isinstance(batch, FertilityBatch) else None
    return decoder, DecoderPass(labels, (labels != PAD).sum(1), fertilities)


def read_canvas(
    decoder: NonAutoregressiveDecoder, source: Encoded, written: DecoderPass, shown: Tensor | None = None
) -> tuple[Tensor, Tensor, Layout]:
    """The tokens that the decoder reads, `shown` or blanks only, its hidden states, and the layout of the canvas."""
    canvas = decoder.canvases.known(source, written.lengths, written.labels.size(1), written.fertilities)
    tokens = torch.full_like(canvas.layout.positions, decoder.blank) if shown is None else shown
    return tokens, decoder.hidden_states(tokens, decoder.open(source, canvas), canvas.layout).hidden, canvas.layout


def with_fertilities(batch: PairBatch, fertilities: Tensor) -> FertilityBatch:
    """The batch with the fertilities [B, S] of its sources."""
    return FertilityBatch(**vars(batch), fertilities=fertilities.long())


def fitted(labels: Tensor, like: Tensor) -> Tensor:
    """labels [B, T] cut or filled up with PAD to the shape of `like`."""
    missing = like.size(1) - labels.size(1)
    return F.pad(labels, (0, missing), value=PAD) if missing >= 0 else labels[:, : like.size(1)]
