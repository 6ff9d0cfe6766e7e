"""How time and memory of every mechanism grow with length, compared with fused full attention in the same run.

    python benchmarks/growth.py --device cuda [--causal] [--kinds full,linear] [--minutes 1.5] [--out growth]  512 to 16,384
    python benchmarks/growth.py --device cpu --lengths 512 1024 2048 4096 8192
    python benchmarks/growth.py --device cuda --decode 4096                                       single steps, first to last

One layer, batch 1, d = 512, 8 heads; forward and backward, in training mode. On a GPU: bf16 autocast; memory is the peak of
allocations beyond weights and input; times are measured twice, with operations launched one by one, which may measure Python,
and replayed as a CUDA graph, which measures the GPU. On a CPU: float32; memory is how far the resident size of a separate
process rises above its peak after a run over 64 tokens (read from /proc, so only on Linux); freed memory is kept (by glibc's
mallopt), since otherwise the system's clearing of pages would be measured. The exponent is that of a power law fitted to
lengths from 2,048 upwards. Mechanisms with a maximum length get the longest; the table shows options that are not the defaults.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from resident_memory import high_water, keep_freed_memory
from timing import synchronize, timed
from torch import Tensor
from trainings import deadline

import weft
from weft.attention.base import Mixer, Site
from weft.attention.mixers import SELF, build_self
from weft.config.registry import fill, load
from weft.errors import WeftError
from weft.layers.decoder_state import grow, leaves
from weft.layers.kernels.cuda_graph_capture import CudaGraphs

DIM, HEADS = 512, 8
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SHORTEST = 2048
"""The shortest length in the fit: below it, launching kernels dominates on a GPU."""
OPTIONS: dict[str, dict[str, Any]] = {"local": {"window": 256}, "compressed": {"stride": 16}}
"""Options that differ from the defaults."""
RECORDED = 2.0
"""The longest run, in seconds, to record. A recurrent layer over 16,384 tokens launches some 200,000 kernels in one."""
DECODED = ("full", "local", "linear", "performer", "rfa", "gated_rfa", "efficient")
Row = dict[str, Any]


def make(kind: str, use: str, longest: int, device: str) -> Mixer:
    options = fill("weft.attention.mixers:SELF", {"kind": kind, **OPTIONS.get(kind, {})})
    if "max_length" in options:
        options["max_length"] = longest
    torch.manual_seed(0)
    return build_self(options, Site(use, DIM, HEADS)).to(device).train()  # type: ignore[arg-type]


def make_run(kind: str, use: str, length: int, longest: int, device: str) -> Callable[[], None]:
    """A function that runs one forward and backward pass."""
    part = make(kind, use, longest, device)
    x = torch.randn(1, length, DIM, device=device, requires_grad=True)
    gradient = torch.randn(1, length, DIM, device=device)

    def run() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            context: Tensor = part(x, part.init_state(rows=1)).context
        context.backward(gradient.to(context.dtype))
        x.grad = None
        part.zero_grad(set_to_none=True)

    return run


def seconds(run: Callable[[], None], device: str, rounds: int) -> float:
    """The best of several rounds, after two rounds of warming up (one on a CPU)."""
    for _ in range(2 if device == "cuda" else 1):
        run()
    return min(timed(run, 1, device) for _ in range(rounds))


def peak_on_gpu(run: Callable[[], None]) -> int:
    """Peak bytes allocated by a run."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def peak_on_cpu(kind: str, use: str, length: int, longest: int) -> int | None:
    """Peak bytes of a run in a separate process, since the peak of a process never falls; None if it failed."""
    command = [sys.executable, __file__, "--alone", kind, use, str(length), str(longest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def print_peak(kind: str, use: str, length: int, longest: int) -> None:
    """The work of that process."""
    make_run(kind, use, 64, longest, "cpu")()
    run = make_run(kind, use, length, longest, "cpu")
    before = high_water()
    run()
    print(high_water() - before)


def measure(kind: str, options: argparse.Namespace) -> Row:
    """Times and peaks by length; `left_out` says which lengths failed or were too slow."""
    use, device, longest = "causal" if options.causal else "encoder", options.device, max(options.lengths)
    row: Row = {"kind": kind, "options": OPTIONS.get(kind, {}), "seconds": {}, "replayed": {}, "bytes": {}, "left_out": {}}
    for length in options.lengths:
        slowest = max(row["seconds"].values(), default=0.0)
        if slowest > options.patience:
            row["left_out"][length] = f"too slow: {slowest:.0f} s at half the length"
            continue
        try:
            run = make_run(kind, use, length, longest, device)
            row["seconds"][length] = seconds(run, device, options.rounds)
            row["bytes"][length] = peak_on_gpu(run) if device == "cuda" else peak_on_cpu(kind, use, length, longest)
            if device == "cuda" and row["seconds"][length] < RECORDED:
                row["replayed"][length] = seconds(CudaGraphs()(run), device, options.rounds)
        except (WeftError, RuntimeError) as error:
            row["left_out"][length] = str(error).splitlines()[0][:160]
    return row | {f"{what}_exponent": exponent(row[what]) for what in ("seconds", "replayed", "bytes")}


def exponent(values: dict[int, float | None]) -> float | None:
    """The slope of a line fitted to the logarithms, from `SHORTEST` upwards."""
    points = [(math.log(length), math.log(value)) for length, value in values.items() if length >= SHORTEST and value]
    if len(points) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


COLUMNS = {
    "seconds": ("ms", 1e3, "time"),
    "replayed": ("ms replayed", 1e3, "time replayed"),
    "bytes": ("MiB", 2**-20, "memory"),
}
"""Measurement → unit, factor to that unit, and name."""


def table(rows: Sequence[Row], lengths: Sequence[int]) -> str:
    """Markdown: measurements by length with their exponents, then ratios to full attention at the longest length."""
    full = next((row for row in rows if row["kind"] == "full"), None)
    shown = [length for length in lengths if length >= SHORTEST] or list(lengths)
    columns = {what: column for what, column in COLUMNS.items() if any(row[what] for row in rows)}
    lines = [["mechanism"]]
    for unit, _, name in columns.values():
        lines[0] += [*(f"{unit} at {length:,}" for length in shown), f"{name} ~ n^"]
    lines[0] += [
        "memory relative to full" if what == "bytes" else "times as fast as full" + name.removeprefix("time")
        for what, (_, _, name) in columns.items()
    ]
    for row in rows:
        cells = [row["kind"] + "".join(f" {option} {value}" for option, value in row["options"].items())]
        for what, (_, scale, _) in columns.items():
            cells += [*(_cell(row[what].get(length), scale) for length in shown), _cell(row[f"{what}_exponent"], 1.0)]
        cells += [_ratio(row, full, what) if what == "bytes" else _ratio(full, row, what) for what in columns]
        lines.append(cells)
    lines.insert(1, ["---"] + ["---:"] * (len(lines[0]) - 1))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: float | None, unit: float) -> str:
    return "–" if value is None else f"{value * unit:,.2f}" if abs(value * unit) < 100 else f"{value * unit:,.0f}"


def _ratio(over: Row | None, under: Row | None, what: str) -> str:
    """The ratio of two mechanisms at the longest length that both have."""
    if over is None or under is None:
        return "–"
    both = [n for n in over[what] if over[what][n] and under[what].get(n)]
    return f"{over[what][both[-1]] / under[what][both[-1]]:.2f}" if both else "–"


@torch.no_grad()
def decode(kind: str, steps: int, device: str, span: int = 512, block: int = 32) -> Row:
    """Microseconds per step and bytes of the state for each span of steps, with a store that grows as in a search.

    A span's time is that of its best block of steps, since other processes may disturb a block.
    """
    part = make(kind, "causal", steps, device).eval()
    tokens, room, marks = torch.randn(steps, 1, 1, DIM, device=device), 64, {}
    taken: list[float] = []
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        state = part.init_state(rows=1, room=room)
        for step in range(-block, steps):  # steps below 0 warm up
            if step == 0:
                state, taken = part.init_state(rows=1, room=room), []
            if step % block == 0:
                synchronize(device)
                began = time.perf_counter()
            if step == room:
                room *= 2
                state = grow(state, room)
            state = part(tokens[step], state).state
            if (step + 1) % block == 0:
                synchronize(device)
                taken.append((time.perf_counter() - began) / block * 1e6)
            if step > 0 and (step + 1) % span == 0:
                size = sum(leaf.numel() * leaf.element_size() for leaf in leaves(state))
                marks[step + 1] = {"microseconds": min(taken), "bytes": size}
                taken = []
    return {"kind": kind, "options": OPTIONS.get(kind, {}), "steps": marks}


def decoding_table(rows: Sequence[Row]) -> str:
    """Markdown: one step of the first, the middle and the last span."""
    lines = ["| mechanism | steps up to | µs per step | relative to the first | state, KiB |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        marks = list(row["steps"].items())
        for step, mark in (marks[0], marks[len(marks) // 2], marks[-1]):
            slower = mark["microseconds"] / marks[0][1]["microseconds"]
            cells = f"{step:,} | {mark['microseconds']:,.0f} | {slower:.2f} | {mark['bytes'] / 1024:,.0f}"
            lines.append(f"| {row['kind']} | {cells} |")
    return "\n".join(lines)


def report(title: str, rows: Sequence[Row], text: str, out: Path | None) -> None:
    print(f"{title}\n\n{text}")
    for row in rows:
        for length, why in row.get("left_out", {}).items():
            print(f"{row['kind']} at {length:,}: {why}")
    write(title, rows, text, out)


def write(title: str, rows: Sequence[Row], text: str, out: Path | None) -> None:
    if out is not None:
        out.with_suffix(".json").write_text(json.dumps({"title": title, "rows": rows}, indent=1))
        out.with_suffix(".md").write_text(f"{title}\n\n{text}\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--causal", action="store_true", help="causal instead of encoder use")
    parser.add_argument("--kinds", help="mechanisms, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (0: torch's default)")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds of a run above which longer ones are skipped")
    parser.add_argument("--minutes", type=float, default=0, help="time limit, after which mechanisms are left out")
    parser.add_argument("--decode", type=int, default=0, metavar="STEPS", help="measure this many decoding steps instead")
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    parser.add_argument("--alone", nargs=4, metavar=("KIND", "USE", "LENGTH", "LONGEST"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    keep_freed_memory()
    if options.alone:
        kind, use, length, longest = options.alone
        return print_peak(kind, use, int(length), int(longest))
    if options.threads:
        torch.set_num_threads(options.threads)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    versions = f"torch {torch.__version__} · weft {weft.__version__}"
    where = f"{time.strftime('%Y-%m-%d')} · {machine} · {versions} · d {DIM}, {HEADS} heads"
    chosen = options.kinds.split(",") if options.kinds else None
    if options.decode:
        rows = [decode(kind, options.decode, options.device) for kind in chosen or DECODED]
        return report(f"{where} · single steps", rows, decoding_table(rows), options.out)
    use = "causal" if options.causal else "encoder"
    title, rows, until = f"{where} · {use} use, forward and backward", [], deadline(options.minutes)
    for kind in chosen or [kind for kind in SELF if use in load(SELF, kind).uses]:
        if time.monotonic() > until:
            print(f"{kind}: left out, no time left", file=sys.stderr, flush=True)
            continue
        rows.append(measure(kind, options))
        print(f"{kind}: n^{_cell(rows[-1]['seconds_exponent'], 1.0)}", file=sys.stderr, flush=True)
        write(title, rows, table(rows, options.lengths), options.out)  # in case it is stopped
    report(title, rows, table(rows, options.lengths), options.out)


if __name__ == "__main__":
    main()
