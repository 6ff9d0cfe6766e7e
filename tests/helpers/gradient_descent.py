"""A few updates on a GPU by plain gradient descent: the losses as the work is done as usual, or recorded and replayed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from weft.data.batch import Batch
from weft.models.base import Network
from weft.tasks.base import Task
from weft.training.compile_and_cuda_graphs import CudaGraphSteps
from weft.training.update_step import forward_backward


def losses(task: Task, model: Network, batches: Iterable[Batch], *, recorded: bool) -> list[float]:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    autocast = torch.autocast(model.device.type, torch.bfloat16)

    def work(batch: Batch, update: int) -> list[Any]:
        return forward_backward(task, model, batch.to(model.device), update, autocast)

    run = CudaGraphSteps(work, model.device) if recorded else work
    found = []
    for update, batch in enumerate(batches, 1):
        found.append(float(run(batch, update)[0].total))
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 1e-3 * parameter.grad.clamp(-1.0, 1.0)
                parameter.grad.zero_()
    return found
