"""Speed of two checkouts of weft, which take turns: ratios of medians, with the spread over rounds.

    git worktree add old COMMIT
    python benchmarks/before_after.py --old old --new . [--rounds 3] [--models transformer-tiny,transformer-small]
    python benchmarks/before_after.py --old old --new . --gpu [--seconds 330]

Each checkout has a process of its own and is used through `weft.train`, `weft.load` and `translate` only. Both decode the same
weights: 32 forced steps from 27 words, text to text; texts that differ are counted. Speeds are steps, or in training on a GPU
target tokens, per second; a ratio above 1 says that the new checkout is faster.

On a CPU: one thread, CPU time; recipes in training, in float32 and in int8, by operations of torch and in C++. With --gpu:
Transformer-base in bf16, as in gpu.py, with and without train.compile and decode.compile. With --seconds, no case begins that
would not end in time, and one that takes 20 seconds more is interrupted.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from before_after_worker import Case
from random_text import SHAPE, STEPS, VOCABULARY, write_text

TINY = {"dim": 32, "feedforward": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def start(checkout: Path, log: Path, gpu: bool) -> subprocess.Popen[str]:
    """Starts a process that imports weft from the checkout."""
    places = [str(checkout.resolve()), str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places)), "XDG_CACHE_HOME": f"{log}.cache"}
    environment |= {} if gpu else {"OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log.open("w"), "cwd": log.parent}
    command = [sys.executable, "-c", "from before_after_worker import work; work()"]
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def ask(process: subprocess.Popen[str], case: Case) -> tuple[float, list[str]]:
    """Speed and texts. Raises ValueError or BrokenPipeError if the process has ended."""
    print(json.dumps(case), file=process.stdin, flush=True)
    return tuple(json.loads(process.stdout.readline()))  # type: ignore[union-attr]


def make_cases(gpu: bool, tiny: bool, models: list[str], folder: Path) -> dict[str, Case]:
    """The cases by name; first the trainings whose weights are decoded."""
    words, big = (500, 2_000) if tiny else (VOCABULARY if gpu else 5_000, 100_000)
    data = write_text(folder, 40 * big // 25 if gpu else 2_000, words)
    settings = ["data.tokenizer.kind=words", f"data.vocabulary={words}", "train.log_every=10", "train.validate_every=0"]
    shape = {"kind": "transformer", **(TINY if tiny else SHAPE), "norm": "post", "dropout": 0.1}
    (folder / "base.yaml").write_text(json.dumps({"model": shape, "train": {"precision": "bf16"}}))
    trainings = [(False, (1_024, 4 if tiny else 25))]
    searches = list(product((False, True), (1, 32), (1, 4), ("float32", "int8")))
    if gpu:  # decode.compile takes 10 to 20 seconds for each size
        trainings = list(product((False, True), [(big // 4, 20 if tiny else 90), (big, 20 if tiny else 50)]))
        searches = [*product((False,), (1, 32, 512), (1, 4), ("bf16",)), *product((True,), (32,), (1, 4), ("bf16",))]
    forced = {"max_length": STEPS, "min_length": STEPS - 1, "sentences": "off", "batch_tokens": 1 << 16}
    cases = {}
    for model in [str(folder / "base.yaml")] if gpu else models:
        name, run = Path(model).stem, str(folder / f"{Path(model).stem}.run")
        case: Case = {"gpu": gpu, "recipe": model, "data": data, "run": run, "words": words - 4}
        cases[name] = case | {"out": run, "set": [*settings, "train.steps=10", "train.compile=false"]}
        for on, rows, beam, precision in searches:
            options = {**forced, "beam": beam, "precision": precision, "compile": on}
            cases[f"{name}: {rows} × beam {beam}, {precision}{', compiled' * on}"] = case | {"rows": rows, "options": options}
        for on, (tokens, steps) in trainings:
            sets = [*settings, f"train.batch_tokens={tokens}", f"train.steps={steps}", f"train.compile={str(on).lower()}"]
            cases[f"{name}: training, {tokens:,} tokens per batch{', compiled' * on}"] = case | {"set": sets}
    return cases


def measure(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, float, float, int]]:
    """Yields a case, the speed of the old checkout and of the new one, and how many of their texts differ."""
    began, took = time.monotonic(), defaultdict[str, float](float)
    workers = [start(path, folder / name, options.gpu) for path, name in ((options.old, "old"), (options.new, "new"))]
    cases = make_cases(options.gpu, options.tiny, options.models.split(","), folder)
    try:
        for turn, (name, case) in product(range(options.rounds), cases.items()):
            if "out" in case:
                ask(workers[0], case) if turn == 0 else None
            elif (now := time.monotonic()) + took[name] <= began + options.seconds:
                order = -1 if turn % 2 else 1
                (old, before), (new, after) = [ask(worker, case) for worker in workers[::order]][::order]
                yield name, old, new, sum(a != b for a, b in zip(before, after, strict=True))
                took[name] = time.monotonic() - now
    except (BrokenPipeError, ValueError, KeyboardInterrupt):
        print(*(f"{name}:\n{(folder / name).read_text()[-1500:]}" for name in ("old", "new")), sep="\n")
    for worker in workers:
        worker.kill()
        worker.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout")
    parser.add_argument("--new", type=Path, help="a checkout")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--models", default="transformer-tiny,transformer-small", help="recipes to measure on a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e6, help="time for everything")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(int(options.seconds) + 20)
    found = defaultdict[str, list[tuple[float, float, int]]](list)
    with tempfile.TemporaryDirectory() as place:
        for name, old, new, differing in measure(options, Path(place)):
            found[name].append((old, new, differing))
            print(f"{name}: {old:,.1f} → {new:,.1f}", flush=True)
    print(f"\n{time.strftime('%Y-%m-%d')} · {options.old} → {options.new} · medians, their ratio (ratio of each round)")
    for name, rounds in found.items():
        a, b = (statistics.median(each[side] for each in rounds) for side in (0, 1))
        ratios, texts = " ".join(f"{new / old:.3f}" for old, new, _ in rounds), sum(each[2] for each in rounds)
        print(f"{name}: {a:,.1f} → {b:,.1f}/s, {b / a:.3f} ({ratios}), {texts} texts differ")


if __name__ == "__main__":
    main()
