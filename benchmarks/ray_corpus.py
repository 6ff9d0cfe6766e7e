"""A corpus through a model by two actors of Ray, of which one is killed, and after a kill of all, beside `weft translate`.

    python benchmarks/ray_corpus.py --lines 1000000 --out OUT [--run RUN]

Without --run, a tiny model is trained that reverses words. Among the lines are blank ones, odd characters, several sentences.
Prints lines per second of the whole command, and from the first finished shard to the last, whether the bytes are equal, and
how many shards a rerun has to do. Each line also has the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import weft

ODD = ["", "  ", "b \u2028 c", "a\u00a0b", "zzz ü 😀 a", "g f\tc", "a b c.  D e f! g a"]
MARK = "WEFT_RAY_CORPUS"
"""A variable by which the processes of a command are known."""

SETTINGS = {
    "data.tokenizer": "words",
    "data.vocabulary": 100,
    "train.steps": 300,
    "train.tensorboard": False,
    "train.device": "cpu",
}
SETTINGS |= {"model.dim": 32, "model.heads": 2, "model.feedforward": 64, "model.encoder_layers": 1, "model.decoder_layers": 1}


def write_lines(file: Path, count: int) -> None:
    """Random lines of up to eight letters, of which one in twenty is odd."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefg"))
    with file.open("w", encoding="utf-8", newline="\n") as out:
        for length, odd in zip(random.integers(1, 9, count), random.integers(0, 20 * len(ODD), count), strict=True):
            out.write((ODD[odd] if odd < len(ODD) else " ".join(random.choice(letters, length))) + "\n")


def started(mark: str, name: bytes = b"") -> list[int]:
    """The processes that have inherited the environment of a command, with this in their name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (
                    f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                    and name in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:  # it has ended, or belongs to somebody else
                continue
    return found


def translate(run: Path, source: Path, out: Path, *extra: str, kill: str = "") -> tuple[float, float, int]:
    """The seconds of `weft translate`, those between its first shard and its last, and its number of shards.

    kill: "actor" kills one after two shards, "all" kills every process
    """
    command = [sys.executable, "-m", "weft", "translate", str(run), str(source), "-o", str(out), "--device", "cpu", *extra]
    began, folder, mark = time.monotonic(), out.with_name(out.name + ".shards"), f"{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(command, env={**os.environ, MARK: mark}, stderr=subprocess.DEVNULL)
    seen: dict[str, float] = {}
    old = {file.name for file in folder.glob("*")}
    while process.poll() is None:
        for file in folder.glob("[0-9]*"):
            if file.name not in old and file.suffix != ".part":
                seen.setdefault(file.name, time.monotonic())
        if kill and len(seen) >= 2:
            for each in started(mark) if kill == "all" else started(mark, b"ShardActor")[:1]:
                os.kill(each, signal.SIGKILL)
            kill = ""
        time.sleep(0.02)
    return time.monotonic() - began, max(seen.values(), default=0.0) - min(seen.values(), default=0.0), len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument(
        "--only", nargs="*", metavar="NAME", help="some of: plain, ray, 'one killed', 'all killed', 'begun again'"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = options.run or options.out / "run"
    if not run.exists():
        data = "generated:reverse?count=4000&longest=7"
        weft.train("transformer-tiny", data=data, out=run, set={**SETTINGS, "train.validate_every": 0})
    source = options.out / "lines.txt"
    write_lines(source, options.lines)
    ray = ("--engine", "ray", "--actors", "2")
    kinds = [
        ("plain", (), ""),
        ("ray", ray, ""),
        ("one killed", ray, "actor"),
        ("all killed", ray, "all"),
        ("begun again", ray, ""),
    ]
    whole = b""
    for name, extra, kill in kinds:
        if options.only and name not in options.only:
            continue
        out = options.out / f"{'killed' if name in ('all killed', 'begun again') else name.replace(' ', '-')}.txt"
        seconds, between, shards = translate(run, source, out, *extra, kill=kill)
        whole = whole or out.read_bytes()
        equal = out.exists() and out.read_bytes() == whole
        rate = f"{(shards - 1) * 4096 / between:7,.0f} lines/s between shards" if between else " " * 29
        load = f"load {os.getloadavg()[0]:.0f}"
        whole_rate = f"{seconds:7.1f} s {options.lines / seconds:7,.0f} lines/s"
        print(f"{name:16} {whole_rate} {rate} {shards:4} shards, equal: {equal}, {load}", flush=True)


if __name__ == "__main__":
    main()
