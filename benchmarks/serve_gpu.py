"""Measures a server on a GPU next to decoding without a server: Multi30k, `transformer-small`, beam 5.

    python benchmarks/serve_gpu.py DATA [--out OUT] [--run RUN] [--clients 64] [--seconds 20] [--steps 1000] [--device cuda]

DATA holds train.en, train.de, test_2016_flickr.en and test_2016_flickr.de. Without --run, a model is trained first; OUT/run is
used again if it is there. The clients run in four processes, so that they are not what limits the server. Each keeps one
connection and sends one request after the other, after a warm-up. The goal is 80 % of the speed without a server.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from serve_process import Connection, Load, serving

import weft

PROCESSES = 4
GOAL = 0.8
SERVERS = (
    ("1 sentence per request", (), 1),
    ("16 sentences per request", (), 16),
    ("1 sentence per request, 4 processes", ("--workers", "4"), 1),
    ("16 sentences per request, 4 processes", ("--workers", "4"), 16),
)
BEAM = 5


def trained(data: Path, out: Path, steps: int, device: str) -> Path:
    """The run in `out`, trained if it is not there yet."""
    run = out / "run"
    if not (run / "model.safetensors").exists():
        pairs = ["--data", f"{data}/train.en,{data}/train.de", "--out", str(run), "--device", device]
        sets = ["--set", f"train.steps={steps}", "train.schedule.warmup=300", "train.tensorboard=false", "train.ema=0"]
        subprocess.run([sys.executable, "-m", "weft", "train", "transformer-small", *pairs, *sets], check=True)
    return run


def offline(run: Path, lines: list[str], device: str) -> float:
    """Sentences per second without a server, the better of two passes after two for warming up."""
    translator = weft.load(run, device=device)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        translator.translate(lines, beam=BEAM)
        times.append(time.perf_counter() - began)
    return len(lines) / min(times[2:])


async def client(url: str, lines: list[str], number: int, size: int, end: float, load: Load) -> None:
    """Sends requests of `size` sentences until the time is up."""
    connection, at = await Connection.open(url), number * 97
    while (began := time.monotonic()) < end:
        texts = [lines[(at + k) % len(lines)] for k in range(size)]
        status, response = await connection.translate({"text": texts, "beam": BEAM})
        load.times.append(time.monotonic() - began)
        if status != 200:
            load.errors.append(f"{status}: {response[:200]!r}")
        at += size
    connection.writer.close()


def drive(url: str, lines: list[str], numbers: range, size: int, seconds: float) -> Load:
    """Runs the clients with these numbers in one process."""
    load, end = Load(), time.monotonic() + seconds

    async def all_clients() -> None:
        await asyncio.gather(*(client(url, lines, number, size, end, load) for number in numbers))

    asyncio.run(all_clients())
    return load


def served(run: Path, lines: list[str], options: argparse.Namespace, flags: tuple[str, ...], size: int) -> Load:
    """What all clients measured."""
    share = -(-options.clients // PROCESSES)
    groups = [range(k, min(k + share, options.clients)) for k in range(0, options.clients, share)]
    found = Load()
    with serving(str(run), "--device", options.device, *flags) as server, ProcessPoolExecutor(PROCESSES) as pool:
        for seconds in (options.seconds / 2, options.seconds):  # the first half warms up
            loads = [pool.submit(drive, server.url, lines, group, size, seconds) for group in groups]
            results = [each.result() for each in loads]
    for each in results:
        found.times += each.times
        found.errors += each.errors
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("serve-gpu"))
    parser.add_argument("--run", type=Path, default=None)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    lines = (options.data / "test_2016_flickr.en").read_text("utf-8").strip("\n").split("\n")
    run = options.run or trained(options.data, options.out, options.steps, options.device)
    alone = offline(run, lines, options.device)
    print("| server | sentences/s | share (goal 80 %) | p50 ms | p99 ms | errors |\n|---|---|---|---|---|---|")
    print(f"| none: `translate` of {len(lines)} sentences | {alone:.0f} | | | | |", flush=True)
    for name, flags, size in SERVERS:
        load = served(run, lines, options, flags, size)
        rate = size * len(load.times) / options.seconds
        times = " | ".join(f"{1000 * load.at(share):.0f}" for share in (0.5, 0.99))
        print(f"| {name} | {rate:.0f} | {100 * rate / alone:.0f} % | {times} | {len(load.errors)} |", flush=True)


if __name__ == "__main__":
    main()
