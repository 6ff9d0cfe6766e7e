"""Every mechanism under a float64 default: it is built, trains, decodes, and gives what it gives in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from weft.data.batch import Layout
from weft_contract.mechanism_entries import DIM, EXTENT, LENGTHS, QUERIES, Entry, entries, vectors


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("entry", [entry for entry in entries() if not (entry.variant or entry.wrapped)], ids=str)
def test_it_works_in_float64(entry: Entry, float64: None) -> None:
    torch.set_default_dtype(torch.float32)
    single, layout = entry.make(), Layout.padded(LENGTHS)
    keys, queries = single.keys(), vectors(len(LENGTHS), QUERIES, DIM, seed=5)
    wanted = single.real(single.attend(keys, layout, queries=queries).context, layout)
    torch.set_default_dtype(torch.float64)
    part = entry.make(train=True)
    x = keys.double().requires_grad_()
    part.attend(x, layout, queries=queries.double()).context.square().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float64 and x.grad.isfinite().all()
    part.part.load_state_dict(single.part.state_dict())
    part.part.eval()
    with torch.no_grad():
        found = part.real(part.attend(keys.double(), layout, queries=queries.double()).context, layout)
        assert found.dtype == torch.float64
        if part.part.receptive_field != "data":  # near a border, a token may choose another bucket in float32
            torch.testing.assert_close(found.float(), wanted, atol=1e-4, rtol=1e-3)
        if entry.use == "causal":
            state = part.init_state(len(LENGTHS), room=EXTENT)
            state = part.feed(keys.double()[:, :40], state).state
            step = part.feed(keys.double()[:, 40:41], state).context
            assert step.dtype == torch.float64 and step.isfinite().all()
