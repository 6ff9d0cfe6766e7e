"""A corpus through a model by two actors of Ray, of which one is killed, and after a kill of all, beside `weft translate`.

    python benchmarks/ray_corpus.py --lines 1000000 --out OUT [--run RUN]

Without --run, a tiny model is trained that reverses words. Among the lines are blank ones, odd characters, several sentences.
Prints seconds and CPU seconds of the whole command, whether the bytes are equal, and how many shards a rerun has to do; then
what a further line costs, from the same command on two shards of lines. Each line also has the load of the machine. CPU seconds
are sampled, so what a process uses in its last fifth of a second is missing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import weft
from weft.runs.sharded_prediction import SHARD

ODD = ["", "  ", "b \u2028 c", "a\u00a0b", "zzz ü 😀 a", "g f\tc", "a b c.  D e f! g a"]
MARK = "WEFT_RAY_CORPUS"
"""A variable by which the processes of a command are known."""

TICKS = os.sysconf("SC_CLK_TCK")

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


def started(mark: str, name: bytes = b"") -> dict[int, str]:
    """The processes that have inherited the environment of a command, with this in their command line, and their names."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes()
                    if name in line:
                        found[int(entry.name)] = _role(line)
            except OSError:  # it has ended, or belongs to somebody else
                continue
    return found


def _role(line: bytes) -> str:
    """The role of a process, by its command line."""
    if line.startswith(b"ray::"):
        return ACTORS if b"ShardActor" in line else "Ray's actors and idle workers"
    return "weft translate" if b"translate" in line.split(b"\0") else "Ray's services"


@dataclass
class Outcome:
    """The cost of one command. cpu: CPU seconds of its processes by role, as sampled · shards: those that it has finished."""

    seconds: float
    shards: int
    cpu: dict[str, float]

    def describe(self) -> str:
        each = ", ".join(f"{role} {seconds:.1f}" for role, seconds in sorted(self.cpu.items()))
        return f"{self.seconds:7.1f} s, {sum(self.cpu.values()):6.1f} CPU s ({each}), {self.shards} shards"


def translate(run: Path, source: Path, out: Path, *extra: str, kill: str = "") -> Outcome:
    """Runs `weft translate`.

    kill: "actor" kills one after two shards, "all" kills every process
    """
    command = [sys.executable, "-m", "weft", "translate", str(run), str(source), "-o", str(out), "--device", "cpu", *extra]
    began, folder, mark = time.monotonic(), out.with_name(out.name + ".shards"), f"{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(command, env={**os.environ, MARK: mark}, stderr=subprocess.DEVNULL)
    old, new = {file.name for file in folder.glob("*")}, set[str]()
    roles, used = dict[int, str](), dict[int, float]()
    while process.poll() is None:
        new |= {file.name for file in folder.glob("[0-9]*") if file.suffix != ".part"} - old
        roles |= started(mark)  # Ray renames a process that becomes an actor
        for each in roles:
            with suppress(OSError):
                fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
                used[each] = (int(fields[11]) + int(fields[12])) / TICKS
        if kill and len(new) >= 2:
            for each in started(mark) if kill == "all" else [*started(mark, b"ShardActor")][:1]:
                os.kill(each, signal.SIGKILL)
            kill = ""
        time.sleep(0.2)
    cpu: dict[str, float] = {}
    for each, seconds in used.items():
        cpu[roles[each]] = cpu.get(roles[each], 0.0) + seconds
    return Outcome(time.monotonic() - began, len(new), cpu)


PLAIN, RAY, ACTORS, FEW = "plain", "ray", "actors", 2 * SHARD
KINDS = {PLAIN: "", RAY: "", "one killed": "actor", "all killed": "all", "begun again": ""}


def compare(plain: tuple[Outcome, Outcome], ray: tuple[Outcome, Outcome], lines: int) -> None:
    """The cost of a further line with Ray and without, from the same command on few lines and on many.

    Ray's own processes use CPU time by the second, whatever the actors do. So a machine that others use as well, where all
    takes longer, makes them seem more expensive than they are; the last line says what they cost on two cores of one's own.
    """
    further = lines - FEW
    cost = sum(plain[1].cpu.values()) - sum(plain[0].cpu.values())
    actors = ray[1].cpu[ACTORS] - ray[0].cpu[ACTORS]
    others = sum(ray[1].cpu.values()) - sum(ray[0].cpu.values()) - actors
    seconds = ray[1].seconds - ray[0].seconds
    print(f"a further 1,000 lines: {1e3 * cost / further:.3f} CPU s without Ray, {1e3 * actors / further:.3f} in its actors")
    print(f"all other processes with Ray: {100 * others / seconds:.1f} % of a core")
    alone = actors / (2 - others / seconds)
    print(f"on two cores of their own: {100 * (cost / 2) / alone:.0f} % of the speed without Ray, after the start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=KINDS, help=f"some of: {', '.join(map(repr, KINDS))}")
    parser.add_argument("--options", nargs="*", default=[], help="further options of weft translate, without the dashes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = options.run or options.out / "run"
    if not run.exists():
        data = "generated:reverse?count=4000&longest=7"
        weft.train("transformer-tiny", data=data, out=run, set={**SETTINGS, "train.validate_every": 0})
    source, few = options.out / "lines.txt", options.out / "few.txt"
    write_lines(source, options.lines)
    write_lines(few, FEW)
    whole, found = b"", dict[str, tuple[Outcome, Outcome]]()
    for name, kill in KINDS.items():
        if options.only and name not in options.only:
            continue
        out = options.out / f"{'killed' if name in ('all killed', 'begun again') else name.replace(' ', '-')}.txt"
        extra = [f"--{option}" for option in options.options] + ([] if name == PLAIN else ["--engine", "ray", "--actors", "2"])
        if name in (PLAIN, RAY):
            start = translate(run, few, options.out / "few-out.txt", *extra)
            print(f"{name:12} {FEW:9,} lines {start.describe()}, load {os.getloadavg()[0]:.0f}", flush=True)
        took = translate(run, source, out, *extra, kill=kill)
        whole = whole or out.read_bytes()
        equal = out.exists() and out.read_bytes() == whole
        print(
            f"{name:12} {options.lines:9,} lines {took.describe()}, load {os.getloadavg()[0]:.0f}, equal: {equal}", flush=True
        )
        if name in (PLAIN, RAY):
            found[name] = start, took
    if len(found) == 2:
        compare(found[PLAIN], found[RAY], options.lines)


if __name__ == "__main__":
    main()
