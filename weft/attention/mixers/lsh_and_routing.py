"""Attention inside buckets of similar tokens: the Reformer's locality-sensitive hashing, and the Routing Transformer.

In each round every token is assigned to a bucket by its content. Sorted by bucket, and inside a bucket by position, tokens that
may attend to each other are adjacent: each attends to its nearest neighbours in this order, a band along the diagonal.
Published forms cut the sorted row into fixed chunks, or let each bucket take the tokens that fit it best. Either way, the
tokens that a token sees depend on later tokens and on padding. The last `window` tokens of its bucket do not.

Shapes: B rows · H heads · R rounds · T positions · S stored positions · D head width.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Mixer, Site, join_heads, split_heads
from weft.attention.core.dot_product import PAIRS, masked_softmax, record_context
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import History, State
from weft.layers.linear_norm_dropout import accumulation_dtype, dropout, xavier
from weft.layers.step_recorder import record, recording

ITSELF = 1e5
"""Subtracted from a token's score of itself, its own best match, so that it attends to itself only if it sees no other."""

MAX_COMPARED = 16
"""The largest chunk that is compared with every stored token; for a longer one, all stored tokens are sorted again."""


@dataclass
class BucketedTokens:
    """All tokens so far: concatenated queries and values [B, S, 2·H·D], and buckets [B, S, H·R]."""

    tokens: History
    buckets: History


class BucketMixer(Mixer):
    """Each token attends to the nearest of its bucket: the last `window`, itself included (causal), or that many on each side.

    As in the Reformer (Kitaev et al. 2020), queries and keys share a projection, a key is its query normalised to length 1, and
    a token attends to itself only if it sees no other. A score is q·k, not divided by √D: the authors' code gives keys a root
    mean square of 1, that is a length of √D, which cancels the division. A token found in several rounds counts once.
    """

    cost = "n·(log n + rounds·window)"
    uses = frozenset({"encoder", "causal"})
    receptive_field = "data"
    supports_packing = True

    def __init__(self, site: Site, window: int, rounds: int, buckets: int) -> None:
        super().__init__(site)
        self.window, self.rounds, self.kinds = window, rounds, buckets
        self.width = site.head_dim
        self.query_value = nn.Linear(site.dim, 2 * site.dim)
        self.out = nn.Linear(site.dim, site.dim)
        xavier(self.query_value, 2)
        xavier(self.out)

    @abstractmethod
    def assign(self, q: Tensor, mask: Tensor | None) -> Tensor:
        """The buckets [B, H, R, T], 0 to `kinds` − 1, of tokens with queries q [B, H, T, D]. mask [B, T]: the real ones."""

    def begin(self, rows: int, room: int | None) -> State:
        weight = self.out.weight
        none = torch.zeros(0, dtype=torch.int16, device=weight.device)
        buckets = History.empty(rows, self.site.heads * self.rounds, room, none)
        return BucketedTokens(History.empty(rows, 2 * self.site.dim, room, weight), buckets)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        joint = self.query_value(x)
        q, v = (split_heads(part, self.site.heads) for part in joint.chunk(2, -1))
        buckets = self.assign(q.detach(), None if layout is None else layout.mask)
        if state is None or state.tokens.fresh:
            context = self._band(q, v, buckets, None if layout is None else layout.segments)
            state = None if state is None else self._append(state, joint, buckets, layout)[0]
        else:
            state, place = self._append(state, joint, buckets, layout)
            context = self._attend_past(q, buckets, state, place)
        return Attended(self.out(join_heads(context).to(x.dtype)), state)

    def _append(
        self, state: BucketedTokens, joint: Tensor, buckets: Tensor, layout: Layout | None
    ) -> tuple[BucketedTokens, Tensor]:
        tokens, place = state.tokens.append(joint, layout)
        flat = buckets.flatten(1, 2).transpose(1, 2).to(torch.int16)
        return BucketedTokens(tokens, state.buckets.append(flat, layout)[0]), place

    def _attend_past(self, q: Tensor, buckets: Tensor, state: BucketedTokens, place: Tensor) -> Tensor:
        """Attends from tokens at positions `place` [B, T] to all tokens so far, including their own chunk."""
        heads, extent = self.site.heads, q.size(2)
        stored = state.tokens.tokens.to(q.dtype)
        keys, v = (split_heads(part, heads) for part in stored.chunk(2, -1))
        theirs = state.buckets.tokens.transpose(1, 2).unflatten(1, (heads, self.rounds)).long()
        if extent <= MAX_COMPARED:
            return _attend_stored(q, _keys(keys), v, (buckets, theirs), place, self.window, self.dropped)
        real = torch.arange(stored.size(1), device=q.device) < state.tokens.length[:, None]
        whole = self._band(keys, v, theirs, real)
        return whole.gather(2, place.clamp_max(stored.size(1) - 1)[:, None, :, None].expand(-1, heads, -1, whole.size(-1)))

    def _band(self, q: Tensor, v: Tensor, buckets: Tensor, segments: Tensor | None) -> Tensor:
        """Attends within the band. The sentences of a packed row, and padding, get separate buckets."""
        if segments is not None:
            buckets = buckets + self.kinds * segments[:, None, None]
        causal = self.site.use == "causal"
        context = band(q, v, buckets, self.window, causal=causal, share=self.dropped)
        if recording():
            _record_band(q, v, buckets, _reached(buckets, self.window, causal), context)
        return context


def _reached(buckets: Tensor, window: int, causal: bool) -> Tensor:
    """[B, H, T, T] bool: the tokens that each token sees in any round of buckets [B, H, R, T]."""
    extent = buckets.size(-1)
    order = buckets.sort(stable=True).indices
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(extent, device=order.device).expand_as(order))
    places = rank + window * buckets
    ahead = places[..., None] - places[..., None, :]
    return ((ahead < window) & (ahead >= (0 if causal else 1 - window))).any(2)


def _record_band(q: Tensor, v: Tensor, buckets: Tensor, seen: Tensor, context: Tensor) -> None:
    """Records buckets [B, H, R, T], and the context that the pairs `seen` [B, H, T, T] give."""
    queries, keys, channels = _keys(q), "row head key", "row head query channel"
    record("buckets", buckets, "row head round token")
    record("queries", q, channels)
    record("keys", queries, f"{keys} channel", "q / norm(q, channel)", q=(q, f"{keys} channel"))
    products, itself = q @ queries.transpose(-1, -2), torch.eye(q.size(2), dtype=q.dtype, device=q.device)
    record("products", products, PAIRS, "sum(q * k, channel)", q=(q, channels), k=(queries, f"{keys} channel"))
    scores = products - ITSELF * itself
    operands = {"products": (products, PAIRS), "itself": (itself, "query key")}
    record("scores", scores, PAIRS, "products - far * itself", **operands, far=ITSELF)
    record_context(context, masked_softmax(scores, seen), v)


def band(q: Tensor, v: Tensor, buckets: Tensor, window: int, *, causal: bool, share: float = 0.0) -> Tensor:
    """Every token attends to those fewer than `window` places away in its bucket; if causal, to itself and those before it.

    q, v [B, H, T, D], buckets [B, H, R, T] → [B, H, T, D], in float32 at least. Rounds are weighted by the sums of their
    exponentials, in which a pair is divided by the number of rounds that contain it: this is softmax over the union of all
    rounds (Kitaev et al. 2020, appendix A). Memory is that of 2·R·T·window pairs per head (encoder: 3·).
    """
    extent = q.size(2)
    window = min(window, extent)
    order = buckets.sort(stable=True).indices
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(extent, device=q.device).expand_as(order))
    blocks = _Blocks.of(window, extent, causal)
    near = _near(rank + window * buckets, order, window, blocks, causal, accumulation_dtype(q.dtype))
    rows = torch.cat([q, _keys(q), v], -1)[:, :, None].expand(-1, -1, order.size(2), -1, -1)
    ours, keys, values = _sort(rows, order).split(q.size(-1), -1)
    scores = blocks.own(ours) @ blocks.around(keys).transpose(-1, -2)
    scores = scores.to(near.dtype) + near
    top = scores.detach().amax(-1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    context = dropout(weights, share).to(v.dtype) @ blocks.around(values)
    context = torch.cat([context.to(total.dtype) / total, top + total.log()], -1)
    context = _sort(context.flatten(3, 4)[..., :extent, :], rank)
    return (context[..., :-1] * context[..., -1:].softmax(2)).sum(2)


@dataclass(frozen=True)
class _Blocks:
    """A sorted row in blocks as long as the window, so that a token's neighbours lie in its own block and in adjacent ones.

    beside: the number of blocks to attend to before and after the own block; zero if a short row is a single block.
    """

    size: int
    extent: int
    beside: tuple[int, int]

    @staticmethod
    def of(window: int, extent: int, causal: bool) -> _Blocks:
        beside = (1, 0) if causal else (1, 1)
        if extent <= (1 + sum(beside)) * window:  # one block has no more pairs
            return _Blocks(max(extent, 1), extent, (0, 0))
        return _Blocks(window, extent, beside)

    def own(self, x: Tensor, fill: float = 0) -> Tensor:
        """[…, T, D] → […, N, size, D], N blocks."""
        return F.pad(x, (0, 0, 0, self._more), value=fill).unflatten(-2, (-1, self.size))

    def around(self, x: Tensor, fill: float = 0) -> Tensor:
        """[…, T, D] → […, N, (1 + beside)·size, D]: each block with its adjacent blocks."""
        before, after = (count * self.size for count in self.beside)
        blocks = F.pad(x, (0, 0, before, self._more + after), value=fill).unflatten(-2, (-1, self.size))
        count = (self.extent + self._more) // self.size
        return torch.cat([blocks[..., begin : begin + count, :, :] for begin in range(1 + sum(self.beside))], -2)

    @property
    def _more(self) -> int:
        return -self.extent % self.size


@torch.no_grad()
def _near(places: Tensor, order: Tensor, window: int, blocks: _Blocks, causal: bool, dtype: torch.dtype) -> Tensor:
    """[B, H, R, N, size, around]: added to the scores of each round; very low where a token may not attend.

    `places` [B, H, R, T] are ranks in the sorted row, with gaps of a window between buckets: two tokens may attend to each
    other exactly if their places are less than a window apart.
    """
    rounds = order.size(2)

    def pairs(mine: Tensor) -> tuple[Tensor, Tensor]:
        """Two masks: the pairs within reach, and those of a token and itself."""
        query, key = blocks.own(mine[..., None], -window), blocks.around(mine[..., None], -window).transpose(-1, -2)
        back = key <= query if causal else key < query + window
        return back & (query < key + window), query == key

    own, itself = pairs(places.gather(-1, order))
    added = torch.zeros(own.shape, device=places.device, dtype=dtype)
    if rounds > 1:
        for each in range(rounds):
            added += pairs(places[:, :, each : each + 1].expand_as(order).gather(-1, order))[0]
        added = -added.clamp_(min=1).log_()
    return added.sub_(ITSELF * itself).masked_fill_(~own, torch.finfo(added.dtype).min)


def _attend_stored(
    q: Tensor, keys: Tensor, v: Tensor, buckets: tuple[Tensor, Tensor], place: Tensor, window: int, share: float
) -> Tensor:
    """The same for a few queries at positions `place` [B, T], against all S stored tokens with a mask."""
    mine, theirs = buckets
    cells = torch.arange(keys.size(2), device=q.device)
    place = place[:, None, :, None]
    same = (mine[..., None] == theirs[..., None, :]) & (cells <= place)[:, :, None]
    count = same.cumsum(-1, dtype=torch.int32)
    seen = (same & (count > count[..., -1:] - window)).any(2)
    scores = (q @ keys.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32))
    weights = masked_softmax(scores - ITSELF * (cells == place), seen, shown="")
    return dropout(weights, share).to(v.dtype) @ v


def _keys(q: Tensor) -> Tensor:
    """Queries normalised to length 1."""
    return F.normalize(q, dim=-1).to(q.dtype)


def _sort(x: Tensor, order: Tensor) -> Tensor:
    """x […, T, D] in the given order […, T]."""
    return x.gather(-2, order[..., None].expand(*order.shape, x.size(-1)))


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

    def assign(self, q: Tensor, mask: Tensor | None) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):  # in bf16 many tokens would lie on a border
            turned = torch.einsum("bhtd,hrda->bhrta", q.float(), self.rotations.float())
        return torch.cat([turned, -turned], -1).argmax(-1)

    def refresh(self, generator: torch.Generator) -> None:
        if self.redraw:
            self.rotations.copy_(torch.randn(self.rotations.shape, generator=generator), non_blocking=True)


class RoutingMixer(BucketMixer):
    """Routing attention: a token belongs to the centroid nearest to its query's direction; centroids learn by online k-means.

    The clusters and their online k-means are those of Roy et al. 2021. The attention inside a cluster is that of the Reformer
    (Kitaev et al. 2020) in all uses: queries and keys share a projection, keys have length 1, and a token does not attend to
    itself. Roy et al. share the projection in causal use only, normalise queries too, and let a token attend to itself.

    A training pass only sums the directions of each cluster's tokens; `refresh` moves the centroids, alike in all processes.

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

    def assign(self, q: Tensor, mask: Tensor | None) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            way = F.normalize(q.float(), dim=-1)
            nearest = torch.einsum("bhtd,hcd->bhtc", way, F.normalize(self.centroids.float(), dim=-1)).argmax(-1)
            if self.training:
                mine = F.one_hot(nearest, self.kinds).to(way.dtype)
                if mask is not None:
                    way, mine = way.where(mask[:, None, :, None], 0.0), mine * mask[:, None, :, None]
                counted = F.pad(way, (0, 1), value=1.0)
                self.gathered += torch.einsum("bhtc,bhtd->hcd", mine, counted).to(self.gathered.dtype)
        return nearest[:, :, None]

    def refresh(self, generator: torch.Generator) -> None:
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self.gathered)
        total, count = self.gathered.float().split([self.width, 1], -1)
        moved = F.normalize(self.decay * self.centroids + (1 - self.decay) * total / count.clamp_min(1), dim=-1)
        # A centroid without tokens stays where it is; all of them do after a step that was not finite.
        good = (count > 0) & moved.isfinite().all(-1, keepdim=True)
        self.centroids.copy_(torch.where(good, moved, self.centroids))
        self.gathered.zero_()
