"""Losses of generators and discriminators: least squares (Mao et al. 2017) with a gradient penalty (Gulrajani et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Judge = Callable[[Tensor], Tensor]
"""A discriminator: texts [B, …] → [B]."""


def gradient_penalty(judge: Judge, real: Tensor, fake: Tensor) -> Tensor:
    """(‖∇ judge(x)‖ − 1)² of each row, [B], at a random x between a real and a fake row."""
    share = torch.rand(len(real), *[1] * (real.ndim - 1), device=real.device, dtype=real.dtype)
    between = (share * real.detach() + (1 - share) * fake.detach()).requires_grad_()
    (slopes,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    return (slopes.flatten(1).norm(dim=1) - 1).square()


def judge_loss(judge: Judge, real: Tensor, fake: Tensor, penalty: float) -> Tensor:
    """What a discriminator minimises, summed over rows: 1 for real rows, 0 for fakes, and a slope of 1 between them."""
    squares = (judge(real) - 1).square() + judge(fake).square()
    return (squares + penalty * gradient_penalty(judge, real, fake)).sum()


def fooling_loss(judge: Judge, fake: Tensor) -> Tensor:
    """What a generator minimises, summed over rows: its texts should be judged 1."""
    return (judge(fake) - 1).square().sum()


def remember(pool: Tensor | None, fakes: Tensor, size: int) -> tuple[Tensor, Tensor]:
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
