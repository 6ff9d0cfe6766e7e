"""Tasks that write a text for a source of any kind with an encoder and a decoder, and their losses.

The losses are cross-entropy with teacher forcing and what can be added to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from weft.config.registry import Among, build
from weft.data.batch import PairBatch
from weft.errors import ConfigError, RunError
from weft.losses.attention_penalties import Penalties
from weft.losses.hard_attention_reinforce import Baseline, MovingBaseline, Reinforce
from weft.losses.log_likelihood import LossSpec, build_loss, decoder_loss
from weft.losses.minimum_risk_and_reinforce import DrawsTexts, RewardLoss, RewardObjective
from weft.losses.r_drop_and_unlikelihood import divergence, unlikelihood
from weft.losses.scheduled_sampling import Sampling
from weft.models.base import Model, Network, Sizes
from weft.models.ensembles_and_wrapped_decoders import Ensemble
from weft.tasks.base import Loss, Share, TaskContext
from weft.tasks.corpus_task import CorpusTask


@dataclass(frozen=True)
class Seq2SeqObjective:
    """Losses of a decoder that writes a text.

    loss: loss of the next token; cross_entropy is computed without storing all logits
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

    loss: LossSpec = field(default_factory=lambda: {"kind": "cross_entropy"})
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


class Seq2SeqLoss:
    """The losses of a batch for an objective. task: has the tokenizers, and writes the texts that are rewarded."""

    def __init__(self, objective: Seq2SeqObjective, task: DrawsTexts) -> None:
        self.token_loss = build_loss(objective.loss)
        self.smoothing, self.r_drop, self.unlikelihood = objective.label_smoothing, objective.r_drop, objective.unlikelihood
        self.reinforce = Reinforce(
            objective.reinforce_weight,
            objective.entropy_weight,
            objective.reinforce_discount,
            objective.draws,
            objective.reinforce_baseline,
        )
        weights = {
            "guided": objective.guided_weight,
            "coverage": objective.coverage_weight,
            "doubly_stochastic": objective.doubly_stochastic_weight,
        }
        self.penalties = Penalties(weights, objective.guided_width, objective.penalty_layers)
        self.baseline = MovingBaseline("baseline") if objective.reinforce_baseline == "moving" else None
        self.sampling: Sampling = build("weft.losses:SAMPLINGS", objective.sampling)
        self.task = task
        rewarded: RewardObjective | None = build("weft.losses:REWARD_OBJECTIVES", objective.reward, where="task.reward")
        self.rewarding = None if rewarded is None else RewardLoss(rewarded, task)

    @property
    def capturable(self) -> bool:
        """See `Task`. Attention weights of a packed row would cover every pair of its sentences."""
        return self.sampling.capturable and not any(self.penalties.weights.values()) and self.rewarding is None

    def __call__(self, model: Model, batch: PairBatch, update: int) -> Iterator[Loss]:
        """The losses of the true texts, and that of texts that the model writes if there is a reward."""
        teacher = self.rewarding.objective.teacher_weight if self.rewarding else 1.0
        if teacher:
            for loss in self._forced(model, batch, update):
                yield loss if teacher == 1 else replace(loss, total=teacher * loss.total)
        if self.rewarding:
            loss = Loss(*self.rewarding(model, batch))
            yield replace(loss, count=torch.zeros_like(loss.count)) if teacher else loss

    def _baselines(self) -> list[MovingBaseline]:
        return [each for each in (self.baseline, self.rewarding and self.rewarding.baseline) if each]

    def extra_state(self) -> dict[str, Tensor]:
        return {name: tensor for each in self._baselines() for name, tensor in each.extra_state().items()}

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        for each in self._baselines():
            each.load_extra_state(tensors)

    def _forced(self, model: Model, batch: PairBatch, update: int) -> Iterator[Loss]:
        """One loss for each way of feeding the batch. A sentence counts once, however often it is sampled and fed."""
        drawn = self.reinforce.repeat(model, batch)
        inputs = self.sampling.inputs(model, drawn, update)
        for fed in inputs:
            times = self.reinforce.draws * len(inputs)
            loss, hidden = self._loss(model, drawn, fed, times)
            if self.r_drop:
                other, again = self._loss(model, drawn, fed, times)
                apart = divergence(model.decoder, hidden, again, drawn.target_layout.mask) / times
                loss = loss.mean(other).plus("divergence", apart, self.r_drop / 2)
            yield loss

    def _loss(self, model: Model, batch: PairBatch, fed: Tensor, times: int) -> tuple[Loss, Tensor]:
        """The loss if the decoder is fed `fed`, with everything added to it, divided by `times`; and the hidden states."""
        with self.penalties.recording(model.decoder) as recorded:
            features = model(batch.source, fed, batch.target_layout)
        total, nll = decoder_loss(self.token_loss, model.decoder, features.hidden, batch.labels, self.smoothing)
        ok, metrics = batch.target_layout.mask, {"nll": nll}
        if "log_prob" in features.extras:
            total = total + self.reinforce(model.decoder, features, batch.labels, ok, self.baseline)
            metrics["entropy"] = features.extras["entropy"].detach().where(ok, 0.0).sum()
        for name, value in self.penalties.sums(recorded, batch).items():
            total = total + self.penalties.weights[name] * value
            metrics[name] = value.detach()
        if self.unlikelihood:
            value = unlikelihood(model.decoder, features.hidden, batch, self.task.target.size)
            total, metrics["unlikelihood"] = total + self.unlikelihood * value, value.detach()
        if not self.sampling.capturable:
            metrics["true_inputs"] = ((fed == batch.target) & ok).sum()
        return Loss(total / times, ok.sum() / times, {name: value / times for name, value in metrics.items()}), features.hidden


class Seq2SeqTask(CorpusTask):
    """A task whose models are an encoder and a decoder that writes the target token by token.

    rewards: whether it can learn from rewards of texts that the model writes.
    """

    rewards: ClassVar[bool] = False
    tokenized = 1
    quick: Mapping[str, Any] = {"search": "greedy", "rerank": "none", "n_best": 1}

    def __init__(self, context: TaskContext, *, objective: Seq2SeqObjective) -> None:
        super().__init__(context)
        self.objective, self.smoothing = Seq2SeqLoss(objective, self), objective.label_smoothing
        self.info, self.rewarding = replace(self.info, capturable=self.objective.capturable), self.objective.rewarding
        if self.rewarding is not None and not self.rewards:
            raise ConfigError(f"task.reward: the task {self.config.task['kind']} has no rewards; remove it")
        if self.rewarding is not None and self.config.train.packed is True:
            raise ConfigError("task.reward: texts cannot be drawn for packed rows; set train.packed: false")

    def prepare(self) -> Sizes:
        sizes = super().prepare()
        if self.objective.unlikelihood and not (sizes.reads == "tokens" and sizes.shared):
            raise ConfigError("task.unlikelihood needs texts with one vocabulary on both sides: data.shared_vocabulary: true")
        return sizes

    def describe(self) -> dict[str, Any]:
        return {"ids": self.target.size, **super().describe()}

    def ensemble(self, models: Sequence[Network]) -> Network:
        parts = [model for model in models if isinstance(model, Model)]
        if len({model.copies for model in parts}) > 1:
            raise RunError(
                "an ensemble needs runs that all copy source words (model.kind: pointer), or runs of which none does"
            )
        return Ensemble(parts)

    def losses(self, model: Model, batch: PairBatch, update: int) -> Iterator[Loss]:
        yield from self.objective(model, batch, update)

    def draw(self, model: Model, sources: Sequence[list[int]], samples: int) -> list[list[list[int]]]:
        """The ids of `samples` texts of each source or, if it is 0, of the greedy one, for `task.reward`."""
        raise NotImplementedError

    def extra_state(self) -> dict[str, Tensor]:
        return self.objective.extra_state()

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.objective.load_extra_state(tensors)

    def validation_loss(self, model: Model, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood, and the number of tokens it sums."""
        features = model(batch.source, batch.target, batch.target_layout)
        return model.decoder.loss(features.hidden, batch.labels)[1], batch.target_layout.mask.sum()
