"""Records attention weights, with the use of each attention. Costs nothing while no one records."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, View

RecordedWeights = dict[str, list[Tensor]]


@contextmanager
def observe(attention: Attention, note: Callable[[Attended], None]) -> Iterator[None]:
    """Inside this context an attention computes its weights, and `note` receives the output of each call."""

    def request(_: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**options, "need_weights": True}

    hooks = [
        attention.register_forward_pre_hook(request, with_kwargs=True),
        attention.register_forward_hook(lambda _, __, output: note(output)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def cross_attentions(decoder: nn.Module) -> dict[str, Attention]:
    """The attentions of a decoder to its source, by name, in order."""
    return {name: part for name, part in decoder.named_modules() if isinstance(part, Attention) and part.site.use == "cross"}


@contextmanager
def record_weights(attentions: Sequence[Attention]) -> Iterator[Sequence[list[Tensor]]]:
    """Inside this context attentions that have weights record them: for each a list with one tensor [B, H, T, S] per call."""
    recorded: list[list[Tensor]] = [[] for _ in attentions]

    def note(calls: list[Tensor], output: Attended) -> None:
        assert output.weights is not None
        calls.append(output.weights)

    with ExitStack() as stack:
        for attention, calls in zip(attentions, recorded, strict=True):
            stack.enter_context(observe(attention, partial(note, calls)))
        yield recorded


@contextmanager
def record(model: nn.Module) -> Iterator[RecordedWeights]:
    """Inside this context every attention of `model` computes its weights, which are collected under the module's name.

    A mechanism without weights leaves no entry.
    """
    recorded: RecordedWeights = {}

    def note(name: str, output: Attended) -> None:
        if output.weights is not None:
            recorded.setdefault(name, []).append(output.weights)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Attention):
                stack.enter_context(observe(module, partial(note, name)))
        yield recorded


def first_row(model: nn.Module, recorded: RecordedWeights) -> tuple[dict[str, NDArray[np.float32]], dict[str, View]]:
    """The weights [H, T, S] of the first row of the batch, and what each recorded attention shows. Keys are module names."""
    weights = {name: np.asarray(torch.cat(steps, 2)[0].float().cpu()) for name, steps in recorded.items()}
    return weights, {name: module.site.view for name, module in model.named_modules() if name in recorded}
