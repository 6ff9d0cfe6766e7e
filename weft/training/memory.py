"""Memory of a GPU: the batch that fits (`train.batch_tokens: auto`), and going on when it does not.

If a step runs out of memory, it begins again with its micro-batches in halves. Losses and counts are sums, so their gradients
add up to those of the whole: no pair is lost or read twice, only the random numbers of dropout are others. A checkpoint knows
the number of parts, so a resumed run computes the same.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft.config.sections import Config
from weft.data.batch import Batch, Layout, PairBatch, Position, Source
from weft.errors import ConfigError
from weft.models.base import Network, Sizes
from weft.runs.device_and_precision import autocast
from weft.runs.open_run import Report
from weft.tasks.base import StatefulTask, Task
from weft.training.prepare_run import max_row_length, resolve_batches, untrained_model
from weft.training.update_step import UpdateStep, forward_backward

USUAL = 4096
"""Tokens per micro-batch where no memory is measured."""

SMALLEST, LARGEST = 1024, 131_072
"""The fewest and the most tokens that are tried."""

SHARE = 0.8
"""The share of a GPU's memory that training may plan with; fragments and the data take some of the rest."""

STATES = 4
"""Copies of the weights that training keeps besides activations: gradients, two moments of Adam, and the moving average."""

SHORT = 32
"""Tokens of the short rows that are tried: many of them take other memory than a few long ones."""


def resolve_batch_tokens(config: Config, device: torch.device, report: Report, *, chosen: bool = False) -> Config:
    """Replaces `train.batch_tokens: auto` by what fits into the memory of a GPU. chosen: `auto` chooses the batch later."""
    if config.train.batch_tokens != "auto":  # type: ignore[comparison-overlap]
        return config
    if chosen:
        raise ConfigError("train.batch_tokens: auto: the recipe auto chooses the batch itself; leave this setting away")
    usual = config.replaced({"train.batch_tokens": USUAL})
    if device.type != "cuda":
        report(f"train.batch_tokens: {USUAL:,}, because only the memory of a GPU is measured")
        return usual
    task, sizes, model = untrained_model(usual, Path())
    task.config = resolve_batches(usual, model, task, device)
    tokens = largest_batch(lambda tokens: _fits(task, sizes, model, tokens, device))
    report(f"train.batch_tokens: {tokens:,}, the most that fit into {SHARE:.0%} of the memory of {device}")
    return config.replaced({"train.batch_tokens": tokens})


def largest_batch(fits: Callable[[int], bool]) -> int:
    """The most tokens that fit, by doubling, then halfway between the last two. Raises ConfigError if `SMALLEST` do not."""
    tokens = SMALLEST
    if not fits(tokens):
        raise ConfigError(f"train.batch_tokens: auto: not even {tokens:,} tokens fit; choose a smaller model or shorter texts")
    while tokens < LARGEST and fits(2 * tokens):
        tokens *= 2
    return tokens * 3 // 2 if tokens < LARGEST and fits(tokens * 3 // 2) else tokens


def _fits(task: Task, sizes: Sizes, model: Network, tokens: int, device: torch.device) -> bool:
    """Whether a forward and a backward pass over that many tokens leaves enough memory. The model itself stays as it is."""
    train, total = task.config.train, torch.cuda.get_device_properties(device).total_memory
    layout = {"packed": train.packed is True, "rounded": train.rounded is True}
    try:
        with torch.random.fork_rng([device]):
            probed = copy.deepcopy(model).to(device).train()
            states = (STATES - 1) * sum(each.nbytes for each in probed.parameters())
            torch.cuda.reset_peak_memory_stats(device)
            for length in {max(1, max_row_length(task) - 1), SHORT}:
                batch = task.dummy_batch(length, sizes, max(1, tokens // (length + 1)), **layout)
                forward_backward(task, probed, batch.to(device), 1, autocast(device, train.precision))
            return torch.cuda.max_memory_allocated(device) + states <= SHARE * total
    except torch.OutOfMemoryError:
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()


class BackwardPasses:
    """The backward passes of updates, in as many parts as the memory needs.

    parts: of each micro-batch, from a checkpoint on · seed: that of a place in the data · report: receives messages
    """

    def __init__(self, step: UpdateStep, seed: Callable[..., int], report: Report, parts: int = 1) -> None:
        self.step, self.seed, self.report, self.parts = step, seed, report, parts

    def __call__(self, update: int, begin: Position, batches: Sequence[tuple[int, Batch]]) -> None:
        """Adds up the gradients of an update. Raises OutOfMemoryError if its micro-batches cannot be divided further."""
        while not self._attempt(update, begin, batches):
            self.step.begin_again()
            free_memory(self.step.world.device)
            if not self._divisible(batches):
                raise torch.OutOfMemoryError("the batches cannot be divided further")
            self.parts *= 2
            self.report(
                f"{self.step.world.device} ran out of memory in step {update}, which begins again; from now on every batch is "
                f"computed in {self.parts} parts, whose gradients add up to the same. A smaller train.batch_tokens is faster"
            )

    def _attempt(self, update: int, begin: Position, batches: Sequence[tuple[int, Batch]]) -> bool:
        """Whether the memory was enough. What the failed pass holds is free once this has returned."""
        try:
            for index, batch in batches:
                for part, piece in enumerate(divided(batch, self.parts)):
                    place = (*begin, index, part) if self.parts > 1 else (*begin, index)
                    torch.manual_seed(self.seed(*place))
                    self.step.backward(piece, update)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            return False
        return True

    def _divisible(self, batches: Sequence[tuple[int, Batch]]) -> bool:
        """Whether more parts help: some batch becomes more pieces, and no pass changes a state that the next one reads."""
        task = self.step.task
        if self.step.sharded is not None:
            return False  # the other processes would wait for passes that this one does not repeat
        if isinstance(task, StatefulTask) and task.extra_state():
            return False
        return any(len(divided(batch, 2 * self.parts)) > len(divided(batch, self.parts)) for _, batch in batches)


NO_MEMORY = (
    "MPS backend out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)
"""Messages of devices whose errors have no class of their own."""


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that a device has no memory left. An Apple GPU and a CPU raise plain RuntimeErrors."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in NO_MEMORY)


def free_memory(device: torch.device) -> None:
    """Frees what nothing holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def divided(batch: Batch, parts: int) -> list[Batch]:
    """A batch of pairs in up to `parts` parts of about as many pairs. Batches of other kinds stay whole."""
    if parts == 1 or type(batch) is not PairBatch or batch.source.documents is not None:
        return [batch]
    count = _pairs(batch.target_layout)
    bounds = np.unique(np.linspace(0, count, parts + 1).round().astype(int)).tolist()
    return [_piece(batch, low, high) for low, high in pairwise(bounds)]


def _pairs(layout: Layout) -> int:
    return int(layout.segments.max()) if layout.packed else layout.segments.size(0)


def _piece(batch: PairBatch, low: int, high: int) -> PairBatch:
    """The pairs from `low` to `high`."""
    layout = batch.source.layout
    values, inner = (batch.source.values[low:high], None) if layout is None else _cut(layout, low, high, batch.source.values)
    target, outer = _cut(batch.target_layout, low, high, batch.target)
    labels, _ = _cut(batch.target_layout, low, high, batch.labels)
    whole = len(batch.rows) == _pairs(batch.target_layout)
    rows = batch.rows[low:high] if whole else batch.rows
    return replace(batch, rows=rows, source=Source(values, inner), target=target, target_layout=outer, labels=labels)


def _cut(layout: Layout, low: int, high: int, values: Tensor) -> tuple[Tensor, Layout]:
    """The values of some pairs, with their layout: rows of a padded batch, or sentences of a packed row."""
    if layout.offsets is None:
        known = None if layout.known is None else layout.known[low:high]
        inner = replace(layout, segments=layout.segments[low:high], positions=layout.positions[low:high], known=known)
        return values[low:high], inner
    bounds = layout.offsets[low : high + 1].tolist()
    lengths = [end - start for start, end in pairwise(bounds)]
    packed = Layout.pack(lengths, bounds[-1] - bounds[0], longest=layout.longest)
    return values[:, bounds[0] : bounds[-1]], packed.to(values.device)
