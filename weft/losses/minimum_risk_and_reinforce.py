"""Losses from rewards of whole texts that the model itself writes: minimum risk, REINFORCE and self-critical training.

Texts are drawn without gradient, and their log-probabilities computed with gradient, both without dropout.

Shapes: G sources · K texts of each source; in minimum risk the last one is the reference.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from weft.config.registry import Among, build
from weft.data.batch import EOS, Layout, PairBatch, Source, pad, unpad
from weft.decoding.ngram_blocking_and_rules import FORBIDDEN
from weft.errors import ConfigError
from weft.losses.hard_attention_reinforce import MovingBaseline, others_mean
from weft.losses.log_likelihood import text_log_likelihoods
from weft.models.base import Model

Metric = Annotated[dict[str, Any], Among("weft.evaluation:REWARDS")]


@dataclass(frozen=True)
class SampledTexts:
    """Texts and their rewards.

    log_prob [G, K]: with gradient · reward [G, K] · first [G, K] bool: whether no equal text of the source comes before it ·
    greedy [G]: the reward of the greedy text, if the objective `compares` with it.
    """

    log_prob: Tensor
    reward: Tensor
    first: Tensor
    greedy: Tensor | None = None


@dataclass(kw_only=True, eq=False)
class RewardObjective(ABC):
    """A loss on the rewards of sampled texts.

    with_reference: the reference is one of the texts · compares: greedy texts are rewarded as well · moving: the baseline is a
    moving mean of rewards, which the task keeps.

    metric: what rewards a text
    samples: texts per source that are drawn
    weight: weight of the reward, whose loss is a mean over sentences
    teacher_weight: weight of the cross-entropy of the true tokens, a mean over tokens
    """

    with_reference: ClassVar[bool] = False
    compares: ClassVar[bool] = False

    metric: Metric = field(default_factory=lambda: {"kind": "bleu"})
    samples: PositiveInt = 1
    weight: NonNegativeFloat = 1.0
    teacher_weight: NonNegativeFloat = 0.0

    @property
    def moving(self) -> bool:
        return False

    @abstractmethod
    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        """[G]: the loss of each source; moving: the moving baseline, if it is used."""


def no_reward() -> None:
    """Cross-entropy alone."""


@dataclass(kw_only=True, eq=False)
class MinimumRisk(RewardObjective):
    """Minimum risk (Shen et al. 2016): −Σ_y Q(y) R(y), with Q ∝ p(y)^α over different drawn texts and the reference.

    alpha: α, the sharpness of Q
    """

    with_reference = True

    samples: PositiveInt = 8
    alpha: PositiveFloat = 0.005

    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        shares = (self.alpha * drawn.log_prob).masked_fill(~drawn.first, -torch.inf).softmax(-1)
        return -(shares * drawn.reward).sum(-1)


@dataclass(kw_only=True, eq=False)
class SequenceReinforce(RewardObjective):
    """REINFORCE (Williams 1992; Ranzato et al. 2016): −(R(y) − b) log p(y) of drawn texts y; the baseline b adds no bias.

    baseline: the mean reward of the other texts of the source (samples), a moving mean of all rewards, or none
    """

    samples: PositiveInt = 4
    baseline: Literal["samples", "moving", "none"] = "samples"

    def __post_init__(self) -> None:
        if self.baseline == "samples" and self.samples < 2:
            raise ConfigError("task.reward.samples: the baseline `samples` needs two or more texts; raise it, or use moving")

    @property
    def moving(self) -> bool:
        return self.baseline == "moving"

    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        baseline: Tensor | float = 0.0 if moving is None else moving
        if self.baseline == "samples":
            baseline = others_mean(drawn.reward)
        return -((drawn.reward - baseline) * drawn.log_prob).mean(-1)


class SelfCritical(RewardObjective):
    """Self-critical training (Rennie et al. 2017): REINFORCE whose baseline is the reward of the greedy text."""

    compares = True

    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        assert drawn.greedy is not None
        return -((drawn.reward - drawn.greedy[:, None]) * drawn.log_prob).mean(-1)


class DrawsTexts(Protocol):
    """A task whose models can be rewarded for texts: its tokenizers, and how it generates ids."""

    source: Any
    target: Any

    def draw(self, model: Model, sources: Sequence[list[int]], samples: int) -> list[list[list[int]]]:
        """The ids of `samples` texts of each source or, if it is 0, of the greedy one."""


class RewardLoss:
    """Draws texts from a model in training, rewards them, and computes the loss of the reward."""

    def __init__(self, objective: RewardObjective, task: DrawsTexts) -> None:
        if not (objective.weight or objective.teacher_weight):
            raise ConfigError(
                "task.reward: weight and teacher_weight are both 0, so there is nothing to learn; raise one of them"
            )
        self.task, self.objective = task, objective
        self.reward = build("weft.evaluation:REWARDS", objective.metric, where="task.reward.metric")
        self.baseline = MovingBaseline("reward") if objective.moving else None

    def __call__(self, model: Model, batch: PairBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch, the mean over its sentences times its target tokens; that number; and metrics."""
        if model.copies:
            raise ConfigError("task.reward: models that copy source words (model.kind: pointer) are not supported")
        sources, references = unpad(batch.source.values, batch.source.layout), unpad(batch.labels, batch.target_layout)
        with without_dropout(model):
            texts = self.task.draw(model, sources, self.objective.samples)
            greedy = self.task.draw(model, sources, 0) if self.objective.compares else []
            if self.objective.with_reference:
                texts = [[*each, one] for each, one in zip(texts, references, strict=True)]
            log_prob = self.log_probabilities(model, sources, texts)
            rewards = self.rewards([*map(list.__add__, texts, greedy)] if greedy else texts, references, sources)
            reward = torch.tensor(rewards, dtype=log_prob.dtype, device=log_prob.device)
        return self._sum(log_prob, reward, texts, references)

    def _sum(
        self, log_prob: Tensor, reward: Tensor, texts: list[list[list[int]]], references: list[list[int]]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        first = torch.tensor([[ids not in row[:k] for k, ids in enumerate(row)] for row in texts])
        mine, greedy = reward[:, : log_prob.size(1)], reward[:, -1] if self.objective.compares else None
        drawn = SampledTexts(log_prob, mine, first.to(log_prob.device), greedy)
        loss = self.objective.loss(drawn, self.baseline.on(log_prob.device) if self.baseline else None).mean()
        samples = mine[:, : self.objective.samples]
        if self.baseline:
            self.baseline.move(samples, torch.ones_like(samples, dtype=torch.bool))
        count = torch.tensor(sum(map(len, references)), device=log_prob.device)
        lengths = sum(len(ids) for row in texts for ids in row[: self.objective.samples]) / self.objective.samples
        metrics = {"reward": samples.mean() * count, "drawn_length": torch.tensor(float(lengths), device=count.device)}
        return self.objective.weight * loss * count, count, metrics

    def log_probabilities(self, model: Model, sources: Sequence[list[int]], texts: list[list[list[int]]]) -> Tensor:
        """[G, K], with gradient."""
        read = [source for source, row in zip(sources, texts, strict=True) for _ in row]
        layout = Layout.padded([len(source) for source in read]).to(model.device)
        encoded = model.encode(Source(pad(read).to(model.device), layout))
        flat = [ids for row in texts for ids in row]
        return text_log_likelihoods(model.decoder, encoded, flat, never=FORBIDDEN).sum(1).view(len(texts), -1)

    def rewards(
        self, texts: list[list[list[int]]], references: Sequence[list[int]], sources: Sequence[list[int]]
    ) -> list[list[float]]:
        """[G, K]: the reward of each text, as text, given its reference and its source."""
        source, target = self.task.source, self.task.target
        pairs = [(_text(target, reference), _text(source, ids)) for reference, ids in zip(references, sources, strict=True)]
        flat = [(_text(target, ids), *pair) for row, pair in zip(texts, pairs, strict=True) for ids in row]
        values = iter(self.checked(self.reward(*map(list, zip(*flat))), len(flat)))
        return [[next(values) for _ in row] for row in texts]

    def checked(self, rewards: Any, count: int) -> list[float]:
        """The rewards as numbers. A function of another package may return anything."""
        try:
            values = [float(each) for each in rewards]
        except (TypeError, ValueError):
            values = []
        if len(values) != count or not np.isfinite(values).all():
            raise ConfigError(
                f"task.reward.metric: {self.objective.metric['kind']} has to return a finite number for each of {count} texts; "
                f"it returned {str(rewards)[:80]}"
            )
        return values


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside this context the model is in evaluation mode, except recurrent layers: cuDNN has no backward pass there."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    for module, _ in modes:
        if isinstance(module, nn.RNNBase):
            module.training = True
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode([token for token in ids if token != EOS]))
