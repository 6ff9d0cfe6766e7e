"""Attention among tokens with equal hashes."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.errors import ConfigError
from weft.mixers.buckets import BucketMixer


class LshMixer(BucketMixer):
    """LSH attention of the Reformer: a token's bucket is the axis, or its opposite, closest to it after a random rotation.

    Where the published form cuts the sorted tokens into chunks, a token here sees the nearest tokens of its bucket.

    buckets: number of hash buckets; even
    rounds: number of hashes, each by another rotation; a token sees the union of all rounds
    window: how many tokens of its bucket a token sees on each side, itself included
    redraw: whether training draws new rotations after each step, so that no pair of tokens is separated forever
    """

    paper = "Kitaev et al. 2020"
    rotations: Tensor

    def __init__(
        self,
        site: Site,
        *,
        buckets: PositiveInt = 8,
        rounds: PositiveInt = 2,
        window: PositiveInt = 64,
        redraw: bool = True,
    ) -> None:
        if buckets % 2:
            raise ConfigError(
                f"buckets: hash buckets come in pairs, an axis and its opposite; use {buckets + 1} instead of {buckets}"
            )
        super().__init__(site, window, rounds, buckets)
        self.redraw = redraw
        self.register_buffer("rotations", torch.randn(site.heads, rounds, self.width, buckets // 2))

    def assign(self, q: Tensor, ok: Tensor | None) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):  # in bf16 many tokens would lie on a border
            turned = torch.einsum("bhtd,hrda->bhrta", q.float(), self.rotations.float())
        return torch.cat([turned, -turned], -1).argmax(-1)

    def refresh(self, generator: torch.Generator) -> None:
        if self.redraw:
            self.rotations.copy_(torch.randn(self.rotations.shape, generator=generator), non_blocking=True)
