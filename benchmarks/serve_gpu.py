"""Measures a server on a GPU next to decoding without a server: Multi30k, `transformer-small`, beam 5.

    python benchmarks/serve_gpu.py DATA [--out OUT] [--run RUN] [--clients 64] [--seconds 10] [--steps 1000] [--device cuda]

DATA holds train.en, train.de, test_2016_flickr.en and test_2016_flickr.de. Without --run, a model is trained first; OUT/run is
used again if it is there. The clients run in four processes, so that they are not what limits the server. Each keeps one
connection and sends one request after the other, after a warm-up. The goal is 80 % of the speed without a server.

The first rows are without a server: all sentences at once, and as many at a time as there are clients, which is the most that
clients with one sentence each could get if nothing else took time. The last columns say where the time of a server goes: the
mean size of the batches that the model ran, the share of the time in which it ran, and the mean time that a sentence waited
before its batch was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
import urllib.request
from collections import Counter
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
    ("1 sentence per request, models in the same process", ("--no-model-process",), 1),
)
BEAM = 5


def trained(data: Path, out: Path, steps: int, device: str) -> Path:
    """The run in `out`, trained if it is not there yet."""
    run = out / "run"
    if not (run / "model.safetensors").exists():
        pairs = ["--data", f"{data}/train.en,{data}/train.de", "--out", str(run)]
        sets = [f"train.steps={steps}", f"train.device={device}", "train.schedule.warmup=300", "train.ema=0"]
        command = [
            sys.executable,
            "-m",
            "weft",
            "train",
            "transformer-small",
            *pairs,
            "--set",
            *sets,
            "train.tensorboard=false",
        ]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return run


def offline(translator: weft.Translator, lines: list[str], size: int) -> float:
    """Sentences per second without a server, `size` at a time: the better of two passes after two for warming up."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        for first in range(0, len(lines), size):
            translator.translate(lines[first : first + size], beam=BEAM)
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


def counted(url: str) -> Counter[str]:
    """The server's metrics without their labels."""
    found: Counter[str] = Counter()
    for line in urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0].removeprefix("weft_")] += float(value)  # type: ignore[assignment]
    return found


def served(run: Path, lines: list[str], options: argparse.Namespace, flags: tuple[str, ...], size: int) -> tuple[Load, str]:
    """The measurements of all clients, and the parts of the server's time."""
    share = -(-options.clients // PROCESSES)
    groups = [range(k, min(k + share, options.clients)) for k in range(0, options.clients, share)]
    found = Load()
    with serving(str(run), "--device", options.device, *flags) as server, ProcessPoolExecutor(PROCESSES) as pool:
        for seconds in (options.seconds / 2, options.seconds):  # the first half warms up
            time.sleep(1.1)  # processes of a server share their metrics every second
            before = counted(server.url)
            loads = [pool.submit(drive, server.url, lines, group, size, seconds) for group in groups]
            results = [each.result() for each in loads]
        time.sleep(1.1)
        spent = counted(server.url) - before
        print(*server.events, sep="\n", file=sys.stderr, flush=True)
    for each in results:
        found.times += each.times
        found.errors += each.errors
    rows, batches = spent["batch_sentences_sum"], max(1, spent["batches_total"])
    busy, waited = (
        spent["busy_seconds_total"] / options.seconds,
        spent["queue_seconds_sum"] / max(1, spent["queue_seconds_count"]),
    )
    return found, f"{rows / batches:.0f} | {100 * busy:.0f} % | {1000 * waited:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("serve-gpu"))
    parser.add_argument("--run", type=Path, default=None)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    lines = (options.data / "test_2016_flickr.en").read_text("utf-8").strip("\n").split("\n")
    run = options.run or trained(options.data, options.out, options.steps, options.device)
    translator = weft.load(run, device=options.device)
    alone, few = (offline(translator, lines, size) for size in (len(lines), options.clients))
    del translator
    columns = ("server", "sentences/s", "share (goal 80 %)", f"of {options.clients} at a time", "p50 ms", "p99 ms", "errors")
    columns += ("batch", "model busy", "wait ms")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    print(f"| none: `translate` of {len(lines)} sentences | {alone:.0f} |{' |' * 8}")
    print(f"| none: `translate` of {options.clients} at a time | {few:.0f} | {100 * few / alone:.0f} % |{' |' * 7}", flush=True)
    for name, flags, size in SERVERS:
        load, spent = served(run, lines, options, flags, size)
        rate = size * len(load.times) / options.seconds
        times = " | ".join(f"{1000 * load.at(share):.0f}" for share in (0.5, 0.99))
        shares = f"{100 * rate / alone:.0f} % | {100 * rate / few:.0f} %"
        print(f"| {name} | {rate:.0f} | {shares} | {times} | {len(load.errors)} | {spent} |", flush=True)
        if load.errors:
            print(f"first error: {load.errors[0]}", file=sys.stderr)


if __name__ == "__main__":
    main()
