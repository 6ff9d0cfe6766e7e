"""Time of a command of two checkouts of weft from the shell to its end, which take turns: processor time and time on the clock.

    git worktree add old COMMIT
    python benchmarks/cold_start.py --old old --new . [--times 12] -- translate RUN "A brown dog runs."
    python benchmarks/cold_start.py --old old --new . -- train transformer-tiny --data a.en,a.de --set train.steps=1

`{out}` in the command becomes a new folder each time. Floors: Python alone, and Python with `import torch`, in the same
turns. Each begins once before it is measured, so that bytecode, compiled kernels and the files of torch are there. One
thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from trainings import about, markdown


def timed(command: list[str], checkout: Path, folder: Path) -> tuple[float, float, bytes]:
    """Processor time and time on the clock in seconds, and what was written. Raises CalledProcessError if the command fails."""
    skipped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in skipped}
    environment |= {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    with tempfile.TemporaryDirectory(dir=folder) as out, open(folder / "said", "w+b") as said:
        before, began = os.times(), time.perf_counter()
        given = [part.replace("{out}", f"{out}/run") for part in command]
        subprocess.run([sys.executable, *given], env=environment, stdout=said, stderr=subprocess.DEVNULL, check=True)
        seconds, after = time.perf_counter() - began, os.times()
        said.seek(0)
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return used, seconds, said.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("command", nargs="+", help="the arguments of weft")
    options = parser.parse_args()
    weft = ["-m", "weft", *options.command]
    cases = {
        "old": (weft, options.old),
        "new": (weft, options.new),
        "floor: Python": (["-c", ""], options.new),
        "floor: import torch": (["-c", "import torch, os; os._exit(0)"], options.new),
    }
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.times + 1):
            for name, case in cases.items():
                found[name].append(timed(*case, Path(folder)))
    rows = []
    for name, all_runs in found.items():
        runs = all_runs[1:]  # the first one only warms up
        used, seconds = ([run[place] for run in runs] for place in (0, 1))
        ratio = statistics.median(one[0] / other[0] for one, other in zip(runs, found["old"][1:], strict=True))
        spread = f"{min(used):.2f} to {max(used):.2f}"
        rows.append((name, f"{statistics.median(used):.2f}", spread, f"{ratio:.2f}", f"{statistics.median(seconds):.2f}"))
    same = {run[2] for run in found["old"]} == {run[2] for run in found["new"]}
    print(f"{about()}\n\n{markdown(('', 'processor, s', 'spread', 'of old', 'clock, s'), rows)}")
    print(f"standard output {'is the same everywhere' if same else 'differs'}")


if __name__ == "__main__":
    main()
