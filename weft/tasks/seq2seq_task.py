"""Tasks that write a text for a source of any kind: cross-entropy with teacher forcing, and what may be added to it.

`MediaPredictor` is the base of predictors that write a text about a file, such as a picture or a recording.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from weft.attention.core.weight_recorder import first_row, record
from weft.config.registry import Among, build
from weft.data.batch import BOS, EOS, PairBatch, Source
from weft.data.tokenizers import Tokenizer
from weft.decoding.hypotheses import Hypothesis
from weft.errors import ConfigError
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, Prediction, Predictor
from weft.losses.attention_penalties import Penalties
from weft.losses.hard_attention_reinforce import Baseline, MovingBaseline, Reinforce
from weft.losses.log_likelihood import log_likelihoods
from weft.losses.r_drop import divergence
from weft.losses.scheduled_sampling import Sampling
from weft.losses.sequence_rewards import RewardLoss, RewardObjective
from weft.losses.unlikelihood import unlikelihood
from weft.models.base import Encoded, Model, Sizes
from weft.tasks.base import Loss, Share, TaskContext
from weft.tasks.corpus_task import CorpusTask, Direction


@dataclass(frozen=True)
class Seq2SeqObjective:
    """Losses of a decoder that writes a text.

    label_smoothing: share of the probability that is spread evenly over the vocabulary
    reinforce_weight: weight of REINFORCE for attention that samples (hard)
    reinforce_discount: discount of the reward per later token; 1: all count in full, without bias; less: biased, but less noisy
    entropy_weight: reward for the entropy of such an attention, per nat
    reinforce_baseline: the reward that is expected: that of other samples, or a moving average (Xu et al. 2015)
    draws: samples per sentence and step; from 2 on, the other samples of a sentence are its baseline
    guided_weight: penalty on attention away from the diagonal (Tachibana et al. 2017)
    guided_width: width of the diagonal that costs little, as a share of the sentence
    coverage_weight: penalty on attending to the same source token again (See et al. 2017)
    doubly_stochastic_weight: penalty on source tokens whose total attention is not one (Xu et al. 2015)
    penalty_layers: the cross-attentions that these penalties apply to; 0: the first, −1: the last
    sampling: what the decoder is fed in training: the true tokens, or some of its own predictions
    r_drop: weight of the divergence between two passes with different dropout (Liang et al. 2021), which take twice the time;
        0: one pass
    unlikelihood: penalty on the probability of tokens that the source has and the target does not (Welleck et al. 2020), for
        texts that should not copy
    reward: learn from a score of whole texts that the model writes, instead of or beside cross-entropy
    """

    label_smoothing: Share = 0.1
    reinforce_weight: NonNegativeFloat = 1.0
    reinforce_discount: Annotated[float, Field(ge=0, le=1)] = 0.5
    entropy_weight: NonNegativeFloat = 0.01
    reinforce_baseline: Baseline = "samples"
    draws: PositiveInt = 1
    guided_weight: NonNegativeFloat = 0.0
    guided_width: PositiveFloat = 0.2
    coverage_weight: NonNegativeFloat = 0.0
    doubly_stochastic_weight: NonNegativeFloat = 0.0
    penalty_layers: Annotated[list[int], Field(min_length=1)] = field(default_factory=lambda: [-1])
    sampling: Annotated[dict[str, Any], Among("weft.losses:SAMPLINGS")] = field(default_factory=lambda: {"kind": "none"})
    r_drop: NonNegativeFloat = 0.0
    unlikelihood: NonNegativeFloat = 0.0
    reward: Annotated[dict[str, Any], Among("weft.losses:REWARD_OBJECTIVES")] = field(default_factory=lambda: {"kind": "none"})

    @property
    def penalties(self) -> Penalties:
        weights = {
            "guided": self.guided_weight,
            "coverage": self.coverage_weight,
            "doubly_stochastic": self.doubly_stochastic_weight,
        }
        return Penalties(weights, self.guided_width, self.penalty_layers)

    @property
    def reinforce(self) -> Reinforce:
        return Reinforce(
            self.reinforce_weight, self.entropy_weight, self.reinforce_discount, self.draws, self.reinforce_baseline
        )


class Seq2SeqTask(CorpusTask):
    """A task whose models are an encoder and a decoder that writes the target token by token.

    rewards: whether it can learn from rewards of texts that the model writes.
    """

    rewards: ClassVar[bool] = False

    def __init__(self, context: TaskContext, *, objective: Seq2SeqObjective) -> None:
        super().__init__(context)
        self.r_drop, self.unlikelihood = objective.r_drop, objective.unlikelihood
        self.smoothing, self.reinforce, self.penalties = objective.label_smoothing, objective.reinforce, objective.penalties
        self._moving = MovingBaseline("baseline") if objective.reinforce_baseline == "moving" else None
        self.sampling: Sampling = build("weft.losses:SAMPLINGS", objective.sampling)
        rewarded: RewardObjective | None = build("weft.losses:REWARD_OBJECTIVES", objective.reward, where="task.reward")
        if rewarded is not None and not self.rewards:
            raise ConfigError(f"task.reward: the task {self.config.task['kind']} has no rewards; remove it")
        if rewarded is not None and self.config.train.packed is True:
            raise ConfigError("task.reward: texts cannot be drawn for packed rows; set train.packed: false")
        self.rewarding = None if rewarded is None else RewardLoss(rewarded, self)
        # Attention weights of a packed row would cover every pair of its sentences.
        self.capturable = self.sampling.capturable and not any(self.penalties.weights.values()) and self.rewarding is None

    def prepare(self) -> Sizes:
        sizes = super().prepare()
        if self.unlikelihood and not (sizes.reads == "tokens" and sizes.shared):
            raise ConfigError("task.unlikelihood needs texts with one vocabulary on both sides: data.shared_vocabulary: true")
        return sizes

    def losses(self, model: torch.nn.Module, batch: PairBatch, update: int) -> Iterator[Loss]:
        """One loss for each way of feeding the batch. A sentence counts once, however often it is sampled and fed."""
        assert isinstance(model, Model)
        teacher = self.rewarding.objective.teacher_weight if self.rewarding else 1.0
        if teacher:
            for loss in self._forced(model, batch, update):
                yield loss if teacher == 1 else replace(loss, total=teacher * loss.total)
        if self.rewarding:
            loss = Loss(*self.rewarding(model, batch))
            yield replace(loss, count=torch.zeros_like(loss.count)) if teacher else loss

    def draw(self, model: Model, sources: Sequence[list[int]], samples: int) -> list[list[Hypothesis]]:
        """`samples` texts of each source or, if it is 0, the greedy one, for `task.reward`."""
        raise NotImplementedError

    def _forced(self, model: Model, batch: PairBatch, update: int) -> Iterator[Loss]:
        """The losses of the true texts."""
        drawn = self.reinforce.repeat(model, batch)
        inputs = self.sampling.inputs(model, drawn, update)
        for fed in inputs:
            times = self.reinforce.draws * len(inputs)
            loss, hidden = self._objective(model, drawn, fed, times)
            if self.r_drop:
                other, again = self._objective(model, drawn, fed, times)
                apart = divergence(model.decoder, hidden, again, drawn.target_layout.ok) / times
                loss = loss.mean(other).plus("divergence", apart, self.r_drop / 2)
            yield loss

    def _baselines(self) -> list[MovingBaseline]:
        return [each for each in (self._moving, self.rewarding and self.rewarding.baseline) if each]

    def extra_state(self) -> dict[str, Tensor]:
        return {name: tensor for each in self._baselines() for name, tensor in each.extra_state().items()}

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        for each in self._baselines():
            each.load_extra_state(tensors)

    def _objective(self, model: Model, batch: PairBatch, fed: Tensor, times: int) -> tuple[Loss, Tensor]:
        """The loss if the decoder is fed `fed`, with everything added to it, divided by `times`; and the hidden states."""
        with self.penalties.recording(model) as recorded:
            found = model(batch.source, fed, batch.target_layout)
        total, nll = model.decoder.loss(found.hidden, batch.labels, self.smoothing)
        ok, metrics = batch.target_layout.ok, {"nll": nll}
        if "log_prob" in found.extras:
            with torch.no_grad():
                gained = log_likelihoods(model.decoder, found.hidden, batch.labels)
            terms = found.extras["log_prob"], found.extras["entropy"]
            total = total + self.reinforce.loss(gained, *terms, ok, self._moving.on(gained.device) if self._moving else None)
            if self._moving:
                self._moving.move(gained, ok)
            metrics["entropy"] = found.extras["entropy"].detach().where(ok, 0.0).sum()
        for name, value in self.penalties.sums(recorded, batch).items():
            total = total + self.penalties.weights[name] * value
            metrics[name] = value.detach()
        if self.unlikelihood:
            value = unlikelihood(model.decoder, found.hidden, batch, self.target.size)
            total, metrics["unlikelihood"] = total + self.unlikelihood * value, value.detach()
        if not self.sampling.capturable:
            metrics["true_inputs"] = ((fed == batch.target) & ok).sum()
        return Loss(total / times, ok.sum() / times, {name: value / times for name, value in metrics.items()}), found.hidden

    def mean_loss(self, model: Model, directions: Sequence[Direction] | None = None) -> tuple[float, int]:
        """The negative log-likelihood per token of validation targets, by default of all, and the number of tokens."""
        total, count = 0.0, 0
        for batch in self.validation(model, directions):
            nll, tokens = self.validation_loss(model, batch)
            total, count = total + float(nll), count + int(tokens)
        return total / max(1, count), count

    def validation_loss(self, model: Model, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood of a batch, and the number of tokens it sums."""
        found = model(batch.source, batch.target, batch.target_layout)
        return model.decoder.loss(found.hidden, batch.labels)[1], batch.target_layout.ok.sum()


Input = TypeVar("Input")


class MediaPredictor(Predictor[Input, Prediction], ABC, Generic[Input]):
    """A model with the tokenizer of its texts. The score of a text is that of the search."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, options: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(model, options, warn)
        self.tokenizer = tokenizer
        if isinstance(model, Model):
            options.search.wrap_decoder(model.decoder)  # fails now if the search cannot work with this decoder
        if options.config.n_best > 1:
            options.search.check(["n_best"])

    def write(self, hypothesis: Hypothesis) -> Prediction:
        ids = hypothesis.tokens
        text = self.tokenizer.decode([token for token in ids if token != EOS])
        return Prediction(text, hypothesis.score, ids, self.tokenizer.tokens(ids))

    def join_outputs(self, given: Input, parts: list[BatchItem], results: list[list[Prediction]]) -> Prediction:
        if not results or not results[0]:
            return Prediction("", 0.0)
        best, *rest = results[0]
        best.alternatives = rest
        return best

    @torch.inference_mode()
    def add_attention(self, written: Prediction, source: Source) -> Encoded:
        """Adds the weights of every layer that has any, and returns what the encoder made of the source."""
        with record(self.model) as recorded:
            encoded: Encoded = self.model.encode(source)
            if isinstance(self.model, Model):
                fed = torch.tensor([[BOS, *written.ids[:-1]]], device=self.model.device)
                self.model.decoder.features(fed, self.model.decoder.start(encoded))
        written.attention, written.uses = first_row(self.model, recorded)
        return encoded
