"""Reranking on Multi30k en-de: minimum Bayes risk and the score of another run, beside a beam of 5 of the same run.

    python benchmarks/rerank.py DIR RUN [--other RUN2] [--device cuda] [--out FILE]

DIR holds test_2016_flickr and val, each as .en and .de. Scores are BLEU (sacreBLEU 13a, cased) and chrF2. Nothing is tuned on
the test set: temperatures and weights are listed, and the best one on val is marked. The floor is the source itself, copied.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from gpu_multi30k import lines_of
from trainings import markdown

import weft
from weft.evaluation.metrics import make_metrics, score

BEAM = {"kind": "beam", "width": 5}
SAMPLES = 32


def systems(other: str | None) -> dict[str, dict[str, Any]]:
    """Title → options of decoding."""
    found: dict[str, dict[str, Any]] = {
        "greedy": {"search": {"kind": "greedy"}},
        "beam 5": {"search": BEAM},
        "one sample": {"search": {"kind": "sample"}},
    }
    for utility in ("chrf", "bleu"):
        wide = {"kind": "beam", "width": SAMPLES}
        found[f"mbr {utility}, {SAMPLES} best of a beam"] = {"search": wide, "rerank": _mbr(utility)}
        for temperature in (1.0, 0.7, 0.5):
            search = {"kind": "sample", "temperature": temperature}
            found[f"mbr {utility}, {SAMPLES} samples, temperature {temperature}"] = {"search": search, "rerank": _mbr(utility)}
    for weight in (0.25, 0.5, 0.75) if other else ():
        rerank = {"kind": "model", "run": other, "weight": weight, "candidates": 10}
        found[f"10 best by both runs, weight {weight}"] = {"search": {"kind": "beam", "width": 10}, "rerank": rerank}
    return found


def _mbr(utility: str) -> dict[str, Any]:
    return {"kind": "mbr", "utility": utility, "candidates": SAMPLES}


def measure(folder: Path, run: str, other: str | None, device: str) -> list[dict[str, Any]]:
    translator = weft.load(run, device=device)
    texts = {split: [lines_of(folder / f"{split}.{side}") for side in ("en", "de")] for split in ("val", "test_2016_flickr")}
    rows = [{"system": "source copied", **_scores({split: sides[0] for split, sides in texts.items()}, texts), "seconds": 0.0}]
    for title, options in systems(other).items():
        began = time.perf_counter()
        outputs = {split: [each.text for each in translator.stream(sides[0], **options)] for split, sides in texts.items()}
        rows.append({"system": title, **_scores(outputs, texts), "seconds": time.perf_counter() - began})
        print(rows[-1], flush=True)
    return rows


def _scores(outputs: dict[str, list[str]], texts: dict[str, list[list[str]]]) -> dict[str, float]:
    found = {}
    for split, lines in outputs.items():
        for name, value in score(lines, texts[split][1], make_metrics(["bleu", "chrf"])).items():
            found[f"{name} {split.partition('_')[0]}"] = value.value
    return found


def table(rows: list[dict[str, Any]]) -> str:
    columns = [name for name in rows[0] if name not in ("system", "seconds")]
    best = max(rows, key=lambda row: row["BLEU val"])
    cells = []
    for row in rows:
        mark = " (best on val)" if row is best else ""
        cells.append((row["system"] + mark, *(f"{row[name]:.1f}" for name in columns), f"{row['seconds']:.0f}"))
    return markdown(("system", *columns, "seconds"), cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of Multi30k")
    parser.add_argument("run", help="folder of a run trained on it")
    parser.add_argument("--other", help="folder of a second run, whose score reranks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = measure(options.folder, options.run, options.other, options.device)
    print(table(rows))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
