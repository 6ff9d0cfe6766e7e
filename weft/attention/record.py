"""Seeing attention: a tape of the weights, which costs nothing while no one looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from weft.attention.base import Attended, Attention


@contextmanager
def record(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Inside this context every attention of `model` is asked for its weights; they are found under the module's name.

    A mechanism without weights leaves no entry.
    """
    tape: dict[str, list[Tensor]] = {}
    hooks = []

    def ask(module: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**options, "need_weights": True}

    def note(name: str, found: Attended) -> None:
        if found.weights is not None:
            tape.setdefault(name, []).append(found.weights)

    for name, module in model.named_modules():
        if isinstance(module, Attention):
            hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            hooks.append(module.register_forward_hook(lambda _, __, found, name=name: note(name, found)))
    try:
        yield tape
    finally:
        for hook in hooks:
            hook.remove()
