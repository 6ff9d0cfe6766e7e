"""One-pass and few-pass translation on Multi30k en-de, beside its autoregressive teacher: BLEU, errors and latency.

    python benchmarks/nat.py DIR --out FOLDER [--seeds 2] [--at-once 6] [--set KEY=VALUE …]

DIR holds train, val and test_2016_flickr, each as .en and .de. The teacher is transformer-small. Each recipe is trained on its
translations and on the real text. Finished runs in FOLDER are not repeated, and interrupted ones are resumed, so the script
can be called until it is done. Lengths of texts, repeated words and BLEU by length stand beside those of the teacher.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_multi30k import lines_of
from trainings import markdown

import weft
from weft.evaluation.metrics import make_metrics, score
from weft.translator import Translator

TEST = "test_2016_flickr"
RECIPES = ("nat-blanks", "nat-length", "nat-fertility", "nat-mask-predict", "nat-ctc")
PLAIN = ["task.glancing=0", "task.glancing_end=0"]


def trainings(seeds: int) -> Iterator[tuple[str, str, bool, list[str]]]:
    """(name, recipe, distilled, settings) of each student."""
    for seed in range(1, seeds + 1):
        for distilled in (True, False):
            kind = "distilled" if distilled else "real"
            for recipe in RECIPES:
                yield f"{recipe}-{kind}-{seed}", recipe, distilled, [f"train.seed={seed}"]
            yield f"nat-ctc-plain-{kind}-{seed}", "nat-ctc", distilled, [f"train.seed={seed}", *PLAIN]


def systems(name: str, teacher: str) -> dict[str, dict[str, Any]]:
    """Title → options of decoding."""
    found: dict[str, dict[str, Any]] = {}

    def by_teacher(count: int) -> dict[str, Any]:
        return {"kind": "model", "run": teacher, "weight": 1.0, "candidates": count}

    if name.startswith("nat-ctc"):
        beam = {"kind": "ctc_beam", "width": 10}
        found = {"greedy": {"search": "ctc"}, "beam 10": {"search": beam}}
        found["beam 10, teacher"] = {"search": beam, "rerank": by_teacher(10)}
    elif name.startswith("nat-mask-predict"):
        for iterations in (1, 4, 10):
            search = {"kind": "refine", "iterations": iterations, "lengths": 5}
            found[f"{iterations} iterations, 5 lengths"] = {"search": search}
    else:
        found["one"] = {"search": {"kind": "one_pass", "lengths": 1}}
        counts = {"nat-length": (5,), "nat-fertility": (10, 100)}
        for count in next((counts[key] for key in counts if name.startswith(key)), ()):
            search = {"kind": "one_pass", "lengths": count}
            found[f"{count} candidates, teacher"] = {"search": search, "rerank": by_teacher(count)}
    return found


def train(folder: Path, out: Path, recipe: str, sets: Sequence[str], teacher: Path | None) -> None:
    """Trains a run as a user would, unless it is done."""
    if (out / "done").exists():
        return
    data = [f"--data={folder / 'train.en'},{folder / 'train.de'}", f"--valid={folder / 'val.en'},{folder / 'val.de'}"]
    command = ["train", recipe, *data, f"--out={out}", *([f"--teacher={teacher}"] if teacher else [])]
    if (out / "checkpoints").exists():
        command, sets = ["train", f"--resume={out}"], ()
    elif out.exists():
        shutil.rmtree(out)  # killed before its first checkpoint
    settings = [part for each in sets for part in ("--set", each)]
    with open(out.with_suffix(".txt"), "a", encoding="utf-8") as log:
        subprocess.run([sys.executable, "-m", "weft", *command, *settings], check=True, stdout=log, stderr=log)
    (out / "done").touch()


def errors(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Words that repeat the one before, in %; difference of lengths in words; BLEU of short and long references."""
    words, wanted = [text.split() for text in texts], [text.split() for text in references]
    repeats = sum(one == other for each in words for one, other in pairwise(each))
    pairs = list(zip(texts, references, strict=True))
    short = [pair for pair, each in zip(pairs, wanted, strict=True) if len(each) <= 12]
    long = [pair for pair, each in zip(pairs, wanted, strict=True) if len(each) > 12]
    return {
        "repeated %": 100 * repeats / max(1, sum(map(len, words))),
        "length error": sum(abs(len(a) - len(b)) for a, b in zip(words, wanted, strict=True)) / len(words),
        "BLEU ≤ 12 words": bleu(*zip(*short, strict=True)),
        "BLEU > 12 words": bleu(*zip(*long, strict=True)),
    }


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return next(iter(score(list(texts), list(references), make_metrics(["bleu"])).values())).value


def latency(translator: Translator, lines: Sequence[str], **options: Any) -> dict[str, float]:
    """Milliseconds per sentence one by one, the median of 100, and sentences per second of all together, after a warm-up."""
    times = []
    for line in [*lines[:30], *lines[:100]]:
        began = time.perf_counter()
        translator.translate(line, **options)
        times.append(time.perf_counter() - began)
    together = []
    for _ in range(3):
        began = time.perf_counter()
        translator.translate(lines, **options)
        together.append(time.perf_counter() - began)
    return {"ms": 1000 * sorted(times[30:])[50], "per second": len(lines) / min(together)}


def measure(folder: Path, run: Path, searches: dict[str, dict[str, Any]], device: str) -> list[dict[str, Any]]:
    """The scores of each way of decoding a run, and its speed on the GPU and on the CPU in int8."""
    sources, references = (lines_of(folder / f"{TEST}.{side}") for side in ("en", "de"))
    rows = []
    translator, cpu = weft.load(run, device=device), weft.load(run, device="cpu")
    for title, options in searches.items():
        texts = [each.text for each in translator.translate(sources, **options)]
        row = {"run": run.name, "decoding": title, "BLEU": bleu(texts, references), **errors(texts, references)}
        row |= {f"{device} {key}": value for key, value in latency(translator, sources, **options).items()}
        if "rerank" not in options:
            fast = {**options, "precision": "int8", "compile": True}
            row |= {f"cpu int8 {key}": value for key, value in latency(cpu, sources[:200], **fast).items()}
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=6, help="trainings at the same time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], help="settings of all students")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    teacher = args.out / "teacher"
    train(args.folder, teacher, "transformer-small", [], None)
    jobs = list(trainings(args.seeds))
    # The first student makes the translations, which the others find in the cache.
    first, *others = jobs
    _student(args, teacher, *first)
    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(lambda job: _student(args, teacher, *job), others))
    own = {"greedy": {"search": "greedy"}, "beam 5": {"search": {"kind": "beam", "width": 5}}}
    rows = measure(args.folder, teacher, own, args.device)
    for name, *_ in jobs:
        rows += measure(args.folder, args.out / name, systems(name, str(teacher)), args.device)
    (args.out / "nat.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    headings = list(dict.fromkeys(key for row in rows for key in row))
    cells = [
        [f"{row[key]:.2f}" if isinstance(row.get(key), float) else str(row.get(key, "")) for key in headings] for row in rows
    ]
    print(markdown(headings, cells))


def _student(args: argparse.Namespace, teacher: Path, name: str, recipe: str, distilled: bool, sets: list[str]) -> None:
    train(args.folder, args.out / name, recipe, [*sets, *args.set], teacher if distilled else None)


if __name__ == "__main__":
    main()
