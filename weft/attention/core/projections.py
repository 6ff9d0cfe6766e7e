"""Projections of tokens to queries, keys and values of several heads, and the output projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.attention.base import Site, join_heads, split_heads


class Projections(nn.Module):
    """The four projections of Vaswani et al. 2017, section 3.2.2.

    In self-attention one matrix holds queries, keys and values; in cross-attention one holds keys and values.
    """

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__()
        self.site = site
        self.width = site.head_dim
        if site.use == "cross":
            self.query = nn.Linear(site.dim, site.dim, bias=bias)
            self.key_value = nn.Linear(site.memory_dim, 2 * site.dim, bias=bias)
        else:
            self.query_key_value = nn.Linear(site.dim, 3 * site.dim, bias=bias)
        self.out = nn.Linear(site.dim, site.dim, bias=bias)
        self.reset()

    def reset(self) -> None:
        """Xavier initialisation of each projection separately, whichever matrix holds it."""
        for name, module in self.named_children():
            assert isinstance(module, nn.Linear)
            for block in module.weight.detach().split(self.site.dim) if name != "out" else (module.weight.detach(),):
                nn.init.xavier_uniform_(block)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def queries(self, x: Tensor) -> Tensor:
        """q [B, H, T, D] of cross-attention."""
        return split_heads(self.query(x), self.site.heads)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """k, v [B, H, S, D] of cross-attention."""
        return self.halves(self.key_value(memory))

    def halves(self, joint: Tensor) -> tuple[Tensor, Tensor]:
        """k, v [B, H, S, D] from their joint product."""
        k, v = (split_heads(part, self.site.heads) for part in joint.chunk(2, -1))
        return k, v

    def own(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, H, T, D] of self-attention."""
        q, k, v = (split_heads(part, self.site.heads) for part in self.query_key_value(x).chunk(3, -1))
        return q, k, v

    def paired(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """q and k of self-attention as one tensor [2, B, H, T, D], and v [B, H, T, D], for operations on both q and k."""
        both, v = self.query_key_value(x).split([2 * self.site.dim, self.site.dim], -1)
        return both.unflatten(-1, (2, self.site.heads, self.width)).permute(2, 0, 3, 1, 4), split_heads(v, self.site.heads)

    def join(self, context: Tensor) -> Tensor:
        """Projects the context of the heads, [B, H, T, D] in any precision → [B, T, H·D]."""
        joined = join_heads(context)
        if not torch.is_autocast_enabled(joined.device.type):
            joined = joined.to(self.out.weight.dtype)
        output: Tensor = self.out(joined)
        return output
