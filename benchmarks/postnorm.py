"""Post-norm Transformers with the residual stream in bf16 (the fused norm kernel) and in float32, over several seeds.

    python benchmarks/postnorm.py DIR --out OUT [--seeds 4] [--at-once 8] [--minutes 5] [--steps-scale 0.01]

DIR holds train and val of Multi30k, each as .en and .de. The recipe is `transformer-small` with `model.norm: post`, in bf16,
for 2,000 steps. `fused` trains as `weft train` does on a GPU: one kernel computes norm(x + dropout(y)) and returns bf16.
`plain` switches that kernel off, so the same computation returns float32; all other kernels stay. Seeds, batches and initial
weights are the same. On a CPU, where the kernel does not run, the two agree exactly.
The table gives BLEU (beam 5) and the loss on the validation data: the mean and the standard deviation over seeds, and the
difference with its 95 % interval (Student's t for pairs of equal seeds).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainings import about, add_options, common_settings, deadline, markdown, prepare_data, select

from weft.bench.compare.results import interval
from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training, train
from weft.runs.run_folder import records

STEPS = 2000
SYSTEMS = {"fused": "weft", "plain": "postnorm"}
"""System → the Python module whose command line trains it. This script is the one of `plain`."""
SCORES = {"bleu": "BLEU", "loss": "loss"}


def plan(folder: Path, out: Path, seed: int, options: argparse.Namespace) -> Training:
    train_pairs, valid_pairs = (f"{folder / split}.en,{folder / split}.de" for split in ("train", "val"))
    changes = (
        *common_settings(out),
        "model.norm=post",
        "train.packed=auto",
        "train.precision=bf16",
        "train.validate_every=0",
        "train.validate_sentences=0",
        f"train.steps={max(1, round(STEPS * options.steps_scale))}",
        *options.set,
        f"train.seed={seed}",
    )
    return Training("transformer-small", (train_pairs,), (valid_pairs,), changes)


def scores(folder: Path) -> dict[str, float] | None:
    """The validation scores at the end of a run; None if it has not ended."""
    lines = records(folder)
    return {key: lines[-1][key] for key in SCORES} if lines and lines[-1]["event"] == "summary" else None


def table(found: dict[str, dict[int, dict[str, float]]]) -> str:
    """Means and deviations of each system, and the differences between them over the seeds that both have."""
    rows = []
    for system, by_seed in found.items():
        cells = [_spread([each[key] for each in by_seed.values()], key) for key in SCORES]
        rows.append((system, ", ".join(map(str, by_seed)), *cells))
    first, *others = found
    for other in others:
        both = [seed for seed in found[first] if seed in found[other]]
        cells = [_difference([found[first][seed][key] - found[other][seed][key] for seed in both], key) for key in SCORES]
        rows.append((f"{first} − {other}", ", ".join(map(str, both)), *cells))
    return markdown(("residual stream", "seeds", *(f"{title}, validation" for title in SCORES.values())), rows)


def _spread(values: Sequence[float], key: str) -> str:
    form = _form(key)
    deviation = f" ± {form(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{form(statistics.fmean(values))}{deviation} ({', '.join(map(form, values))})" if values else "–"


def _difference(values: Sequence[float], key: str) -> str:
    form = _form(key)
    bounds = interval(values)
    shown = f" [{form(bounds[0])}, {form(bounds[1])}]" if bounds else ""
    return f"{form(statistics.fmean(values))}{shown}" if values else "–"


def _form(key: str) -> Callable[[float], str]:
    return "{:.4f}".format if key == "loss" else "{:.2f}".format


def run(options: argparse.Namespace) -> dict[str, dict[int, dict[str, float]]]:
    """Trains all systems and seeds, first one seed of each, and returns the scores of the runs that ended."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    processes = Processes(out / "logs", at_once=options.at_once, until=deadline(options.minutes))
    names, seeds = select(SYSTEMS, options.only), range(1, options.seeds + 1)
    prepare_data(plan(options.folder, out, 1, options).config())

    def one(job: tuple[int, str]) -> None:
        seed, system = job
        try:
            plan_ = plan(options.folder, out, seed, options)
            train(plan_, out / f"{system}.{seed}", processes, f"{system}.{seed}", module=SYSTEMS[system])
            print(f"{system}, seed {seed}: {scores(out / f'{system}.{seed}')}", flush=True)
        except (Failure, Stopped) as error:
            print(f"{system}, seed {seed}: {error}", flush=True)

    with ThreadPoolExecutor(options.at_once) as workers:
        list(workers.map(one, [(seed, system) for seed in seeds for system in names]))
    found = {system: {seed: scores(out / f"{system}.{seed}") for seed in seeds} for system in names}
    return {system: {seed: each for seed, each in by_seed.items() if each} for system, by_seed in found.items()}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("folder", type=Path, help="folder of Multi30k")
    result.add_argument("--seeds", type=int, default=4, help="number of seeds (default 4)")
    add_options(result, at_once=8)
    return result


def train_plain() -> None:
    """The command line of weft, with the norm kernel switched off."""
    from weft.cli import main as weft_main
    from weft.layers import linear_norm_dropout as norm

    norm.triton_available = lambda tensor: False
    weft_main()


def main() -> None:
    if sys.argv[1:2] == ["train"]:  # started by `run`, as the module of a system
        return train_plain()
    options = parser().parse_args()
    found = run(options)
    text = f"{about()}\n\n{table(found)}"
    (options.out / "postnorm.md").write_text(text, "utf-8")
    (options.out / "postnorm.json").write_text(json.dumps({"about": about(), "scores": found}, indent=1) + "\n", "utf-8")
    print(f"\n{text}\nwritten to {options.out / 'postnorm.md'} and .json")
    sys.exit(any(len(by_seed) < options.seeds for by_seed in found.values()))


if __name__ == "__main__":
    main()
