"""Steps of attention with feature maps for `weft explain --inside`: sums over the keys, or all pairs in causal use.

Shapes: B rows · H heads · T queries · S keys · M features · D value width · W extended value width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.attention.core.dot_product import PAIRS, record_context
from weft.layers.step_recorder import record

NOTHING = -1e30
"""The log weight of unseen tokens: finite, so that differences are finite too."""

CELLS = "row head key feature"
QUERIES = "row head query"


class Mixture(NamedTuple):
    """The divisor of a context: total [B, H, T, W] · floor [B, H, T or 1, 1], the least norm, if there is one."""

    total: Tensor
    floor: Tensor | None
    context: Tensor


def record_sums(
    of: nn.Module, features: Tensor, log_weight: Tensor | None, v: Tensor, mask: Tensor | None, sums: Tensor
) -> None:
    """Records sums [B, H, M, W] over the keys of features [B, H, S, M] and v [B, H, S, D]; mask [B, S]: the real ones."""
    width = v.size(-1)
    if log_weight is None:
        w = features.new_ones(features.shape[:-1])
    else:
        seen = log_weight if mask is None else log_weight.masked_fill(~mask[:, None], -torch.inf)
        w = (seen - seen.amax(2, keepdim=True)).exp()
    w = w if mask is None else w.masked_fill(~mask[:, None], 0.0)
    weighted, values = features * w[..., None], "row head key channel"
    operands = {"k": (features, CELLS), "w": (w, "row head key")}
    record("weighted key features", weighted, CELLS, "k * w", of, **operands)
    summed, norms = sums[..., :width], sums[..., width]
    record("sums of values", summed, "row head feature channel", "sum(k * v, key)", of, k=(weighted, CELLS), v=(v, values))
    record("sums of features", norms, "row head feature", "sum(k, key)", of, k=(weighted, CELLS))


def record_mixture(of: nn.Module, q: Tensor, sums: Tensor, found: Mixture) -> None:
    """Records the context of queries with features q [B, H, T, M] from sums [B, H, M, W] over the keys."""
    width, axes = found.context.size(-1), "row head query feature"
    operands = {"q": (q, axes), "k": (sums[..., width], "row head feature")}
    norm = _record_norm(of, found, "sum(q * k, feature)", operands)
    values = {"q": (q, axes), "s": (sums[..., :width], "row head feature channel"), "norm": (norm, QUERIES)}
    record("context", found.context, f"{QUERIES} channel", "sum(q * s, feature) / norm", of, **values)


def record_pairs(
    of: nn.Module, q: Tensor, k: Tensor, log_weight: Tensor | None, v: Tensor, real: Tensor | None, found: Mixture
) -> None:
    """Records the context of queries q [B, H, T, M] that see the keys k up to their own, all from the first token on.

    real [B, T]: the tokens that are no padding
    """
    products = q @ k.transpose(-1, -2)
    record("products", products, PAIRS, "sum(q * k, feature)", of, q=(q, "row head query feature"), k=(k, CELLS))
    mask = up_to_own(q.size(0), q.size(2), real, q.device)
    operands = {"mask": (mask, "row query key"), "products": (products, PAIRS)}
    mask = mask[:, None]
    if log_weight is None:
        kernel, formula = products.masked_fill(~mask, 0.0), "where(mask, products, 0)"
    else:
        log_weight = log_weight if real is None else log_weight.masked_fill(~real[:, None], NOTHING)
        top = log_weight.cummax(-1).values
        away = (log_weight[..., None, :] - top[..., None]).masked_fill(~mask, -torch.inf)
        kernel, formula = products * away.exp(), "where(mask, products * exp(w - top), 0)"
        operands |= {"w": (log_weight, "row head key"), "top": (top, QUERIES)}
    record("kernel", kernel, PAIRS, formula, of, **operands)
    # The sums have another scale, which cancels.
    scale = kernel.sum(-1, keepdim=True) / found.total[..., found.context.size(-1), None]
    found = found._replace(total=found.total * scale, floor=None if found.floor is None else found.floor * scale)
    norm = _record_norm(of, found, "sum(kernel, key)", {"kernel": (kernel, PAIRS)})
    weights = kernel / norm[..., None]
    record("weights", weights, PAIRS, "kernel / norm", of, kernel=(kernel, PAIRS), norm=(norm, QUERIES))
    record_context(found.context, weights, v, of)


def up_to_own(rows: int, extent: int, real: Tensor | None, device: torch.device) -> Tensor:
    """[B, T, T] bool: the keys up to each query's own that are no padding."""
    mask = torch.ones(rows, extent, extent, dtype=torch.bool, device=device).tril()
    return mask if real is None else mask & real[:, None]


def _record_norm(of: nn.Module, found: Mixture, formula: str, operands: dict[str, tuple[Tensor, str]]) -> Tensor:
    """Records the norm [B, H, T] and, if it may be too small, what is used instead. Returns what divides."""
    norm = found.total[..., found.context.size(-1)]
    record("norm", norm, QUERIES, formula, of, **operands)
    if found.floor is None:
        return norm
    floor = found.floor[..., 0].expand_as(norm)
    used = norm.maximum(floor)
    record("norm in use", used, QUERIES, "least + relu(norm - least)", of, least=(floor, QUERIES), norm=(norm, QUERIES))
    return used
