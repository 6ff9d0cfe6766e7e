"""Dropout: the share dropped, the entries kept, and reproducibility by seed."""

from __future__ import annotations

import pytest
import torch

from weft.layers.linear_norm_dropout import dropout


@pytest.mark.parametrize("share", [0.1, 0.3, 0.75])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_right_share_is_dropped_and_the_rest_scaled(share, dtype):
    torch.manual_seed(0)
    found = dropout(torch.ones(401, 499, dtype=dtype), share)
    assert float((found == 0).float().mean()) == pytest.approx(share, abs=0.004)
    assert set(found.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - share), dtype=dtype))}
    assert float(found.float().mean()) == pytest.approx(1.0, abs=0.02)


def test_entries_are_dropped_independently():
    torch.manual_seed(0)
    kept = (dropout(torch.ones(1000, 64), 0.5) > 0).float() - 0.5
    for step in (1, 2, 3, 4, 8, 64):
        flat = kept.flatten()
        assert abs(float((flat[:-step] * flat[step:]).mean()) * 4) < 0.02


def test_a_seed_fixes_it_and_nothing_is_drawn_outside_training():
    x = torch.randn(33, 7)
    torch.manual_seed(5)
    first, second = dropout(x, 0.4), dropout(x, 0.4)
    torch.manual_seed(5)
    assert torch.equal(first, dropout(x, 0.4)) and not torch.equal(first, second)
    before = torch.get_rng_state()
    assert dropout(x, 0.4, training=False) is x and dropout(x, 0.0) is x
    assert torch.equal(before, torch.get_rng_state())


def test_the_gradient_passes_where_the_value_did():
    x = torch.randn(50, 50, requires_grad=True)
    found = dropout(x, 0.3)
    found.sum().backward()
    assert torch.equal(x.grad == 0, found == 0)
    torch.testing.assert_close(x.grad * x.detach(), found.detach())
