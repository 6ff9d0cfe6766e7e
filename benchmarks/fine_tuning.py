"""Fine-tuning with chosen settings, near the old data and far from it.

    python benchmarks/fine_tuning.py DATA --out OUT [--seeds 1,2] [--at-once 4] [--recipe transformer-small] [--steps 1500]

DATA holds multi30k and l10n. A model of English and German captions is tuned on other captions (near) and on strings of
software (far). Compared are `weft train --from RUN`, which chooses rate and length by the amount of data and its distance; the
same by the amount alone; and the schedule of the first training for as many steps as were chosen. Floors: the model before
tuning, and copies of the input. Scores are BLEU on multi30k/test_2016_flickr and on l10n/en-de/test.
"""

import argparse
import json
import lzma
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weft.data.formats import open_pairs
from weft.evaluation.metrics import make_metrics, score
from weft.runs.open_run import run_config

AMOUNT_ALONE = "from weft.training.auto import fine_tuning\nfine_tuning.excess_loss = lambda *given: None\n"
COMMAND = "from weft.cli import main\nmain()\n"


def weft(*words: str, before: str = "") -> str:
    """Runs a command in a process of its own, after some lines of Python."""
    done = subprocess.run([sys.executable, "-c", before + COMMAND, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"weft {' '.join(words)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def write_data(folder: Path, out: Path, base: int, new: int, tests: int) -> dict[str, str]:
    """The files: old captions, and of both domains new pairs, validation pairs and a test."""
    lines = [(folder / "multi30k" / f"train.{side}").read_text("utf-8").splitlines() for side in ("en", "de")]
    captions = ["\t".join(pair) for pair in zip(*lines, strict=True)]
    random.Random(1).shuffle(captions)
    with lzma.open(folder / "l10n" / "en-de" / "train.tsv.xz", "rt", encoding="utf-8") as opened:
        strings = random.Random(1).sample([line.rstrip("\n") for line in opened], new + 500)
    with lzma.open(folder / "l10n" / "en-de" / "test.tsv.xz", "rt", encoding="utf-8") as opened:
        test = [line.rstrip("\n") for line in opened][:tests]
    flickr = [(folder / "multi30k" / f"test_2016_flickr.{side}").read_text("utf-8").splitlines() for side in ("en", "de")]
    parts = {
        "old": captions[:base],
        "old-valid": captions[base : base + 500],
        "near": captions[base + 500 : base + 500 + new],
        "near-valid": captions[base + 500 + new : base + 1000 + new],
        "far": strings[:new],
        "far-valid": strings[new:],
        "far-test": test,
        "near-test": ["\t".join(pair) for pair in zip(*flickr, strict=True)][:tests],
    }
    for name, pairs in parts.items():
        (out / f"{name}.tsv").write_text("".join(f"{pair}\n" for pair in pairs), "utf-8")
    return {name: str(out / f"{name}.tsv") for name in parts}


def bleu(run: Path, test: str) -> float:
    scores = json.loads(weft("evaluate", str(run), "--data", test, "--beam", "5", "--json"))
    return float(scores["metrics"]["BLEU"]["value"])


def copies(test: str) -> float:
    sources, targets = zip(*open_pairs(test), strict=True)
    return score(sources, targets, make_metrics(["bleu"]))["BLEU"].value


def tune(out: Path, files: dict[str, str], seed: int, domain: str, system: str) -> tuple[str, float, float]:
    """Tunes a run in one way. Returns what was chosen, and BLEU on the new and on the old domain."""
    start, run = out / f"base-{seed}", out / f"{domain}-{system}-{seed}"
    given = ["--data", files[domain], "--valid", files[f"{domain}-valid"], "--out", str(run)]
    sets = [f"train.seed={seed}"]
    if system == "first schedule":
        schedule = run_config(start).train.schedule
        chosen = run_config(out / f"{domain}-chosen-{seed}").train
        warmup = max(1, chosen.steps // 10)
        sets += [f"train.schedule.rate={schedule['rate']}", f"train.schedule.warmup={warmup}", f"train.steps={chosen.steps}"]
    if not (run / "model.safetensors").exists():
        before = AMOUNT_ALONE if system == "amount alone" else ""
        weft("train", "--from", str(start), *given, "--set", *sets, before=before)
    train = run_config(run).train
    said = f"{train.steps} steps, peak {train.schedule['rate']:.2g}"
    return said, bleu(run, files[f"{domain}-test"]), bleu(run, files["near-test"])


def train_base(out: Path, files: dict[str, str], seed: int, recipe: str, steps: int) -> None:
    run = out / f"base-{seed}"
    sets = [f"train.seed={seed}", f"train.steps={steps}", f"train.schedule.warmup={steps // 5}", "data.vocabulary=6000"]
    if not (run / "model.safetensors").exists():
        given = ["--data", files["old"], "--valid", files["old-valid"], "--out", str(run)]
        weft("train", recipe, *given, "--set", *sets)


def show(name: str, values: Sequence[tuple[str, float, float]]) -> None:
    new, old = ([each[place] for each in values] for place in (1, 2))
    each = " ".join(f"{one:.1f}" for one in new)
    print(f"| {name} | {statistics.mean(new):.1f} ({each}) | {statistics.mean(old):.1f} | {values[0][0]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--recipe", default="transformer-small")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--base", type=int, default=20_000, help="pairs of the first training")
    parser.add_argument("--new", type=int, default=3000, help="pairs to tune on")
    parser.add_argument("--tests", type=int, default=1000, help="pairs of each test")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    files = write_data(args.data, args.out, args.base, args.new, args.tests)
    seeds = [int(each) for each in args.seeds.split(",")]
    print("| tuned on | BLEU there, mean (seeds) | BLEU on captions | chosen |\n|---|---|---|---|")
    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(lambda seed: train_base(args.out, files, seed, args.recipe, args.steps), seeds))
        for domain in ("near", "far"):
            test = files[f"{domain}-test"]
            show(f"{domain}: copies of the input", [("", copies(test), 0.0)])
            jobs = [pool.submit(bleu, args.out / f"base-{seed}", test) for seed in seeds]
            found = [("", job.result(), 0.0) for job in jobs]
            show(f"{domain}: before tuning", found)
            for system in ("chosen", "amount alone", "first schedule"):
                jobs = [pool.submit(tune, args.out, files, seed, domain, system) for seed in seeds]
                show(f"{domain}: {system}", [job.result() for job in jobs])


if __name__ == "__main__":
    main()
