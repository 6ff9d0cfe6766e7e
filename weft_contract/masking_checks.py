"""Checks of influence: padding, the future, the declared reach, neighbours in a packed row."""

from itertools import product

import torch
from torch import Tensor

from weft.data.batch import Layout
from weft_contract.mechanism_entries import DIM, EXTENT, LENGTHS, QUERIES, Entry, same, vectors

PACKED, BUDGET = (26, 1, 71, 40, 9), 151
"""Sentence lengths of a packed row and its size: one is longer than a chunk of 64, and two cross from one chunk to the next."""

PACKED_QUERIES, QUERY_BUDGET = (5, 38, 3, 20, 2), 73


def check_padding_content(entry: Entry) -> None:
    """The values of padding change nothing: large, very large, and small ones beside large tokens; in every code path."""
    layout = Layout.padded(LENGTHS, EXTENT + 4)
    for train in (False, True):
        part = entry.make(train=train)
        for loudness, need_weights in product((1, 12), (False, True)):
            keys = loudness * part.keys(extent=EXTENT + 4)
            clean = part.attend(keys, layout, need_weights=need_weights).context
            for junk in (1e3, -1e4) if loudness == 1 else (0.0,):
                spoilt = torch.where(layout.mask[..., None], keys, junk)
                dirty = part.attend(spoilt, layout, need_weights=need_weights).context
                same(part.real(dirty, layout), part.real(clean, layout), f"junk {junk}, weights {need_weights}")


def check_padding_length(entry: Entry) -> None:
    """A row in a padded batch equals the row alone, with and without a layout of its own."""
    part, layout = entry.make(), Layout.padded(LENGTHS)
    keys, queries = part.keys(), vectors(len(LENGTHS), QUERIES, DIM, seed=5)
    together = part.attend(keys, layout, queries=queries).context
    for row, length in enumerate(LENGTHS):
        one = slice(row, row + 1)
        for own in (None, Layout.padded([length])):
            alone = part.attend(keys[one, :length].contiguous(), own, queries=queries[one]).context
            same(together[one, : alone.size(1)], alone, f"row of {length}")


def check_future(entry: Entry) -> None:
    """Other future tokens do not change earlier outputs, by value: sorting and choosing leak without a gradient."""
    for train in (False, True):
        part = entry.make(train=train)
        keys = part.keys(rows=1).expand(EXTENT, -1, -1)
        past = torch.ones(EXTENT, EXTENT, dtype=torch.bool).tril()
        before = part.attend(keys).context
        for need_weights in (False, True):
            other = torch.where(past[..., None], keys, 3 * part.keys(rows=EXTENT, seed=11 + need_weights))
            after = part.attend(other, need_weights=need_weights).context
            same(after[past], before[past], "the past after another future")


def check_reach(entry: Entry) -> None:
    """By gradient, each query depends on exactly the keys that the mechanism declares.

    All vectors are small, so that no weight underflows in float32.
    """
    part = entry.make()
    extent = QUERIES if part.use == "cross" else EXTENT
    keys = (part.keys(rows=1) / 2).expand(extent, -1, -1).clone().requires_grad_()
    queries = (vectors(1, QUERIES, DIM, seed=5) / 2).expand(extent, -1, -1)
    place = torch.arange(extent)
    own = part.attend(keys, queries=queries).context[place, place]
    (grad,) = torch.autograd.grad((own * torch.randn(own.shape, generator=torch.Generator().manual_seed(9))).sum(), keys)
    hit = grad.abs().amax(-1) > 0
    want = part.part.sees(EXTENT)[:extent] if part.part.receptive_field == "pattern" else torch.ones_like(hit)
    if part.use != "cross":
        want = want.tril() if part.use == "causal" else want
        itself = torch.eye(extent, dtype=torch.bool)
        hit, want = hit | itself, want | itself
    wrong = (hit & ~want) if part.part.receptive_field == "data" else hit != want
    assert not wrong.any(), f"{entry}: reach is not as declared at (query, key) {wrong.nonzero().tolist()[:5]}"


def check_alive(entry: Entry) -> None:
    """Every token changes the outputs of others (some tokens, if the mechanism chooses by content), in training too."""
    for train in (False, True):
        part = entry.make(train=train)
        base = part.keys(rows=1)
        other = base.expand(EXTENT, -1, -1).clone()
        place = torch.arange(EXTENT)
        other[place, place] = part.keys(rows=1, seed=13)[0]
        queries = vectors(1, QUERIES, DIM, seed=5)
        before = part.attend(base, queries=queries).context
        after = part.attend(other, queries=queries.expand(EXTENT, -1, -1)).context
        moved = (after - before).abs().amax(-1) > 1e-5
        if part.use != "cross":
            moved[place, place] = False
        heard = int(moved.any(1).sum())
        seen = part.part.sees(EXTENT)[: before.size(1)]
        if part.use != "cross":
            seen = seen.tril(-1) if part.use == "causal" else seen & ~torch.eye(EXTENT, dtype=torch.bool)
        wanted = 5 if part.part.receptive_field == "data" else int(seen.any(0).sum())
        assert heard >= wanted, f"{entry}: only {heard} of {EXTENT} tokens matter to another"


def check_empty_row(entry: Entry) -> None:
    """A row without tokens is finite, forward and backward, and does not affect other rows."""
    for need_weights in (False, True):
        part, layout = entry.make(train=True), Layout.padded((EXTENT, 0, 5))
        keys = part.keys(rows=3).requires_grad_()
        context = part.attend(keys, layout, need_weights=need_weights).context
        assert context.isfinite().all(), f"{entry}: an empty row is not finite"
        context.pow(2).sum().backward()
        assert keys.grad is not None
        assert keys.grad.isfinite().all(), f"{entry}: the gradient of an empty row is not finite"
        for name, parameter in part.part.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), f"{entry}: gradient of {name}"


def check_packed(entry: Entry) -> None:
    """Sentences packed into one row have the outputs and gradients of padded rows."""
    for need_weights in (False, True):
        padded, packed = (_sentences(entry, pack, need_weights) for pack in (False, True))
        for name, value in padded.items():
            same(packed[name], value, f"packed {name}", atol=1e-4 if name.startswith("grad") else 2e-5)


def _sentences(entry: Entry, pack: bool, need_weights: bool) -> dict[str, Tensor]:
    """Concatenated outputs of all real queries, and gradients, for the same sentences, packed or padded."""
    part = entry.make()
    layout = Layout.padded(PACKED)
    source, keys = _lay(part.keys(len(PACKED), max(PACKED)), layout, PACKED, BUDGET, pack)
    keys.requires_grad_()
    if part.use == "cross":
        layout = Layout.padded(PACKED_QUERIES)
        asked, queries = _lay(vectors(len(PACKED), layout.longest, DIM, 5), layout, PACKED_QUERIES, QUERY_BUDGET, pack)
        context = part.feed(queries, part.init_state(keys.size(0), keys, source), asked, need_weights).context[asked.mask]
    else:
        context = part.feed(keys, part.init_state(keys.size(0)), source, need_weights).context[source.mask]
    (context * vectors(1, len(context), context.size(-1), seed=8)[0]).sum().backward()
    assert keys.grad is not None
    grads = {f"grad {name}": value.grad for name, value in part.part.named_parameters() if value.grad is not None}
    return {"context": context.detach(), "grad keys": keys.grad[source.mask], **grads}


def _lay(rows: Tensor, layout: Layout, lengths: tuple[int, ...], budget: int, pack: bool) -> tuple[Layout, Tensor]:
    """The padded rows unchanged, or their sentences in one row, followed by garbage."""
    if not pack:
        return layout, rows
    packed = Layout.pack(lengths, budget)
    row = torch.full((1, budget, rows.size(-1)), 1e3)
    row[packed.mask] = rows[layout.mask]
    return packed, row
