"""Extra learned tokens of an encoder's attention by pattern: they see all tokens of a sentence and are seen by all.

Shapes: B rows · T tokens · E extra tokens · D width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Site, join_heads
from weft.attention.core.dot_product import mix
from weft.attention.core.kv_cache import ConcatenatedKeyValues
from weft.attention.core.multihead import MultiHead
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.packing import repack, unpack


class LearnedTokens(nn.Module):
    """E vectors that come before every sentence inside the mechanism, and not in its output.

    First they attend to the sentence, g = e + attention(e, [e; x]). Then the tokens attend to [g; x] by their pattern, in which
    the first E positions are global. So any two tokens are two steps apart within one layer.
    """

    def __init__(self, site: Site, count: int) -> None:
        super().__init__()
        if site.use == "causal":
            raise ConfigError(
                "learned: extra tokens see the whole sentence, so a decoder cannot have them; set it to 0 there, and use tokens"
            )
        self.count = count
        self.vectors = nn.Parameter(torch.randn(count, site.dim))

    def run(self, heads: MultiHead, x: Tensor, layout: Layout | None, need_weights: bool) -> Attended:
        """As `Attention.run`. The weights leave out the extra tokens."""
        if layout is not None and layout.packed:
            rows, own = unpack(x, layout)
            return Attended(repack(self._run(heads, rows, own, False).context, layout))
        return self._run(heads, x, layout, need_weights)

    def _run(self, heads: MultiHead, x: Tensor, layout: Layout | None, need_weights: bool) -> Attended:
        longer = None if layout is None else layout.remember(("extra tokens", self.count), lambda: _prepend(layout, self.count))
        extra = self.vectors.to(x.dtype).expand(x.size(0), -1, -1)
        q, k, v = heads.own(torch.cat([extra, x], 1))
        ok = None if longer is None else longer.ok[:, None, None]
        dropout = heads.site.dropout if self.training else 0.0
        seen, _ = mix(q[:, :, : self.count], k, v, ok, dropout, False)
        both = torch.cat([extra + heads.out(join_heads(seen)).to(x.dtype), x], 1)
        found = heads.run(both, ConcatenatedKeyValues(), both, longer, need_weights)
        weights = None if found.weights is None else found.weights[:, :, self.count :, self.count :]
        return replace(found, context=found.context[:, self.count :], state=None, weights=weights)


def _prepend(layout: Layout, count: int) -> Layout:
    """The layout of a padded batch with `count` more tokens before each row."""
    segments = F.pad(layout.segments, (count, 0), value=1)
    positions = torch.arange(segments.size(1), device=segments.device).expand(segments.shape)
    known = None if layout.known is None else tuple(count + each for each in layout.known)
    return Layout(segments, positions, None, layout.longest + count, known)
