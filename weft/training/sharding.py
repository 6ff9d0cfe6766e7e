"""Sharded training (`train.shard`): each process keeps a part of the weights, of their gradients and of the optimiser's state.

This is torch's FSDP2 (Zhao et al. 2023), after ZeRO (Rajbhandari et al. 2020). The processes gather the weights of a layer just
before they compute it, drop them afterwards, and add up its gradients, of which each keeps its part. Everything that is not a
layer of a Transformer is gathered for the whole of a pass, so tied tables stay together. A sum of losses has the gradients that
`weft.training.distributed` computes, with less memory and more messages.

Scores need the whole model: the first process gathers it into a copy (`PlainCopy`), which needs the memory of its weights.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from weft.config.sections import TrainSection
from weft.data.batch import Batch
from weft.errors import ConfigError
from weft.layers.decoder_state import State, leaves
from weft.models.transformer_blocks import DecoderLayer
from weft.runs.distributed_tensors import divided, each_whole
from weft.tasks.base import Loss, MultiOptimizerTask, Task
from weft.training.activation_checkpointing import transformer_layers
from weft.training.distributed import World, same_start

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def shards(config: TrainSection, world: World) -> bool:
    """Whether the model is divided among processes: one process has nobody to divide it with."""
    return config.shard and world.size > 1


def check_shardable(task: Task, config: TrainSection) -> None:
    """Raises ConfigError if a training cannot be sharded."""
    if isinstance(task, MultiOptimizerTask):
        raise ConfigError("train.shard: this task trains with several optimisers in turn; set train.shard: false")
    if config.unfreeze_every:
        raise ConfigError("train.shard: weights that are unfrozen later cannot be sharded; remove train.unfreeze_every")
    if config.compile is True:
        raise ConfigError("train.shard: a sharded model cannot be compiled; set train.compile: auto")


class PlainCopy:
    """The structure of a model that is about to be divided, for copies that hold all of its weights in one process."""

    def __init__(self, model: nn.Module) -> None:
        known: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
        for weight in model.parameters():
            known[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
        self._outline = copy.deepcopy(model, known)

    def filled(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """A copy with these weights, on the device of `model`, whose buffers it shares unless `tensors` has them."""
        buffers, device = dict(model.named_buffers()), next(model.parameters()).device
        known: dict[int, Any] = {}
        for name, buffer in self._outline.named_buffers():
            known[id(buffer)] = tensors.get(name, buffers[name]).to(device)
        for name, weight in self._outline.named_parameters():
            known[id(weight)] = nn.Parameter(tensors[name].to(device), weight.requires_grad)
        return copy.deepcopy(self._outline, known)


def gathered(model: nn.Module, average: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """All weights by name, those of `average` in place of the model's. All processes take part; some `keep` the result."""
    weights = {name: average.get(name, weight) for name, weight in model.named_parameters()}
    return {name: values.clone() for name, values in each_whole(weights) if keep}


class ShardedLosses:
    """The losses of a task, computed by a model that this divides among the processes of `world`, in place."""

    def __init__(self, task: Task, model: nn.Module, config: TrainSection, world: World) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # half as long as torch itself to import

        # States of the attention to the source are views, and nothing changes them in place while a model trains.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        same_start(model, world)
        mesh = init_device_mesh(world.device.type, (world.size,))
        # Autocast computes in bf16, as in one process: gathered in bf16, norms would be rounded too.
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        layers = own_layers(model) if task.info.capturable and not _reversible(task.config.model) else []
        for layer in layers:
            _sum(fully_shard(layer, mesh=mesh, mp_policy=policy))
            _enter_with_one_tensor(layer)
        self._pass = _sum(fully_shard(_Pass(task, model), mesh=mesh, mp_policy=policy))
        self._recompute = config.recompute

    def __call__(self, batch: Batch, update: int, autocast: torch.autocast) -> list[Loss]:
        """Forward and backward of one micro-batch, as `forward_backward`. All processes have to call this together."""
        with autocast:
            # Weights that were cast for a layer would be kept until the end of the pass, when the layer is computed again.
            torch.set_autocast_cache_enabled(not self._recompute)
            total, losses = self._pass(_Held(batch, update))
        total.backward()
        return [loss.detached() for loss in losses.values[0]]


def own_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a Transformer that share no weights with the rest of a model."""
    layers = list(dict.fromkeys(transformer_layers(model)))
    owners = Counter(id(weight) for layer in layers for weight in layer.parameters())
    inside = {id(module) for layer in layers for module in layer.modules()}
    for module in model.modules():
        if id(module) not in inside:
            owners.update(id(weight) for weight in module.parameters(recurse=False))
    return [layer for layer in layers if all(owners[id(weight)] == 1 for weight in layer.parameters())]


class _Held:
    """Values that FSDP passes on without looking into them: it would copy dicts that layers add to."""

    def __init__(self, *values: Any, **named: Any) -> None:
        self.values, self.named = values, named


class _Pass(nn.Module):
    """A forward pass up to the losses of a batch, inside which all weights that are not in layers are whole."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, held: _Held) -> tuple[Tensor, _Held]:
        """The sum of the losses, which is differentiated, and each of them."""
        batch, update = held.values
        losses = list(self.task.losses(self.model, batch, update))
        # A weight that only some processes have used needs a gradient in all of them, or they would wait for each other.
        whole = [weight for weight in self.model.parameters() if weight.requires_grad and not divided(weight)]
        nothing = torch.stack([weight.flatten()[:0].sum() for weight in whole]).sum() if whole else 0.0
        return torch.stack([loss.total for loss in losses]).sum() + nothing, _Held(losses)


def _sum(module: FSDPModule) -> Any:
    """Adds gradients over processes, where FSDP would take their mean."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
    return module


def _enter_with_one_tensor(layer: nn.Module) -> None:
    """Lets FSDP see the first argument of a layer only, also where a decoder layer is entered before it is called."""
    forward: Callable[..., Any] = layer.forward
    layer.forward = lambda x, held: forward(x, *held.values, **held.named)  # type: ignore[method-assign]
    layer.register_forward_pre_hook(
        lambda module, given, named: ((given[0], _Held(*given[1:], **named)), {}), prepend=True, with_kwargs=True
    )
    if isinstance(layer, DecoderLayer):
        if layer.cross is not None:
            _gather_for(layer, "read_source")
        if any(divided(leaf) for leaf in leaves(layer.init_state())):
            _gather_for(layer, "init_state")  # it is made of weights, or like them


def _gather_for(layer: nn.Module, name: str) -> None:
    """Gathers the weights of a layer for a method that returns a state, too."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    method, gathering = getattr(layer, name), f"gathered_{name}"

    def run(held: _Held, *first: Tensor) -> tuple[list[Tensor], _Held]:
        state = method(*first, *held.values, **held.named)
        return leaves(state), _Held(state)

    def enter(*given: Any, **named: Any) -> State:
        return getattr(layer, gathering)(_Held(*given[1:], **named), *given[:1])[1].values[0]

    setattr(layer, gathering, run)
    register_fsdp_forward_method(layer, gathering)
    setattr(layer, name, enter)


def _reversible(settings: Mapping[str, Any]) -> bool:
    """Whether the layers of a model are reversible; then they are not called as layers, but by their sub-layers."""
    return any(_reversible(part) for part in settings.values() if isinstance(part, Mapping)) or bool(settings.get("reversible"))
