"""Attention between two texts in both directions, from one matrix of scores.

Shapes: B rows · N positions of the first text · M positions of the second · D width.
"""

from dataclasses import dataclass

from torch import Tensor

from weft.attention.core.dot_product import masked_softmax


@dataclass
class TwoWayWeights:
    """first [B, N, M]: of each position of the first text over the second · second [B, M, N]: the other way round."""

    first: Tensor
    second: Tensor


def two_way_weights(scores: Tensor, first: Tensor | None, second: Tensor | None) -> TwoWayWeights:
    """The softmax of scores [B, N, M] over the second text, and over the first. Masks [B, N] and [B, M]: real positions."""
    turned = scores.transpose(1, 2)
    over_second = None if second is None else second[:, None].expand_as(scores)
    over_first = None if first is None else first[:, None].expand_as(turned)
    return TwoWayWeights(masked_softmax(scores, over_second), masked_softmax(turned, over_first))
