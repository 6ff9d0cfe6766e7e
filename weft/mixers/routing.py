"""Attention among tokens of the same cluster."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.mixers.buckets import BucketMixer


class RoutingMixer(BucketMixer):
    """Routing attention: a token belongs to the centroid nearest to its query's direction; centroids learn by online k-means.

    The clusters and their online k-means are those of Roy et al. 2021. The attention inside a cluster is that of the Reformer
    (Kitaev et al. 2020) in all uses: queries and keys share a projection, keys have length 1, and a token does not attend to
    itself. Roy et al. share the projection in causal use only, normalise queries too, and let a token attend to itself.

    A training pass only sums the directions of each cluster's tokens; `refresh` then moves the centroids, identically in all
    processes.

    clusters: centroids per head
    window: how many tokens of its cluster a token sees on each side, itself included
    decay: share of a centroid that a step keeps; the rest is the mean of its tokens
    """

    paper = "Roy et al. 2021"
    cost = "n·(log n + clusters + window)"
    centroids: Tensor
    gathered: Tensor

    def __init__(
        self,
        site: Site,
        *,
        clusters: PositiveInt = 8,
        window: PositiveInt = 64,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.999,
    ) -> None:
        super().__init__(site, window, 1, clusters)
        self.decay = decay
        self.register_buffer("centroids", F.normalize(torch.randn(site.heads, clusters, self.width), dim=-1))
        # Sums of directions, followed by their number. They are 0 after each step, so no checkpoint needs them.
        self.register_buffer("gathered", torch.zeros(site.heads, clusters, self.width + 1), persistent=False)

    def assign(self, q: Tensor, ok: Tensor | None) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            way = F.normalize(q.float(), dim=-1)
            nearest = torch.einsum("bhtd,hcd->bhtc", way, F.normalize(self.centroids.float(), dim=-1)).argmax(-1)
            if self.training:
                self._gather(way, nearest, ok)
        return nearest[:, :, None]

    def _gather(self, way: Tensor, nearest: Tensor, ok: Tensor | None) -> None:
        mine = F.one_hot(nearest, self.kinds).to(way.dtype)
        if ok is not None:
            way, mine = way.where(ok[:, None, :, None], 0.0), mine * ok[:, None, :, None]
        self.gathered += torch.einsum("bhtc,bhtd->hcd", mine, F.pad(way, (0, 1), value=1.0)).to(self.gathered.dtype)

    def refresh(self, generator: torch.Generator) -> None:
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self.gathered)
        total, count = self.gathered.float().split([self.width, 1], -1)
        moved = F.normalize(self.decay * self.centroids + (1 - self.decay) * total / count.clamp_min(1), dim=-1)
        # A centroid without tokens stays where it is; all of them do after a step that was not finite.
        good = (count > 0) & moved.isfinite().all(-1, keepdim=True)
        self.centroids.copy_(torch.where(good, moved, self.centroids))
        self.gathered.zero_()
