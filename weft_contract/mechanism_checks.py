"""Checks of the facts that a mechanism declares, of what all mechanisms guarantee (purity, precision, gradients), and of
errors: building a mechanism for a use that it does not support must raise one with the reason and an alternative."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from weft.attention.base import Facts, Site, Use
from weft.attention.core.feature_maps import RedrawnBuffer
from weft.attention.mixers import SELF
from weft.config.registry import build, find_table
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import grow
from weft_contract.mechanism_entries import (
    DIM,
    EXTENT,
    HEADS,
    LENGTHS,
    QUERIES,
    REFUSED,
    Entry,
    Mechanism,
    facts_of,
    same,
    vectors,
)


def check_shapes(entry: Entry) -> None:
    """The context has the declared width in every use; requesting room where nothing grows changes nothing."""
    part = entry.make()
    keys = part.keys()
    found = part.attend(keys)
    rows, extent = len(LENGTHS), QUERIES if part.use == "cross" else EXTENT
    assert found.context.shape == (rows, extent, part.part.context_width)
    assert part.part.max_length is None or part.part.max_length >= EXTENT
    if part.use == "encoder":
        same(part.feed(keys, part.init_state(rows, room=EXTENT)).context, found.context, "an encoder with room")


def check_weights(entry: Entry) -> None:
    """Requesting weights changes nothing else; they sum as declared, and are exactly 0 for keys that a query may not see."""
    part, layout = entry.make(), Layout.padded(LENGTHS)
    keys = part.keys()
    asked, plain = part.attend(keys, layout, need_weights=True), part.attend(keys, layout)
    same(part.real(asked.context, layout), part.real(plain.context, layout), "context with and without weights")
    assert plain.weights is None, f"{entry}: weights without a request"
    if part.part.weights_sum is None:
        assert asked.weights is None, f"{entry}: declares no weights but gives some"
        return
    weights = asked.weights
    assert weights is not None, f"{entry}: declares weights but gives none"
    heads, queries = weights.size(1), QUERIES if part.use == "cross" else EXTENT
    assert heads in (1, entry.heads)
    assert weights.shape == (len(LENGTHS), heads, queries, EXTENT)
    assert (weights >= 0).all(), f"{entry}: negative weights"
    assert not weights[_forbidden(part, layout).expand_as(weights)].any(), f"{entry}: weight on a key that may not be seen"
    total = part.real(weights.sum(-1).transpose(1, 2), layout)
    if part.part.weights_sum == "one":
        same(total, torch.ones_like(total), "sum of weights")
    else:
        assert (total <= 1 + 1e-5).all(), f"{entry}: weights sum to {float(total.max()):.4f}"


def check_step_weights(entry: Entry) -> None:
    """The weights of a step equal those of the whole sequence, also from a cache with unused room."""
    part = entry.make()
    keys = part.keys(rows=2)[..., :DIM]
    whole = part.attend(keys, need_weights=True).weights
    for room in (None, EXTENT + 5):
        state, fed = part.init_state(2, room=room), 0
        for piece in keys.split([40, 1, 30], 1):
            found = part.feed(piece, state, need_weights=True)
            state, begin, fed = found.state, fed, fed + piece.size(1)
            if whole is None:
                assert found.weights is None
                continue
            assert found.weights is not None
            same(found.weights[..., :fed], whole[:, :, begin:fed, :fed], f"weights of tokens {begin} to {fed}")
            assert not found.weights[..., fed:].any(), f"{entry}: weight on a cell that holds no token"


def check_earlier_segment(entry: Entry) -> None:
    """In causal use, memory given to `init_state` is the earlier part of the same sequence, with a length per row."""
    part, lengths, after = entry.make(), (40, 3, 26), 31
    keys, layout = part.keys(rows=3), Layout.padded(lengths)
    for room in (None, EXTENT):
        state = part.init_state(3, keys[:, :40].contiguous(), layout, room)
        found = part.feed(keys[:, 40:].contiguous(), state).context
        for row, length in enumerate(lengths):
            one = keys[row : row + 1]
            alone = part.attend(torch.cat([one[:, :length], one[:, 40:]], 1)).context
            same(found[row : row + 1], alone[:, -after:], f"room {room}, after a segment of {length}")


KINKED = {"gat"}
"""Mechanisms with a leaky ReLU in their scores, which a step of the usual size would carry across its kink."""


def check_gradients(entry: Entry) -> None:
    """Every parameter has a gradient, which agrees with finite differences of the loss.

    A mechanism that chooses by content is discontinuous where its choice changes, so its differences are tiny and in float64;
    so are those of `KINKED` mechanisms.
    """
    part, layout = entry.make(train=True), Layout.padded(LENGTHS)
    keys, reach = part.keys().requires_grad_(), 0.02  # so that mechanisms without parameters have a gradient too
    if part.part.receptive_field == "data" or entry.kind in KINKED:
        keys, reach = keys.double(), 1e-6
        part.part.double()

    def loss() -> Tensor:
        found = part.attend(keys, layout)
        return part.real(found.context, layout).sin().sum() + sum(term.sum() for term in found.extras.values())

    loss().backward()
    for name, parameter in part.part.named_parameters():
        assert parameter.grad is not None, f"{entry}: {name} gets no gradient"
        assert parameter.grad.isfinite().all(), f"{entry}: the gradient of {name} is not finite"
        assert parameter.grad.any(), f"{entry}: the gradient of {name} is 0"
        for rows in torch.arange(parameter.size(0)).chunk(3):  # queries, keys and values may share a matrix
            _check_slope(f"{entry}: {name} from row {int(rows[0])}", parameter, rows, loss, reach)


def _check_slope(what: str, parameter: Tensor, rows: Tensor, loss: Callable[[], Tensor], reach: float) -> None:
    """Compares the gradient of these rows with the difference along a random direction of length `reach`."""
    assert parameter.grad is not None
    way = torch.randn(parameter[rows].shape, generator=torch.Generator().manual_seed(6))
    way, grad = (way / way.norm()).to(parameter.dtype), parameter.grad[rows]
    with torch.no_grad():
        kept, values = parameter[rows].clone(), []
        for sign in (1, -1):
            parameter[rows] = kept + sign * reach * way
            values.append(loss().item())
        parameter[rows] = kept
    slope, claimed = (values[0] - values[1]) / (2 * reach), (grad * way).sum().item()
    allowed = 0.05 * abs(slope) + 0.01 * grad.norm().item() + 5e-3
    assert abs(slope - claimed) < allowed, f"{what}: the gradient says {claimed:.3f}, a small step {slope:.3f}"


def check_key_order(entry: Entry) -> None:
    """Permuting keys changes nothing if, and only if, the mechanism declares that it ignores their order.

    Mechanisms that choose by content get rows long enough for a choice. A pattern may ignore the order of a short row anyway.
    """
    part = entry.make()
    extent = 8 * EXTENT if part.part.receptive_field == "data" else EXTENT
    keys = part.keys(extent=extent)
    order = torch.randperm(extent, generator=torch.Generator().manual_seed(3))
    if part.use == "causal":  # the last query stays, and those before it are permuted
        order = torch.cat([torch.randperm(extent - 1, generator=torch.Generator().manual_seed(3)), torch.tensor([extent - 1])])
    before, after = part.attend(keys).context, part.attend(keys[:, order].contiguous()).context
    if part.use == "encoder":
        before = before[:, order]
    elif part.use == "causal":
        before, after = before[:, -1], after[:, -1]
    alike = torch.allclose(before, after, atol=2e-5, rtol=1e-3)
    everything = part.part.sees(EXTENT)[-1 if part.use == "causal" else slice(None)].all()
    short = alike and part.part.receptive_field == "pattern" and everything
    assert short or alike == part.part.ignores_key_order, f"{entry}: ignores_key_order is {part.part.ignores_key_order}"


def check_extras(entry: Entry) -> None:
    """Terms are as declared, with one value per query, and exist only in training."""
    part = entry.make(train=True)
    keys = part.keys()
    extras = part.attend(keys).extras
    assert set(extras) == set(part.part.extras), f"{entry}: gives extras {sorted(extras)}"
    extent = QUERIES if part.use == "cross" else EXTENT
    for name, term in extras.items():
        assert term.shape == (len(LENGTHS), extent), f"{entry}: term {name} has shape {tuple(term.shape)}"
        assert term.isfinite().all()
    part.part.eval()
    assert not part.attend(keys).extras, f"{entry}: extras outside training"


def check_pure(entry: Entry) -> None:
    """Outside training nothing is random and no buffer is written, at any dropout; two calls agree."""
    part, layout = entry.make(dropout=0.5), Layout.padded(LENGTHS)
    keys = part.keys()
    buffers = {name: value.clone() for name, value in part.part.named_buffers()}  # including non-persistent ones
    draws = torch.get_rng_state()
    for need_weights in (False, True):
        first = part.attend(keys, layout, need_weights=need_weights).context
        again = part.attend(keys, layout, need_weights=need_weights).context
        assert torch.equal(first, again), f"{entry}: twice the same is not the same"
    assert torch.equal(draws, torch.get_rng_state()), f"{entry}: draws random numbers outside training"
    for name, value in part.part.named_buffers():
        assert torch.equal(value, buffers[name]), f"{entry}: {name} was written outside training"


def check_checkpoint(entry: Entry) -> None:
    """The state dict holds everything that training and refreshing changed."""
    part, other = entry.make(train=True), entry.make(seed=99)
    keys = part.keys()
    part.attend(keys)
    for module in part.part.modules():
        if isinstance(module, Facts | RedrawnBuffer):
            module.refresh(torch.Generator().manual_seed(1))
    other.part.load_state_dict(part.part.state_dict())
    part.part.eval()
    same(other.attend(keys).context, part.attend(keys).context, "after a checkpoint", atol=0)


def check_half(entry: Entry) -> None:
    """bf16 weights and bf16 autocast give about the same as float32."""
    part, layout = entry.make(), Layout.padded(LENGTHS)
    keys = part.keys()
    exact = part.real(part.attend(keys, layout).context, layout)
    with torch.autocast("cpu", torch.bfloat16):
        _near(part.real(part.attend(keys, layout).context, layout), exact, f"{entry}: autocast", _chooses(entry))
    part.part.to(torch.bfloat16)
    _near(part.real(part.attend(keys.bfloat16(), layout).context, layout), exact, f"{entry}: bf16 weights", _chooses(entry))


def check_half_steps(entry: Entry) -> None:
    """Hundreds of single steps in bf16, after as many tokens at once: running sums must not be in bf16."""
    part = entry.make()
    half = 210
    keys = vectors(1, 2 * half, DIM, seed=1) / 2
    keys[:, :half] += 1.5  # the second half differs, so a sum that is stuck shows
    keys[:, half:] -= 1.5
    exact = part.attend(keys).context[:, -20:]
    found = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        state = part.feed(keys[:, :half], part.init_state(1, room=256)).state
        for t in range(half, 2 * half):
            result = part.feed(keys[:, t : t + 1], grow(state, 64 * (t // 64 + 1)))
            state = result.state
            found.append(result.context)
    _near(torch.cat(found[-20:], 1), exact, f"{entry}: bf16 steps", _chooses(entry))


def refusals(kinds: Collection[str] = SELF) -> Iterator[tuple[str, dict[str, Any], Use]]:
    """(kind, options, use) for every use that a kind does not support, or that its options rule out."""
    for kind in kinds:
        yield from ((kind, {}, use) for use in get_args(Use) if use not in facts_of(kind).uses)
    yield from (case for case in REFUSED if case[0] in kinds)


def check_refused(kind: str, options: dict[str, Any], use: Use) -> None:
    table = "weft.attention:ATTENTIONS"
    if kind not in find_table(table):
        table = "weft.attention.mixers:SELF"
    with pytest.raises(ConfigError) as caught:
        build(table, {"kind": kind, **options}, Site(use, DIM, HEADS))
    facts = facts_of(kind)
    if use in facts.uses and "position" not in options:
        assert any(f"{name}: " in str(caught.value) for name in options), f"{kind}: no option is named: {caught.value}"
        return
    if use in facts.uses:
        name, value = next(iter(options.items()))
        wanted = [f"position: {value}", "use position: none"] if name == "position" else [name]
    else:
        wanted = [
            facts.__name__,
            f"does not support {use} use, only {' or '.join(sorted(facts.uses))}",
            facts.instead.get(use, ""),
        ]
    missing = [words for words in wanted if words not in str(caught.value)]
    assert not missing, f"{kind}: the error does not say {missing}: {caught.value}"


def _forbidden(part: Mechanism, layout: Layout) -> Tensor:
    """[B, 1, T, S]: pairs of a real query and a key it may not see."""
    padding = ~layout.mask[:, None, None]
    if part.use == "cross":
        return padding.expand(-1, -1, QUERIES, -1)
    allowed = torch.ones(len(LENGTHS), 1, EXTENT, EXTENT, dtype=torch.bool)
    if part.part.receptive_field == "pattern":  # of each row at its own length
        for row, length in enumerate(layout.counts):
            allowed[row, 0, :length, :length] = part.part.sees(length)
    allowed = allowed.tril() if part.use == "causal" else allowed
    return (padding | ~allowed) & layout.mask[:, None, :, None]


def _chooses(entry: Entry) -> bool:
    return entry.facts.receptive_field == "data"


def _near(found: Tensor, exact: Tensor, what: str, chooses: bool) -> None:
    """Within two per cent on average: bf16 has eight bits, and sums of many errors stay near one.

    A mechanism that chooses by content changes its choice for a few tokens, so its limit is six per cent; four of five tokens
    keep their choice and are within one per cent.
    """
    assert found.isfinite().all(), f"{what} is not finite"
    errors = ((found.float() - exact).abs() / exact.abs().mean()).flatten(0, -2).mean(-1)
    limits = {len(errors): 0.06, 4 * len(errors) // 5: 0.01} if chooses else {len(errors): 0.02}
    for count, limit in limits.items():
        error = errors.sort().values[:count].mean().item()
        assert error < limit, f"{what} is off by {error:.2%} for {count} of {len(errors)} tokens"
