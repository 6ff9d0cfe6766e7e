"""What tokens depend on, where no weights say so: take one away, and see what changes.

Shapes: T target tokens · S source tokens · D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.attention.base import Attended
from weft.batch import BOS, UNK, Source
from weft.explain.text import Weights
from weft.mixers.base import Mixer
from weft.models.base import Model

TOKENS = 16_384
"""The most tokens that go through a model at once."""

MOST = 30.0
"""Nats that a lost token counts at most: a word that could only be copied has no probability at all without it."""


@contextmanager
def inputs_of(mixers: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Inside this context what each module is given [B, T, D] is kept under its name."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda _, args, __: seen.__setitem__(name, args[0])

    with _hooked([module.register_forward_hook(keep(name)) for name, module in mixers.items()]):
        yield seen


@torch.inference_mode()
def mixer_influence(mixer: Mixer, x: Tensor) -> Weights:
    """[T, T]: how far what a mixer finds for each token moves when another, or itself, is replaced by the mean of all.

    x [1, T, D] is what the mixer was given. Rows sum to one.
    """
    length = x.size(1)
    base = _context(mixer, x)
    moved = []
    for places in torch.arange(length, device=x.device).split(max(1, TOKENS // length)):
        rows = x.repeat(places.numel(), 1, 1)
        rows[torch.arange(places.numel(), device=x.device), places] = x.mean((0, 1))
        moved.append((_context(mixer, rows) - base).norm(dim=-1))
    return _shares(torch.cat(moved).T)


def _context(mixer: Mixer, x: Tensor) -> Tensor:
    found: Attended = mixer(x, mixer.start(rows=x.size(0)))
    return found.context.float()


@torch.inference_mode()
def source_influence(
    model: Model, source: Sequence[int], target: Sequence[int], watched: Mapping[str, nn.Module]
) -> dict[str, Weights]:
    """[T, S] each: what changes at each target token when a source token is replaced by UNK. Rows sum to one.

    Under "" it is the log-probability of the token; under the name of each `watched` attention, what that finds.
    """
    device, count = model.device, len(source)
    ids = torch.tensor([list(source)] * (count + 1), device=device)
    ids[torch.arange(1, count + 1), torch.arange(count)] = UNK
    fed, written = (torch.tensor([row], device=device) for row in ([BOS, *target[:-1]], list(target)))
    base: dict[str, Tensor] = {}
    moved: dict[str, list[Tensor]] = {}
    most = max(1, TOKENS // (count + len(target)))
    for rows in [ids[:1], *ids[1:].split(most)]:
        for name, found in _run(model, rows, fed.expand(len(rows), -1), written.expand(len(rows), -1), watched).items():
            if name in base:
                moved.setdefault(name, []).append((found - base[name]).norm(dim=-1).clamp_max(MOST))
            else:
                base[name] = found
    return {name: _shares(torch.cat(each).T) for name, each in moved.items()}


def _run(model: Model, source: Tensor, fed: Tensor, written: Tensor, watched: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """[B, T, …]: the log-probability of what was written, and the context that each watched attention found."""
    contexts: dict[str, list[Tensor]] = {name: [] for name in watched}

    def keep(name: str) -> Any:
        return lambda _, __, found: contexts[name].append(found.context.float())

    with _hooked([module.register_forward_hook(keep(name)) for name, module in watched.items()]):
        logits = model.decoder(fed, model.decoder.start(model.encode(Source(source)))).logits
    logp = logits.float().log_softmax(-1).gather(-1, written[..., None]).clamp_min(-MOST)
    return {"": logp, **{name: torch.cat(each, 1) for name, each in contexts.items() if each}}


@contextmanager
def _hooked(handles: Sequence[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield


def _shares(moved: Tensor) -> Weights:
    """Rows divided by their sums; a row that nothing moves is 0."""
    return np.asarray((moved / moved.sum(-1, keepdim=True).clamp_min(1e-12)).float().cpu())
