"""Influence of tokens on each other, for models without attention weights: replace one token and measure the change.

Shapes: T target tokens · S source tokens · D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Mixer
from weft.data.batch import BOS, UNK, Source
from weft.explain.explanation import Weights
from weft.models.base import Model

TOKENS = 16_384
"""Maximum number of tokens in one forward pass."""

LARGEST = 30.0
"""Upper bound of a change, in nats: without its source, a word that could only be copied has probability 0."""


@contextmanager
def observed(modules: Mapping[str, nn.Module], note: Callable[[str, Any, Any], object]) -> Iterator[None]:
    """Inside this context, `note` receives the name, first argument and output of each call of these modules."""

    def hook(name: str, _: nn.Module, args: Any, output: Any) -> None:
        note(name, args[0], output)

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(partial(hook, name)).remove)
        yield


@torch.inference_mode()
def mixer_influence(mixer: Mixer, x: Tensor) -> Weights:
    """[T, T]: how far a mixer's output at each token (row) moves when a token (column) is replaced by the mean of all.

    x [1, T, D]: the mixer's input. Rows sum to one.
    """

    def context(x: Tensor) -> Tensor:
        attended: Attended = mixer(x, mixer.start(rows=x.size(0)))
        return attended.context.float()

    length, base = x.size(1), context(x)
    moved = []
    for places in torch.arange(length, device=x.device).split(max(1, TOKENS // length)):
        batch = x.repeat(places.numel(), 1, 1)
        batch[torch.arange(places.numel(), device=x.device), places] = x.mean((0, 1))
        moved.append((context(batch) - base).norm(dim=-1))
    return _shares(torch.cat(moved).T)


@torch.inference_mode()
def source_influence(
    model: Model, source: Sequence[int], target: Sequence[int], watched: Mapping[str, nn.Module]
) -> dict[str, Weights]:
    """Returns arrays [T, S]: the change at each target token when a source token is replaced by UNK. Rows sum to one.

    The key "" holds the change of the token's log-probability; the name of each `wrap_decoder` attention, that of its context.
    """
    device, count = model.device, len(source)
    ids = torch.tensor([list(source)] * (count + 1), device=device)
    ids[torch.arange(1, count + 1), torch.arange(count)] = UNK
    inputs, labels = (torch.tensor([row], device=device) for row in ([BOS, *target[:-1]], list(target)))
    base: dict[str, Tensor] = {}
    moved: dict[str, list[Tensor]] = {}
    size = max(1, TOKENS // (count + len(target)))
    for rows in [ids[:1], *ids[1:].split(size)]:
        for name, values in _run(model, rows, inputs.expand(len(rows), -1), labels.expand(len(rows), -1), watched).items():
            if name in base:
                moved.setdefault(name, []).append((values - base[name]).norm(dim=-1).clamp_max(LARGEST))
            else:
                base[name] = values
    return {name: _shares(torch.cat(each).T) for name, each in moved.items()}


def _run(model: Model, source: Tensor, inputs: Tensor, labels: Tensor, watched: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Returns tensors [B, T, …]: the log-probabilities of the target, and the context of each watched attention."""
    contexts: dict[str, list[Tensor]] = {name: [] for name in watched}
    with observed(watched, lambda name, _, attended: contexts[name].append(attended.context.float())):
        logits = model.decoder(inputs, model.decoder.start(model.encode(Source(source)))).logits
    logp = logits.float().log_softmax(-1).gather(-1, labels[..., None]).clamp_min(-LARGEST)
    return {"": logp, **{name: torch.cat(each, 1) for name, each in contexts.items() if each}}


def _shares(moved: Tensor) -> Weights:
    """Divides rows by their sums. A row without any change stays 0."""
    return np.asarray((moved / moved.sum(-1, keepdim=True).clamp_min(1e-12)).float().cpu())
