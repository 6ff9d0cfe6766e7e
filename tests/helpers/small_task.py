"""A model and a task that train in a second and use every feature of the trainer.

Dropout, tied weights, a buffer that is refreshed, two losses with one denominator, a parameter that only some batches
use, a second optimiser. Run as a program it is one process of some jobs: `python small_task.py '[["RUN", "{}", "--resume"]]'`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from weft.config.sections import Config, TrainSection
from weft.data.batch import Layout, PairBatch, Position, Source
from weft.errors import Interrupted
from weft.models.base import Sizes
from weft.runs.run_folder import RunLock
from weft.runs.weight_files import write_tensors
from weft.tasks.base import Loss, Task, optimizer_groups
from weft.training.distributed import World, join_processes, sum_gradients
from weft.training.log import Log, open_log
from weft.training.training_loop import fit
from weft.training.update_step import Meter
from weft.training.validate_and_save import Result

WORDS, WIDTH, WINDOW, WINDOWS = 20, 12, 5, 3


class SmallModel(nn.Module):
    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(WIDTH, WORDS)
        self.out.weight = self.embedding.weight
        self.rare = nn.Linear(WIDTH, WORDS)
        self.critic = nn.Linear(WIDTH, 1)
        self.features = nn.Buffer(torch.ones(WIDTH))

    def refresh(self, generator: torch.Generator) -> None:
        self.features.copy_(1 + 0.1 * torch.randn(WIDTH, generator=generator), non_blocking=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.rnn(self.dropout(self.embedding(tokens)))[0]) * self.features


class SmallTask(Task):
    """Random sentences, each batch a function of its position. `rows` holds the number of the batch in the stream."""

    def __init__(self, interrupt_at: int | None = None, pause: float = 0.0, bad: frozenset[int] = frozenset()) -> None:
        self.interrupt_at, self.pause, self.bad = interrupt_at, pause, bad
        self.asked: list[Position] = []
        self.read: list[int] = []
        self.scores: list[float] | None = None
        self.config = Config()

    def prepare(self) -> Sizes:
        return Sizes(WORDS, WORDS)

    def batches(self, position: Position) -> Iterator[tuple[PairBatch, Position]]:
        self.asked.append(position)
        number = (position.epoch * WINDOWS + position.window) * WINDOW + position.batch
        while True:
            yield small_batch(number), place_of(number + 1)
            number += 1

    def losses(self, model: nn.Module, batch: PairBatch, update: int) -> Iterator[Loss]:
        assert isinstance(model, SmallModel)
        number = int(batch.rows[0])
        self.read.append(number)
        if number == self.interrupt_at:
            signal.raise_signal(signal.SIGINT)
        time.sleep(self.pause)
        ok, none = batch.target_layout.mask, torch.zeros((), dtype=torch.long)
        total = cross_entropy(model.out(model(batch.target))[ok], batch.labels[ok], reduction="sum")
        total = total * float("nan") if number in self.bad else total
        yield Loss(total, ok.sum(), {"tokens": ok.sum()})
        hidden = model(batch.target)
        yield Loss(0.3 * (hidden.sum(2).mean(1) - batch.target_layout.lengths).pow(2).sum(), none)
        if number % 3 == 0:
            yield Loss(cross_entropy(model.rare(model(batch.target)[:, 0]), batch.labels[:, 0], reduction="sum"), none)
        hidden = model(batch.target).detach()
        yield Loss((model.critic(hidden) - 1).abs().sum(), torch.tensor(ok.numel()), optimizer="critic")

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, SmallModel)
        assert not model.training
        if self.scores is not None:
            return {"loss": self.scores.pop(0)}
        batch = small_batch(10**6)
        ok = batch.target_layout.mask
        return {"loss": float(cross_entropy(model.out(model(batch.target))[ok], batch.labels[ok]).detach())}

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        assert isinstance(model, SmallModel)
        critic = list(model.critic.parameters())
        others = {id(parameter) for parameter in critic}
        return {"model": [p for p in model.parameters() if id(p) not in others], "critic": critic}

    def optimizers(self) -> dict[str, Any]:
        return {}


def place_of(number: int) -> Position:
    return Position(number // (WINDOW * WINDOWS), number // WINDOW % WINDOWS, number % WINDOW)


def small_batch(number: int) -> PairBatch:
    generator = np.random.default_rng(number)
    lengths = generator.integers(2, 10, generator.integers(2, 7))
    layout = Layout.padded(lengths)
    target = torch.from_numpy(generator.integers(4, WORDS, tuple(layout.segments.shape))) * layout.mask
    return PairBatch(torch.tensor([number]), Source(target, layout), target, layout, target.roll(-1, 1))


def settings(**options: Any) -> TrainSection:
    """A configuration for tests that logs, validates and saves often."""
    usual: dict[str, Any] = {
        "steps": 9,
        "log_every": 1,
        "validate_every": 2,
        "save_every": 3,
        "ema": 0.9,
        "schedule": {"kind": "constant", "rate": 0.01},
        "tensorboard": False,
        "device": "cpu",
    }
    return TrainSection(**{**usual, **options})


def train(
    run: Path,
    *,
    resume: bool = False,
    task: SmallTask | None = None,
    model: SmallModel | None = None,
    log: Log | None = None,
    validation: float = 0.0,
    **options: Any,
) -> tuple[Result, SmallModel]:
    """Trains a run in this process. validation: the seconds that one is expected to take."""
    run.mkdir(parents=True, exist_ok=True)
    chosen = model or SmallModel()
    place: dict[str, Any] = {"run": run, "world": World(0, 1, torch.device("cpu")), "dim": WIDTH, "log": log or Log()}
    task = task or SmallTask()
    result = fit(chosen, task, settings(**options), resume=resume, validation=validation, **place)
    return result, chosen


def _train(world: World, run: Path, options: dict[str, Any], resume: bool) -> None:
    """One process of a run. `interrupt_at`, `pause`, `bad` and `double` are for task and model, other options for `train`."""
    run.mkdir(parents=True, exist_ok=True)
    interrupt_at = options.pop("interrupt_at", None)
    bad = frozenset(options.pop("bad", ()))
    task = SmallTask(interrupt_at if world.first else None, options.pop("pause", 0.0), bad)
    model = SmallModel().double() if options.pop("double", False) else SmallModel()
    config = settings(**options)
    try:
        with RunLock(run) if world.first else nullcontext():
            log = open_log(run, config.steps, tensorboard=False, first=world.first)
            fit(model, task, config, run=run, world=world, dim=WIDTH, resume=resume, log=log)
    except Interrupted as stopped:
        print(stopped)
    (run / f"seen-{time.time_ns()}-{world.rank}.json").write_text(json.dumps(task.read))


def _gradients(world: World, out: Path, accumulate: int) -> None:
    """The gradients of one update in this process, in float64."""
    model, task = SmallModel().double(), SmallTask()
    groups, _ = optimizer_groups(task, model)
    meter = Meter(list(groups), world.device)
    for place in world.share(accumulate):
        torch.manual_seed(place)
        for loss in task.losses(model, small_batch(place + 1), 1):
            loss.total.backward()
            meter.add([replace(loss, total=loss.total.detach())])
    sum_gradients(groups, meter.take(), world, bucket=300)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    write_tensors(out / f"gradients-{world.size}-{world.rank}.safetensors", gradients)


def run_jobs(jobs: Sequence[Sequence[str]]) -> None:
    """One process of several jobs: `RUN OPTIONS [--resume]` trains, `--gradients FOLDER ACCUMULATE` writes gradients."""
    world = join_processes("cpu")
    for first, second, *flags in jobs:
        if first == "--gradients":
            _gradients(world, Path(second), int(flags[0]))
        else:
            _train(world, Path(first), json.loads(second), "--resume" in flags)
    world.close()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    run_jobs(json.loads(sys.argv[1]))
