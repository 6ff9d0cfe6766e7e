"""Memory and speed of a training step, sharded and not, and what a larger model would need.

    python benchmarks/sharding.py                           300M weights, plain and as one of 8 processes
    python benchmarks/sharding.py --plan --dim 2048 --layers 8    1B weights, on torch's meta device: bytes per process
    python benchmarks/sharding.py --save --dim 512 --layers 6 --processes 2      saving and loading a checkpoint, over gloo

A sharded step is measured as one process of several whose messages go nowhere (torch's fake process group): its memory is
that of a real process, its time that of one with an infinitely fast network. Each measurement runs in a new process. Batches
are random. The tables say what each process holds at the most.

`--save` says what each process holds of weights, moments and average, how much of it each writes into a checkpoint, and what it
needs besides, in CPU seconds and host memory, to save and to load it. The control is the way without parts: the first process
gathers one tensor after the other and writes all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.config.sections import Config, load_config
from weft.runs.device_and_precision import choose_device
from weft.runs.distributed_tensors import each_whole, local
from weft.training import checkpoint
from weft.training.checkpoint import Progress
from weft.training.compile_and_cuda_graphs import compile_blocks
from weft.training.distributed import World
from weft.training.prepare_run import resolve_batches, untrained_model
from weft.training.sharding import own_layers
from weft.training.update_step import UpdateStep

GB = 1e9
FEW, MANY = 3, 10
"""Steps before the measurement, and in it."""


def config_of(options: argparse.Namespace, **train: Any) -> Config:
    model = {"dim": options.dim, "heads": options.dim // 64, "feedforward": 4 * options.dim}
    model |= {"encoder_layers": options.layers, "decoder_layers": options.layers, "dropout": 0.1}
    settings = {f"model.{name}": value for name, value in model.items()} | {"data.vocabulary": options.vocabulary}
    settings |= {"train.batch_tokens": options.tokens, "train.precision": options.precision, "train.ema": 0.999}
    return load_config("transformer-base").replaced(settings | {f"train.{name}": value for name, value in train.items()})


def measure(options: argparse.Namespace, processes: int, settings: dict[str, Any]) -> dict[str, float]:
    """Steps per second and peak memory of one of `processes`."""
    device = choose_device("auto")
    if processes > 1:
        distributed.init_process_group("fake", rank=0, world_size=processes, store=FakeStore())
    world, config = World(0, processes, device), config_of(options, shard=processes > 1, **settings)
    task, sizes, model = untrained_model(config, Path())
    task.config = resolve_batches(config, model, task, device)
    train = task.config.train
    step = UpdateStep(model.to(device).train(), task, train, world)
    step.start()
    step.enter(1)
    if step.sharded is None:
        compile_blocks(model, train, device)
    batch = task.dummy_batch(32, sizes, options.tokens // 33, packed=train.packed is True, rounded=train.rounded is True)
    for number in range(FEW + MANY):
        if number == FEW:
            wait(device)
            begin = time.perf_counter()
        step.backward(batch, number + 1)
        step.finish(number + 1, 1e-4)
    wait(device)
    seconds = (time.perf_counter() - begin) / MANY
    memory = (
        torch.cuda.max_memory_allocated()
        if device.type == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    return {"weights": sum(weight.numel() for weight in model.parameters()), "seconds": seconds, "bytes": memory}


def resident(name: str) -> float:
    """Host memory of this process in bytes: VmRSS is that of now, VmHWM the most since the last call of `forget_peak`."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * float(found.split()[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def noted(figures: dict[str, float], name: str) -> Iterator[None]:
    """Notes the CPU seconds of a block, and the memory that it needs beyond what there was before it."""
    distributed.barrier()
    forget_peak()
    before, begin = resident("VmRSS"), time.process_time()
    yield
    distributed.barrier()
    figures[f"{name} CPU s"] = time.process_time() - begin
    figures[f"{name} GB"] = (resident("VmHWM") - before) / GB


def save(rank: int, options: argparse.Namespace, processes: int, folder: Path, results: Any) -> None:
    """Saves a checkpoint in one of several processes on this machine, and loads it."""
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(processes)})
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(folder / "store"), processes), rank=rank, world_size=processes
    )
    world = World(rank, processes, torch.device("cpu"), distributed.new_group(backend="gloo"))
    config = config_of(options, shard=True, device="cpu", precision="float32")
    task, _, model = untrained_model(config, Path())
    step = UpdateStep(model.train(), task, config.train, world)
    step.start()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    step.finish(1, 1e-4)
    tensors = {
        key: tensor
        for name, named in step.state.files().items()
        for key, tensor in ((f"{name}/{key}", each) for key, each in named.items())
    }
    figures = {"weights": sum(weight.numel() for weight in model.parameters())}
    figures["held GB"] = sum(local(each).numel() * each.element_size() for each in tensors.values()) / GB
    with noted(figures, "save"):
        saved = checkpoint.save(folder, step.state, Progress(1), world=world)
    figures["written GB"] = sum(file.stat().st_size for file in saved.glob(f"*/shard-{rank + 1:05d}-*")) / GB
    with noted(figures, "load"):
        checkpoint.load(saved, step.state, world)
    with noted(figures, "gathered"), open(folder / "gathered", "wb") if rank == 0 else nullcontext() as out:
        for _, tensor in each_whole(tensors):
            if out is not None:
                out.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if out is not None:
            os.fsync(out.fileno())
    results[rank] = figures
    distributed.destroy_process_group()


def measure_saving(options: argparse.Namespace) -> None:
    for processes in options.processes:
        with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Manager() as manager:
            results = manager.dict()
            torch.multiprocessing.spawn(save, (options, processes, Path(folder), results), nprocs=processes)
            for rank, figures in sorted(results.items()):
                print(
                    f"{rank + 1} of {processes}:",
                    ", ".join(f"{name} {value:,.3g}" for name, value in figures.items()),
                    flush=True,
                )


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def plan(options: argparse.Namespace) -> None:
    """Counts the weights of a model without memory, and what each of several processes holds of them."""
    with torch.device("meta"):
        _, _, model = untrained_model(config_of(options), Path())
    layers = [sum(weight.numel() for weight in layer.parameters()) for layer in own_layers(model)]
    total = model.count_parameters()
    rest = total - sum(layers)
    print(f"{total / 1e6:,.0f}M weights: {len(layers)} layers of up to {max(layers) / 1e6:,.1f}M, all else {rest / 1e6:,.1f}M")
    print("processes  kept GB  gathered GB  together GB  (without activations)")
    for processes in (1, 2, 4, 8, 16, 64, 256, 1024):
        # Weights, gradients, two moments and the average are divided; two layers (one is on its way) and all else are not.
        kept = 20 * total / processes
        extra = 8 * (rest + 2 * max(layers)) + 2 * sum(layers) if processes > 1 else 0
        print(f"{processes:9,}  {kept / GB:7.2f}  {extra / GB:11.2f}  {(kept + extra) / GB:11.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=9, help="of the encoder, and of the decoder")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens per micro-batch")
    parser.add_argument("--processes", type=int, nargs="+", default=[8])
    parser.add_argument("--precision", default="bf16", choices=["bf16", "float32"])
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.plan:
        plan(options)
        return
    if options.save:
        measure_saving(options)
        return
    kinds: list[tuple[str, int, dict[str, Any]]] = [
        ("plain", 1, {}),
        ("not compiled, no graphs", 1, {"compile": False, "rounded": False}),
    ]
    kinds += [("recomputed", 1, {"recompute": True, "compile": False})]
    for count in options.processes:
        kinds += [(f"one of {count}", count, {}), (f"one of {count}, recomputed", count, {"recompute": True})]
    print(f"{'':26} {'weights':>9} {'ms/step':>8} {'tokens/s':>9} {'peak GB':>8}")
    for name, count, settings in kinds:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            found = process.submit(measure, options, count, settings).result()
        speed = options.tokens / found["seconds"]
        print(
            f"{name:26} {found['weights'] / 1e6:8,.0f}M {1e3 * found['seconds']:8.1f} {speed:9,.0f} {found['bytes'] / GB:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
