"""Additive masks of sources hide the same keys as boolean ones, and an empty source gives zeros."""

from __future__ import annotations

import pytest
import torch

from weft.attention.core.dot_product import attend_memory
from weft.attention.core.kv_cache import CrossAttentionMemory
from weft.data.batch import Layout


@pytest.mark.parametrize("lengths", [(5, 0), (5, 2), (5, 5)])
def test_padding_is_not_looked_at_and_nothing_is_found_in_nothing(lengths: tuple[int, int]) -> None:
    torch.manual_seed(0)
    k, v, q = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4), torch.randn(4, 2, 1, 4)
    memory = CrossAttentionMemory.of(k, v, Layout.padded(lengths))
    found, _ = attend_memory(q, memory, layout=None)
    shown, weights = attend_memory(q, memory, layout=None, need_weights=True)
    assert weights is not None
    torch.testing.assert_close(found, shown)
    for row in range(4):
        length = lengths[row // 2]
        assert not weights[row, :, :, length:].any()
        scores = (q[row] @ k[row // 2, :, :length].transpose(-1, -2) / 2).softmax(-1)
        torch.testing.assert_close(found[row], scores @ v[row // 2, :, :length])
