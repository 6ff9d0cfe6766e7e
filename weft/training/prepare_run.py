"""From a configuration to a run that can train: the task with its data, and the model with its initial weights.

Every size of a recipe is a wish. The steps limit some (`lower_to_steps`), the data others (`Task.prepare`), and `auto` is
resolved. The configuration that results is `Task.config`; `weft.training.train_run` writes it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from weft.config.corpus_entries import weighed
from weft.config.sections import Config
from weft.data.batching import round_up
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.errors import ConfigError, RunError
from weft.layers.kernels import computes_bf16, modern
from weft.models.base import Network, Sizes
from weft.runs.distillation_and_backtranslation import OpenTeacher
from weft.runs.open_run import Report, build_network, silent
from weft.runs.weight_files import zero_initialized
from weft.tasks.base import Task, build_task, check_metrics, find_measure
from weft.training.activation_checkpointing import check_layers
from weft.training.distributed import World
from weft.training.sharding import check_shardable

Prepared = tuple[Task, Network]
"""A task with its data, and the model with its initial weights."""

CHARACTERS = 100
"""The assumed number of different characters in a text, if a recipe only gives a maximum."""


def lower_to_steps(config: Config, report: Report = silent) -> Config:
    """Shortens a warm-up that would never end, and an average of more checkpoints than there will be. Reports each change.

    A warm-up as long as the training, or longer, becomes half of the steps.
    """
    train = config.train
    changes: dict[str, int] = {}
    if train.schedule.get("warmup", 0) >= train.steps:
        changes["train.schedule.warmup"] = train.steps // 2
        report(f"train.schedule.warmup: {train.steps // 2:,}, because train.steps is {train.steps:,}")
    saved = -(-train.steps // min(train.save_every, train.validate_every or train.save_every))
    if train.average_last > saved:
        changes["train.average_last"] = saved
        report(f"train.average_last: {saved:,}, because {train.steps:,} steps give no more checkpoints")
    return config.replaced(changes) if changes else config


def prepare_run(config: Config, out: Path, device: torch.device, report: Report = silent) -> Prepared:
    """The task of the run in `out`, with its data and the resolved configuration, and the model with its initial weights.

    A model without weights is built first, so that errors in its configuration show before a large corpus is read.
    """
    task = build_task(config, out, report, OpenTeacher())
    with torch.device("meta"), zero_initialized():  # to draw weights, torch would import sympy
        outline = build_network(task, config, task.placeholder_sizes())
    check_length(task, outline)
    check_metrics(task)
    if config.train.recompute:
        check_layers(outline, config.model)
    if config.train.shard:
        check_shardable(task, config.train)
    if config.data.validates:
        find_measure(task, config.train.best_by)
    if config.train.precision == "bf16" and not computes_bf16(device):
        report("train.precision: this CPU has no arithmetic in bf16, so training uses float32")
        config = config.replaced({"train.precision": "float32"})
    task.config = resolve_batches(config, outline, task, device)
    sizes = task.prepare()
    report("building the model")
    torch.manual_seed(task.config.train.seed)
    return task, build_network(task, task.config, sizes)


def untrained_model(config: Config, folder: Path) -> tuple[Task, Sizes, Network]:
    """The task and the model of a configuration, with its initial weights and without data. Data may lower the sizes."""
    kind, size = config.data.tokenizer["kind"], config.data.vocabulary
    if kind in ("bytes", "characters"):
        size = ByteTokenizer().size if kind == "bytes" else min(size, CHARACTERS)
    task, sizes = build_task(config, folder), Sizes(size, size, config.data.shared_vocabulary)
    outline = task.placeholder_sizes()
    if outline.reads == "frames":
        sizes = replace(sizes, source=outline.source, reads="frames")
    if outline.writes == "vectors":
        sizes = replace(sizes, target=outline.target, writes="vectors")
    torch.manual_seed(config.train.seed)
    return task, sizes, task.build(config.model, sizes)


def resolve_batches(config: Config, outline: Network, task: Task, device: torch.device) -> Config:
    """Resolves `auto` in train.packed and train.rounded. A resumed run keeps them: its position in the data depends on them."""
    packed, rounded = config.train.packed, config.train.rounded
    # Whether work on batches of one size can be captured on this device and for this task.
    repeats = task.info.capturable and device.type == "cuda" and config.train.precision == "bf16"
    fits = outline.max_length is None or max_row_length(task, rounded=True) <= outline.max_length
    if packed == "auto":
        packed = repeats and modern(device) and outline.supports_packing and not outline.packing_is_quadratic
    if rounded == "auto":
        rounded = repeats and outline.cuda_graph_safe and fits and not packed
    if packed and not outline.supports_packing:
        raise ConfigError("train.packed: a part of this model does not support packed rows; set train.packed: false")
    if rounded and not fits:
        raise ConfigError(
            f"train.rounded: texts of {config.data.max_length} tokens would be padded to more than the model's "
            f"{outline.max_length} positions; set train.rounded: false, or lower data.max_length"
        )
    return config.replaced({"train.packed": packed, "train.rounded": rounded})


def max_row_length(task: Task, *, rounded: bool = False) -> int:
    """The most positions of a row for texts of up to data.max_length tokens. rounded: if batches come in few sizes."""
    if task.info.fixed_length:
        return task.info.fixed_length
    tags = max((len(part.tags) for part in weighed(task.config.data.train)), default=0)
    positions = task.config.data.max_length + tags + 1
    return round_up(positions) if rounded else positions


def check_length(task: Task, model: Network) -> None:
    """Raises ConfigError if texts of data.max_length tokens exceed the model's positions."""
    longest, limit = max_row_length(task), model.max_length
    if limit is not None and longest > limit:
        raise ConfigError(
            f"data.max_length: texts of {longest - 1} tokens and their end do not fit the model's {limit} positions; set "
            f"data.max_length to at most {limit - 1}, or raise max_length of the model or of its mixers"
        )


def summary(task: Task, model: Network) -> str:
    """The sizes of the model and of the data."""
    trained = sum(weight.numel() for name, weight in model.named_parameters() if name not in model.borrowed)
    facts = {"parameters": model.count_parameters(), **({"of them trained": trained} if model.borrowed else {})}
    return ", ".join(f"{value:,} {name}" for name, value in {**facts, **task.describe()}.items())


def prepare_in_turn(world: World, first: Callable[[], Prepared], others: Callable[[Config], Prepared]) -> Prepared:
    """Prepares the run in the first process, then in the others, which take its configuration and its files.

    If the first one fails, no other waits forever.
    """
    if not world.first:
        resolved: Config | None = world.broadcast(None)
        if resolved is None:
            raise RunError(f"process {world.rank} stops because the first process failed to start; see its error message")
        return others(resolved)
    resolved = None
    try:
        task, model = first()
        resolved = task.config
        return task, model
    finally:
        world.broadcast(resolved)
