"""Optimisers, and buffers of a step that is skipped. The schedule sets the learning rate before every update."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from weft.runs.distributed_tensors import divided_like

Weights = Iterable[nn.Parameter] | Iterable[dict[str, Any]]
"""Parameters, or groups of them as torch.optim takes them; the `scale` of a group is a factor on its learning rate."""

Names = Mapping[Tensor, str]
"""Parameter → name."""

FUSED = ("cpu", "cuda")
"""Devices with fused Adam kernels, which are the fastest and can skip a step without synchronising with the device."""


def adam(
    parameters: Weights,
    *,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    factor: PositiveFloat = 1.0,
) -> Optimizer:
    """Adam (Kingma & Ba 2015) with the betas and eps of Vaswani et al. 2017; weight decay is added to the gradient.

    betas: decay rates of the moving averages of the gradient and its square
    eps: added to the denominator for numerical stability
    weight_decay: L2 penalty, added to the gradient
    factor: factor on the learning rate of train.schedule
    """
    groups = _groups(parameters, factor)
    return Adam(groups, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay, fused=_fused(groups))


def adamw(
    parameters: Weights,
    *,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    decay_biases: bool = False,
    factor: PositiveFloat = 1.0,
) -> Optimizer:
    """AdamW, Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    Biases and the gains of norms (parameters with fewer than two dimensions) are not decayed, unless `decay_biases` is set.

    betas: decay rates of the moving averages of the gradient and its square
    eps: added to the denominator for numerical stability
    weight_decay: decoupled weight decay
    decay_biases: also decay biases and norms
    factor: factor on the learning rate of train.schedule
    """
    groups = []
    for group in _groups(parameters, factor):
        decayed = [parameter for parameter in group["params"] if parameter.ndim > 1 or decay_biases]
        others = [parameter for parameter in group["params"] if parameter.ndim <= 1 and not decay_biases]
        groups += [{**group, "params": decayed, "weight_decay": weight_decay}, {**group, "params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=_fused(groups))


def _groups(parameters: Weights, factor: float) -> list[dict[str, Any]]:
    given: list[Any] = list(parameters)
    groups: list[dict[str, Any]] = given if given and isinstance(given[0], dict) else [{"params": given}]
    return [{**group, "scale": factor * group.get("scale", 1.0)} for group in groups]


def _fused(groups: list[dict[str, Any]]) -> bool:
    tensors = [parameter for group in groups for parameter in group["params"]]
    return all(parameter.device.type in FUSED and parameter.is_floating_point() for parameter in tensors)


def take_step(optimizer: Optimizer, rate: float, bad: Tensor) -> None:
    """One step at learning rate `rate`, times the scale of a group. If `bad` (a float scalar) is 1, nothing changes.

    Fused optimisers read `bad` on the device, through the interface of torch.amp.GradScaler, so the host never waits. Other
    optimisers make the host read it.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)
    if optimizer.defaults.get("fused"):
        optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
        optimizer.step()
    elif not bad.item():
        optimizer.step()


class RunningBuffers:
    """The buffers of `model`, as they were before an update.

    Passes of training change buffers, such as the running statistics of a batch norm or the sums from which centroids move. If
    numbers are not finite they would stay there for ever, and passes that are repeated would be counted twice.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = list(model.buffers())
        self._before: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Remembers what the buffers hold now."""
        self._before = [buffer.clone() for buffer in self._buffers]

    @torch.no_grad()
    def restore(self, bad: Tensor) -> None:
        """Writes back what was remembered if `bad` (a float scalar) is 1. The device decides, without waiting."""
        for buffer, before in zip(self._buffers, self._before):
            buffer.copy_(torch.where(bad > 0, before, buffer))


def names_of(model: nn.Module) -> Names:
    return {parameter: name for name, parameter in model.named_parameters()}


def named_state(optimizer: Optimizer, names: Names) -> dict[str, Tensor]:
    """The optimiser's state as a flat dict: "<parameter>/<entry>" → tensor."""
    return {
        f"{names[parameter]}/{entry}": torch.as_tensor(value)
        for parameter, entries in optimizer.state.items()
        for entry, value in entries.items()
    }


def empty_state(optimizer: Optimizer, names: Names, outline: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without values for a state from `named_state`, of which the shapes are known: divided as their weights are."""
    weights = {names[weight]: weight.detach() for group in optimizer.param_groups for weight in group["params"]}
    state: dict[str, Tensor] = {}
    for key, saved in outline.items():
        weight = weights.get(key.rpartition("/")[0])
        if weight is not None and weight.shape == saved.shape:
            state[key] = torch.empty_like(weight, dtype=saved.dtype)
        elif weight is not None:
            state[key] = torch.empty(saved.shape, dtype=saved.dtype)
    return state


def restore_state(optimizer: Optimizer, names: Names, tensors: Mapping[str, Tensor]) -> None:
    """Restores a state from `named_state`. The optimiser keeps the settings it was built with."""
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        by_parameter.setdefault(name, {})[entry] = tensor
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        place: {entry: divided_like(weight, tensor) for entry, tensor in by_parameter[names[weight]].items()}
        for place, weight in enumerate(weights)
        if names[weight] in by_parameter
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
