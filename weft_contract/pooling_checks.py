"""Every entry of the table of poolings, and its checks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import Layout
from weft.models import POOLINGS
from weft.models.pooling import Pooling, build_pooling
from weft_contract.mechanism_entries import DIM, EXTENT, LENGTHS, Variant, same, vectors

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "self_attentive": {"three-rows": {"rows": 3}, "hidden-8": {"rows": 2, "hidden": 8}},
    "channel_attentive": {"hidden-8": {"hidden": 8}},
    "pma": {"three-rows": {"rows": 3, "heads": 2}},
}


LABELS = 3
"""For poolings with a vector for each label."""


class PoolingEntry(Variant):
    """One pooling with its options."""

    def make(self, *, seed: int = 0, train: bool = False) -> Pooling:
        torch.manual_seed(seed)
        part = build_pooling({"kind": self.kind, **self.options}, DIM, where=self.kind, labels=LABELS)
        return part.train(train)


def poolings() -> Iterator[PoolingEntry]:
    for kind in POOLINGS:
        for variant, options in {"": {}, **VARIANTS.get(kind, {})}.items():
            yield PoolingEntry(kind, variant, options)


def memory(rows: int = len(LENGTHS), seed: int = 1) -> Tensor:
    return vectors(rows, EXTENT, DIM, seed)


def check_padding(entry: PoolingEntry) -> None:
    """The values of padding change nothing, and a row in a padded batch equals the row alone; in training too."""
    layout = Layout.padded(LENGTHS)
    for train in (False, True):
        part = entry.make(train=train)
        together = part(memory(), layout)
        for junk, loudness in ((1e3, 1), (-1e4, 1), (0.0, 12)):
            clean = part(loudness * memory(), layout)
            dirty = part(torch.where(layout.mask[..., None], loudness * memory(), junk), layout)
            same(dirty.vectors, clean.vectors, f"junk {junk}")
            for name, term in clean.extras.items():
                same(dirty.extras[name], term, f"term {name}, junk {junk}")
        for row, length in enumerate(LENGTHS):
            for own in (None, Layout.padded([length])):
                same(together.vectors[row : row + 1], part(memory()[row : row + 1, :length], own).vectors, f"row of {length}")


def check_alive(entry: PoolingEntry) -> None:
    """Every token changes the vectors; if the data decides, some do."""
    part, place = entry.make(), torch.arange(EXTENT)
    other = memory(rows=1).repeat(EXTENT, 1, 1)
    other[place, place] = memory(rows=1, seed=13)[0]
    moved = (part(other).vectors - part(memory(rows=1)).vectors).abs().amax((1, 2)) > 1e-5
    wanted = 5 if part.receptive_field == "data" else EXTENT
    assert moved.sum() >= wanted, f"{entry}: {int((~moved).sum())} tokens do not matter"


def check_empty_row(entry: PoolingEntry) -> None:
    """An empty row gives zeros, and finite gradients."""
    part, given = entry.make(train=True), memory(rows=3).requires_grad_()
    pooled = part(given, Layout.padded((EXTENT, 0, 5)))
    assert not pooled.vectors[1].any(), f"{entry}: an empty row is not 0"
    pooled.vectors.pow(2).sum().backward()
    assert given.grad is not None and given.grad.isfinite().all()
    assert all(value.grad is None or value.grad.isfinite().all() for value in part.parameters())


def check_weights(entry: PoolingEntry) -> None:
    """Weights sum as declared, are exactly 0 on padding, and reproduce the vectors."""
    part, layout = entry.make(), Layout.padded(LENGTHS)
    pooled = part(memory(), layout)
    if part.weights_sum is None:
        assert pooled.weights is None, f"{entry}: declares no weights but gives some"
        return
    assert pooled.weights is not None
    assert pooled.weights.shape == (len(LENGTHS), pooled.vectors.size(1), EXTENT)
    assert (pooled.weights >= 0).all()
    assert not pooled.weights.transpose(1, 2)[~layout.mask].any(), f"{entry}: weight on padding"
    total = pooled.weights.sum(-1)
    same(total, torch.ones_like(total), "sum of weights")


def check_gradients(entry: PoolingEntry) -> None:
    """Every parameter has a gradient, and extras are as declared: one value per row, only in training."""
    part = entry.make(train=True)
    pooled = part(memory(), Layout.padded(LENGTHS))
    assert set(pooled.extras) == set(part.extras), f"{entry}: gives extras {sorted(pooled.extras)}"
    assert all(term.shape == (len(LENGTHS),) and term.isfinite().all() for term in pooled.extras.values())
    if list(part.parameters()):
        pooled.vectors.pow(2).sum().backward()
    for name, value in part.named_parameters():
        assert value.grad is not None and value.grad.isfinite().all() and value.grad.any(), f"{entry}: gradient of {name}"
    assert not part.eval()(memory(), Layout.padded(LENGTHS)).extras, f"{entry}: extras outside training"


def check_key_order(entry: PoolingEntry) -> None:
    """Permuting tokens changes nothing if, and only if, the pooling declares so."""
    part, order = entry.make(), torch.randperm(EXTENT, generator=torch.Generator().manual_seed(3))
    alike = torch.allclose(part(memory()).vectors, part(memory()[:, order]).vectors, atol=2e-5, rtol=1e-3)
    assert alike == part.ignores_key_order, f"{entry}: ignores_key_order is {part.ignores_key_order}"


def check_pure(entry: PoolingEntry) -> None:
    """Outside training nothing is random and nothing is written; a checkpoint is complete."""
    part, other = entry.make(), entry.make(seed=99)
    before, draws = {name: value.clone() for name, value in part.state_dict().items()}, torch.get_rng_state()
    first = part(memory()).vectors
    assert torch.equal(first, part(memory()).vectors)
    assert torch.equal(draws, torch.get_rng_state()), f"{entry}: draws random numbers outside training"
    assert all(torch.equal(value, before[name]) for name, value in part.state_dict().items())
    other.load_state_dict(part.state_dict())
    assert torch.equal(first, other(memory()).vectors)


def check_half(entry: PoolingEntry) -> None:
    """bf16 weights and bf16 autocast give about the same as float32."""
    part, layout = entry.make(), Layout.padded(LENGTHS)
    exact = part(memory(), layout).vectors
    with torch.autocast("cpu", torch.bfloat16):
        auto = part(memory(), layout).vectors
    plain = part.to(torch.bfloat16)(memory().bfloat16(), layout).vectors
    for found in (auto, plain):
        assert ((found.float() - exact).abs().mean() / exact.abs().mean()).item() < 0.05, f"{entry}: bf16"
