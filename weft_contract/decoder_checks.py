"""Checks of models and their decoders, beyond those of `weft_contract.decoding_state_checks`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.attention.base import Facts, Mixer
from weft.data.batch import BOS, PAD, Layout, Source
from weft.losses.cross_entropy import label_smoothed_cross_entropy
from weft.models.base import Model
from weft_contract.mechanism_entries import same
from weft_contract.model_entries import SOURCE, TARGET, VOCABULARY, DecoderEntry, finite, ids

Laid = Literal["padded", "packed", "rounded"]


def forced(model: Model, source: Tensor, target: Tensor, above: Layout | None = None, below: Layout | None = None) -> Tensor:
    """Logits of a whole target, given the source."""
    return finite(model.decoder(target, model.decoder.init_state(model.encode(Source(source, above))), below).logits)


def check_padding(entry: DecoderEntry) -> None:
    """A pair has the same logits in a padded batch as alone, whatever the ids in the padding are."""
    model, above, below = entry.make(), Layout.padded(SOURCE, 31), Layout.padded(TARGET, 33)
    source, target = ids(4, 31, seed=2), ids(4, 33, seed=3)
    together = forced(model, source, target, above, below)
    clean = forced(model, source.where(above.mask, PAD), target.where(below.mask, PAD), above, below)
    same(together[below.mask], clean[below.mask], "ids in the padding")
    for row, (long, short) in enumerate(zip(SOURCE, TARGET, strict=True)):
        alone = forced(model, source[row : row + 1, :long], target[row : row + 1, :short])
        more = together.size(-1) - alone.size(-1)  # copying adds an id per source token
        same(together[row : row + 1, :short], F.pad(alone, (0, more)), f"pair {row}")


def check_causality(entry: DecoderEntry) -> None:
    """Logits do not depend on future tokens, but on every source token and every earlier target token."""
    model = entry.make()
    count, length = 29, 27
    source, target = ids(1, length, seed=2), ids(1, count, seed=3)
    before = forced(model, source, target)
    past = torch.ones(count, count, dtype=torch.bool).tril()
    other = torch.where(past, target, ids(count, count, seed=4))
    after = forced(model, source.expand(count, -1), other)
    same(after[past], before.expand(count, -1, -1)[past], "the past after another future")
    changed = (target + 1 - 3) % (VOCABULARY - 3) + 3
    one = torch.eye(count, dtype=torch.bool)
    moved = (forced(model, source.expand(count, -1), torch.where(one, changed, target)) - before).abs().amax(-1) > 1e-6
    assert moved.diagonal().all(), f"{entry}: a token does not change its own logits"
    assert moved.diagonal(1)[_seen_by_next(model, count)].all(), f"{entry}: a token does not change the next one's logits"
    one, changed = torch.eye(length, dtype=torch.bool), (source + 1 - 3) % (VOCABULARY - 3) + 3
    moved = (forced(model, torch.where(one, changed, source), target.expand(length, -1)) - before).abs().amax(-1) > 1e-6
    assert moved.any(1).all(), f"{entry}: {int((~moved.any(1)).sum())} source tokens do not matter"


def _seen_by_next(model: Model, count: int) -> Tensor:
    """[count − 1] bool: whether any layer lets the next token see a token (compressed ones wait for the end of a window)."""
    seen = [part.sees(count).diagonal(-1) for part in model.decoder.modules() if isinstance(part, Mixer)]
    return torch.stack(seen).any(0) if seen else torch.ones(count - 1, dtype=torch.bool)


def check_packed(entry: DecoderEntry) -> None:
    """A packed batch has the loss and gradients of the padded one."""
    _same_training(entry, "packed")


def check_rounded(entry: DecoderEntry) -> None:
    """So does a batch whose lengths the host does not know, with extra padding and an empty row."""
    _same_training(entry, "rounded")


def _same_training(entry: DecoderEntry, laid: Laid) -> None:
    padded, found = _training(entry, "padded"), _training(entry, laid)
    for name, value in padded.items():
        same(found[name], value, name, atol=3e-4)


def _training(entry: DecoderEntry, laid: Laid) -> dict[str, Tensor]:
    """Loss and gradients of one small batch."""
    model = entry.make(train=True)
    above, below = Layout.padded(SOURCE), Layout.padded(TARGET)
    source, labels = ids(4, 27, seed=2), ids(4, 30, seed=3).where(below.mask, PAD)
    target = torch.cat([torch.full((4, 1), BOS), labels[:, :-1]], 1)
    if laid == "packed":
        rows = [(source, above, SOURCE, 61), (target, below, TARGET, 83), (labels, below, TARGET, 83)]
        source, target, labels = (_pack(*row) for row in rows)
        above, below = Layout.pack(SOURCE, 61), Layout.pack(TARGET, 83)
    elif laid == "rounded":
        source, target, labels = (F.pad(part, (0, 32 - part.size(1), 0, 1), value=PAD) for part in (source, target, labels))
        above, below = (replace(Layout.padded([*lengths, 0], 32), known=None) for lengths in (SOURCE, TARGET))
    found = model.decoder.hidden_states(target, model.decoder.init_state(model.encode(Source(source, above))), below)
    loss, likelihood = model.decoder.loss(found.hidden, labels, 0.1)
    loss.backward()
    grads = {f"gradient of {name}": value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert len(grads) == len(list(model.parameters()))
    return {"loss": loss.detach(), "likelihood": likelihood, **grads}


def _pack(rows: Tensor, layout: Layout, lengths: tuple[int, ...], budget: int) -> Tensor:
    row = torch.full((1, budget), PAD)
    row[Layout.pack(lengths, budget).mask] = rows[layout.mask]
    return row


def check_loss(entry: DecoderEntry) -> None:
    """A decoder's own loss equals the plain loss over its logits, and so do all gradients, which are finite and not 0."""
    model, below = entry.make(train=True), Layout.padded(TARGET)
    source, labels = ids(4, 27, seed=2), ids(4, 30, seed=3).where(below.mask, PAD)

    def read() -> tuple[Tensor, Tensor]:
        state = model.decoder.init_state(model.encode(Source(source, Layout.padded(SOURCE))))
        torch.manual_seed(0)  # what is drawn in training is drawn alike
        found = model.decoder.hidden_states(ids(4, 30, seed=4), state, below)
        return found.hidden, sum((term.sum() for term in found.extras.values()), torch.zeros(()))

    compare_losses(model, read, labels, 0.1)


def compare_losses(model: Any, read: Callable[[], tuple[Tensor, Tensor]], labels: Tensor, smoothing: float) -> None:
    """Compares a decoder's own loss with the plain loss over its logits, and all gradients. read: hidden states and extras."""
    results = []
    for loss_of in (
        lambda hidden: model.decoder.loss(hidden, labels, smoothing),
        lambda hidden: label_smoothed_cross_entropy(model.decoder.logits(hidden), labels, smoothing),
    ):
        model.zero_grad()
        hidden, extras = read()
        loss = loss_of(hidden)
        (loss[0] + extras).backward()
        results.append((loss, {name: value.grad for name, value in model.named_parameters()}))
    (mine, grads), (plain, others) = results
    same(mine[0], plain[0], "loss")
    same(mine[1], plain[1], "likelihood")
    for name, grad in grads.items():
        assert grad is not None and others[name] is not None, f"{name} gets no gradient"
        assert grad.isfinite().all() and grad.any(), f"the gradient of {name} is 0 or not finite"
        same(grad, others[name], f"gradient of {name}", atol=1e-4)


def check_pure(entry: DecoderEntry) -> None:
    """Outside training nothing is random and nothing is written, at any dropout; and a checkpoint is complete."""
    model, other = entry.make(dropout=0.5), entry.make(seed=99)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    first = forced(model, ids(2, 27, seed=2), ids(2, 29, seed=3))
    assert torch.equal(first, forced(model, ids(2, 27, seed=2), ids(2, 29, seed=3))), f"{entry}: not the same twice"
    assert torch.equal(draws, torch.get_rng_state()), f"{entry}: draws random numbers outside training"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), f"{entry}: writes"
    other.load_state_dict(model.state_dict())
    assert torch.equal(first, forced(other, ids(2, 27, seed=2), ids(2, 29, seed=3))), f"{entry}: the checkpoint lacks something"


def check_half(entry: DecoderEntry) -> None:
    """Under bf16 autocast logits are close to those of float32, at once and step by step from a cache.

    If a mechanism chooses by content, some tokens change their choice, so only the best four of five tokens count.
    """
    model, target = entry.make(), ids(2, 21, seed=3)
    source = ids(2, 27, seed=2)
    exact = forced(model, source, target)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole = forced(model, source, target)
        state, steps = model.decoder.init_state(model.encode(Source(source)), room=24), []
        for t in range(21):
            found = model.decoder(target[:, t : t + 1], state)
            state = found.state
            steps.append(finite(found.logits))
    chooses = any(part.receptive_field == "data" for part in model.modules() if isinstance(part, Facts))
    for what, logits in (("whole", whole), ("steps", torch.cat(steps, 1))):
        errors = ((logits.float() - exact).abs().mean(-1) / exact.abs().mean()).flatten().sort().values
        error = errors[: len(errors) * 4 // 5 if chooses else None].mean().item()
        assert error < 0.015, f"{entry}: {what} in bf16 is off by {error:.2%}"
