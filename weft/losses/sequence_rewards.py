"""Objectives on rewards of whole texts that the model itself writes: minimum risk, REINFORCE and self-critical training.

Texts are drawn without gradient, and their log-probabilities computed with gradient, both without dropout.

Shapes: G sources · K texts of each source; in minimum risk the last one is the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from weft.config.registry import Among
from weft.errors import ConfigError
from weft.losses.hard_attention_reinforce import others_mean

Metric = Annotated[dict[str, Any], Among("weft.evaluation:REWARDS")]
BLEU: dict[str, Any] = {"kind": "bleu"}


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


class RewardObjective(ABC):
    """What is minimised. samples: texts that are drawn per source · weight, teacher_weight: of the reward and of cross-entropy.

    with_reference: the reference is one of the texts · compares: greedy texts are rewarded as well · moving: the baseline is a
    moving mean of rewards, which the task keeps.
    """

    with_reference: bool = False
    compares: bool = False
    moving: bool = False

    def __init__(self, metric: dict[str, Any], samples: int, weight: float, teacher_weight: float) -> None:
        self.metric, self.samples, self.weight, self.teacher_weight = metric, samples, weight, teacher_weight

    @abstractmethod
    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        """[G]: the loss of each source; moving: the moving baseline, if it is used."""


def no_reward() -> None:
    """Cross-entropy alone."""


class MinimumRisk(RewardObjective):
    """Minimum risk (Shen et al. 2016): −Σ_y Q(y) R(y), with Q ∝ p(y)^α over different drawn texts and the reference.

    metric: what rewards a text
    samples: texts per source that are drawn
    alpha: α, the sharpness of Q
    weight: weight of the reward, whose loss is a mean over sentences
    teacher_weight: weight of the cross-entropy of the true tokens, a mean over tokens
    """

    with_reference = True

    def __init__(
        self,
        *,
        metric: Metric = BLEU,
        samples: PositiveInt = 8,
        alpha: PositiveFloat = 0.005,
        weight: NonNegativeFloat = 1.0,
        teacher_weight: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(metric, samples, weight, teacher_weight)
        self.alpha = alpha

    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        shares = (self.alpha * drawn.log_prob).masked_fill(~drawn.first, -torch.inf).softmax(-1)
        return -(shares * drawn.reward).sum(-1)


class SequenceReinforce(RewardObjective):
    """REINFORCE (Williams 1992; Ranzato et al. 2016): −(R(y) − b) log p(y) of drawn texts y; the baseline b adds no bias.

    metric: what rewards a text
    samples: texts per source that are drawn
    baseline: the mean reward of the other texts of the source (samples), a moving mean of all rewards, or none
    weight: weight of the reward, whose loss is a mean over sentences
    teacher_weight: weight of the cross-entropy of the true tokens, a mean over tokens
    """

    def __init__(
        self,
        *,
        metric: Metric = BLEU,
        samples: PositiveInt = 4,
        baseline: Literal["samples", "moving", "none"] = "samples",
        weight: NonNegativeFloat = 1.0,
        teacher_weight: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(metric, samples, weight, teacher_weight)
        self.baseline, self.moving = baseline, baseline == "moving"
        if baseline == "samples" and samples < 2:
            raise ConfigError("task.reward.samples: the baseline `samples` needs two or more texts; raise it, or use moving")

    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        baseline: Tensor | float = 0.0 if moving is None else moving
        if self.baseline == "samples":
            baseline = others_mean(drawn.reward)
        return -((drawn.reward - baseline) * drawn.log_prob).mean(-1)


class SelfCritical(RewardObjective):
    """Self-critical training (Rennie et al. 2017): REINFORCE whose baseline is the reward of the greedy text.

    metric: what rewards a text
    samples: texts per source that are drawn
    weight: weight of the reward, whose loss is a mean over sentences
    teacher_weight: weight of the cross-entropy of the true tokens, a mean over tokens
    """

    compares = True

    def __init__(
        self,
        *,
        metric: Metric = BLEU,
        samples: PositiveInt = 1,
        weight: NonNegativeFloat = 1.0,
        teacher_weight: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(metric, samples, weight, teacher_weight)

    def loss(self, drawn: SampledTexts, moving: Tensor | None = None) -> Tensor:
        assert drawn.greedy is not None
        return -((drawn.reward - drawn.greedy[:, None]) * drawn.log_prob).mean(-1)
