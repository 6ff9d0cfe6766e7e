"""Servers of two checkouts of weft under the same load, which take turns: sentences per second, latencies and CPU time.

    git worktree add old COMMIT
    python benchmarks/serve_before_after.py RUN --old old --new . --data FILE.en,FILE.de [--clients 64] [--seconds 10]
        [--rounds 3] [--beam 5] [--sizes 1,16] [--workers 1] [--device cpu]

Each round starts a server of each checkout, without a cache, and warms it up for half of the time. All clients then send one
request after the other, each with as many sentences as --sizes says. Every round also translates all sentences at once, in a
process without a server. The table has medians over rounds, with the range; CPU time is that of all processes of the
server, per sentence. On a busy machine, compare CPU time and the ratios of a round rather than speeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from serve_gpu import drive
from serve_process import Load, Server

OFFLINE = """
import json, sys, time, weft
run, file, device, beam, fast = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[3] == "cpu"
lines = open(file, encoding="utf-8").read().splitlines()
translator = weft.load(run, device=device, set=["decode.fast=true"] if fast else [])
found = []
for _ in range(2 if fast else 4):
    began, used = time.perf_counter(), time.process_time()
    texts = [each.text for each in translator.translate(lines, beam=beam)]
    found.append((len(lines) / (time.perf_counter() - began), (time.process_time() - used) / len(lines)))
best = max(found)
print(json.dumps([*best, texts]))
"""


@dataclass
class Measured:
    """A round of one checkout: sentences per second, p50 and p99 in ms, and CPU seconds per sentence."""

    rate: float
    p50: float
    p99: float
    cpu: float


def environment(checkout: Path) -> dict[str, str]:
    """That of a process which imports weft from the checkout."""
    kept = os.environ.get("PYTHONPATH", "")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(checkout.resolve()), kept)))}


def offline(checkout: Path, options: argparse.Namespace) -> tuple[Measured, list[str]]:
    """All sentences at once, without a server, and their texts."""
    command = [sys.executable, "-c", OFFLINE, options.run, str(options.source), options.device, str(options.beam)]
    done = subprocess.run(command, env=environment(checkout), cwd="/", check=True, stdout=subprocess.PIPE, text=True)
    rate, cpu, texts = json.loads(done.stdout)
    return Measured(rate, 0, 0, cpu), texts


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of all that it has started."""
    total, ticks = 0.0, os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            name = int(stat.parent.name)
        except OSError:
            continue
        if name == pid or int(fields[1]) == pid:
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def served(checkout: Path, lines: list[str], options: argparse.Namespace, size: int) -> tuple[Measured, list[str]]:
    """The measurements of all clients of one server, and errors."""
    share = -(-options.clients // options.processes)
    groups = [range(k, min(k + share, options.clients)) for k in range(0, options.clients, share)]
    load, flags = Load(), ("--device", options.device, "--workers", str(options.workers))
    before, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", ""), environment(checkout)["PYTHONPATH"]
    server = Server(options.run, *flags)
    os.environ["PYTHONPATH"] = before
    try:
        with ProcessPoolExecutor(options.processes) as pool:
            for seconds in (options.seconds / 2, options.seconds):
                used = cpu_seconds(server.process.pid)
                loads = [pool.submit(drive, server.url, lines, group, size, seconds) for group in groups]
                results = [each.result() for each in loads]
        used = cpu_seconds(server.process.pid) - used
    finally:
        server.end()
    for each in results:
        load.times += each.times
        load.errors += each.errors
    count = size * len(load.times)
    return Measured(count / options.seconds, 1000 * load.at(0.5), 1000 * load.at(0.99), used / count), load.errors


def told(values: list[float], digits: int = 0) -> str:
    """The median, and the range."""
    low, high = (f"{each:,.{digits}f}" for each in (min(values), max(values)))
    return f"{statistics.median(values):,.{digits}f} ({low}–{high})"


def report(name: str, found: dict[str, list[Measured]], alone: dict[str, float]) -> None:
    """Two lines of the table, and the ratios of their medians."""
    for checkout, rounds in found.items():
        rates, latencies, slow = ([getattr(each, part) for each in rounds] for part in ("rate", "p50", "p99"))
        share = f"{100 * statistics.median(rates) / alone[checkout]:.0f} %" if alone else ""
        cpu = told([1000 * each.cpu for each in rounds], 2)
        print(f"| {name} | {checkout} | {told(rates)} | {share} | {told(latencies)} | {told(slow)} | {cpu} |")
    faster = statistics.median(new.rate / old.rate for old, new in zip(found["old"], found["new"], strict=True))
    cheaper = statistics.median(old.cpu / new.cpu for old, new in zip(found["old"], found["new"], strict=True))
    print(f"| {name} | new / old | {faster:.2f} × | | | | {cheaper:.2f} × less |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--data", required=True, help="pairs of text files; the first is read")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--processes", type=int, default=1, help="processes that the clients run in")
    parser.add_argument("--workers", type=int, default=1, help="processes of each server")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--sizes", default="1,16", help="sentences per request")
    parser.add_argument("--most", type=int, default=1000, help="sentences that are translated")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    lines = Path(options.data.partition(",")[0]).read_text("utf-8").splitlines()[: options.most]
    options.run, options.old, options.new = str(Path(options.run).resolve()), options.old.resolve(), options.new.resolve()
    kept = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, kept))
    os.chdir("/")  # so that `python -m weft` finds that of the checkout
    options.source = Path(tempfile.mkdtemp()) / "sources.txt"
    options.source.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    checkouts = {"old": options.old, "new": options.new}
    found: dict[str, dict[str, list[Measured]]] = defaultdict(lambda: {"old": [], "new": []})
    texts: dict[str, list[str]] = {}
    for number in range(options.rounds):
        for name, checkout in list(checkouts.items())[:: 1 if number % 2 == 0 else -1]:
            measured, texts[name] = offline(checkout, options)
            found["offline"][name].append(measured)
            for size in map(int, options.sizes.split(",")):
                measured, errors = served(checkout, lines, options, size)
                found[f"{size} per request"][name].append(measured)
                if errors:
                    print(f"{name}: {len(errors)} errors, the first: {errors[0]}", file=sys.stderr)
            print(f"round {number + 1}, {name}: {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)
    options.source.unlink()
    columns = ("load", "weft", "sentences/s", "share of offline", "p50 ms", "p99 ms", "CPU ms per sentence")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    report("offline", found["offline"], {})
    alone = {name: statistics.median(each.rate for each in rounds) for name, rounds in found.pop("offline").items()}
    for name, rounds in found.items():
        report(name, rounds, alone)
    same = sum(one == other for one, other in zip(texts["old"], texts["new"], strict=True))
    print(f"\n{same} of {len(lines)} texts are the same offline.")


if __name__ == "__main__":
    main()
