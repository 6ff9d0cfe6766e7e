"""Losses of generators and discriminators with a gradient penalty (Gulrajani et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["wasserstein", "least_squares"]
"""The distance of a discriminator's judgements (Arjovsky et al. 2017; Mao et al. 2017)."""
Judge = Callable[[Tensor], Tensor]
"""A discriminator: texts [B, …] → [B]."""


def gradient_penalty(judge: Judge, real: Tensor, fake: Tensor) -> Tensor:
    """max(0, ‖∇ judge(x)‖ − 1)² of each row, [B], at a random x between a real and a fake row.

    Slopes below 1 are free (Petzka et al. 2018): a slope of 1 at texts that look real would move generators away from them.
    """
    share = torch.rand(len(real), *[1] * (real.ndim - 1), device=real.device, dtype=real.dtype)
    between = (share * real.detach() + (1 - share) * fake.detach()).requires_grad_()
    (slopes,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    return (slopes.flatten(1).norm(dim=1) - 1).clamp_min(0).square()


def discriminator_loss(judge: Judge, real: Tensor, fake: Tensor, penalty: float, kind: Kind) -> Tensor:
    """What a discriminator minimises, summed over rows: high for real rows, low for fakes, slopes of at most 1 between."""
    above, below = judge(real), judge(fake)
    apart = below - above if kind == "wasserstein" else (above - 1).square() + below.square()
    return (apart + penalty * gradient_penalty(judge, real, fake)).sum()


def generator_loss(judge: Judge, fake: Tensor, kind: Kind) -> Tensor:
    """What a generator minimises, summed over rows: its texts should be judged as real ones are."""
    judged = judge(fake)
    return (-judged if kind == "wasserstein" else (judged - 1).square()).sum()


def straight_through_sample(chances: Tensor) -> Tensor:
    """Symbols drawn from probabilities [..., V], as ones among zeros, with the gradient of the probabilities.

    Soft fakes are easily told from real texts, so generators would be pushed to be sure before they are right.
    """
    with torch.no_grad():
        symbols = torch.multinomial(chances.flatten(0, -2), 1).view(chances.shape[:-1])
        ones = F.one_hot(symbols, chances.size(-1)).to(chances.dtype)
    return ones + chances - chances.detach()


def replay_fakes(pool: Tensor | None, fakes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Fakes to judge, half of them earlier ones from the pool, and the pool [size, …] after the exchange (Shrivastava 2017)."""
    fakes = fakes.detach()
    if pool is None:
        pool = fakes[torch.arange(size, device=fakes.device) % len(fakes)].clone()
    slots = torch.randperm(size, device=fakes.device)[: len(fakes)]
    old = torch.rand(len(slots), device=fakes.device) < 0.5
    shown = fakes.clone()
    mask = old.view(-1, *[1] * (fakes.ndim - 1))
    shown[: len(slots)] = torch.where(mask, pool[slots], fakes[: len(slots)])
    after = pool.clone()
    after[slots] = torch.where(mask, fakes[: len(slots)], pool[slots])
    return shown, after
