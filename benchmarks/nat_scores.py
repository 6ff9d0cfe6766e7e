"""The figures of benchmarks/nat.py: BLEU and errors of every way of decoding, their table, and latencies."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_multi30k import lines_of
from trainings import markdown

import weft
from weft.compare.trainings import records
from weft.evaluation.metrics import make_metrics, score
from weft.translator import Translator

TEST = "test_2016_flickr"
PLAIN = "nat-ctc-plain"
"""nat-ctc without glancing."""

GOALS = {
    ("nat-blanks", "one"): 28,
    ("nat-length", "one"): 31,
    ("nat-length", "5 candidates, teacher"): 35,
    ("nat-fertility", "one"): 32,
    ("nat-fertility", "10 candidates, teacher"): 36,
    ("nat-fertility", "100 candidates, teacher"): 37,
    ("nat-mask-predict", "1 iterations, 5 lengths"): 22,
    ("nat-mask-predict", "4 iterations, 5 lengths"): 35,
    ("nat-mask-predict", "10 iterations, 5 lengths"): 38,
    (PLAIN, "greedy"): 37,
    ("nat-ctc", "greedy"): 38,
    ("nat-ctc", "beam 10, teacher"): 38.5,
}
"""BLEU to be reached on distilled text, by system and decoding."""

FAST: dict[str, dict[str, Any]] = {
    "cpu": {"int8": {"precision": "int8"}, "int8, compiled": {"precision": "int8", "compile": True}},
    "cuda": {"GPU": {}},
}
"""Settings in which latency is measured, by device."""

Row = dict[str, Any]


def parts(name: str) -> tuple[str, str, str]:
    """System, kind of text and seed of a run."""
    system, kind, seed = name.rsplit("-", 2) if "-" in name else (name, "distilled", "1")
    return system, kind, seed


def systems(system: str, teacher: str) -> dict[str, dict[str, Any]]:
    """Title → options of decoding."""

    def by_teacher(count: int) -> dict[str, Any]:
        return {"kind": "model", "run": teacher, "weight": 1.0, "candidates": count}

    if system == "teacher":
        return {"greedy": {"search": "greedy"}, "beam 5": {"search": {"kind": "beam", "width": 5}}}
    if system.startswith("nat-ctc"):
        beam = {"kind": "ctc_beam", "width": 10}
        rescored = {"beam 10, teacher": {"search": beam, "rerank": by_teacher(10)}}
        return {"greedy": {"search": "ctc"}, "beam 10": {"search": beam}, **rescored}
    if system == "nat-mask-predict":
        every = {f"{n} iterations, 5 lengths": {"kind": "refine", "iterations": n, "lengths": 5} for n in (1, 4, 10)}
        return {title: {"search": search} for title, search in every.items()}
    found: dict[str, dict[str, Any]] = {"one": {"search": {"kind": "one_pass", "lengths": 1}}}
    for count in {"nat-length": (5,), "nat-fertility": (10, 100)}.get(system, ()):
        search = {"kind": "one_pass", "lengths": count}
        found[f"{count} candidates, teacher"] = {"search": search, "rerank": by_teacher(count)}
    return found


def measure(folder: Path, out: Path, name: str, device: str, lines: int | None) -> None:
    """Decodes the test set, or its first `lines`, with a run in every way, and writes texts and scores."""
    sources, references = (lines_of(folder / f"{TEST}.{side}")[:lines] for side in ("en", "de"))
    system, _, _ = parts(name)
    steps = max(record.get("step", 0) for record in records(out / name))
    translator, rows = weft.load(out / name, device=device), []
    for title, decoding in systems(system, str(out.absolute() / "teacher")).items():
        began = time.perf_counter()
        texts = [each.text for each in translator.translate(sources, **decoding)]
        row = {"decoding": title, "BLEU": bleu(texts, references), **errors(texts, references)}
        rows.append({**row, "seconds": time.perf_counter() - began, "steps": steps})
        (out / "texts" / f"{name}.{title}.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    (out / "scores" / f"{name}.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")


def errors(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Words that repeat the one before, in %; difference of lengths in words; BLEU of short and long references."""
    words, wanted = [text.split() for text in texts], [text.split() for text in references]
    repeats = sum(one == other for each in words for one, other in pairwise(each))
    pairs = list(zip(texts, references, strict=True))
    short = [pair for pair, each in zip(pairs, wanted, strict=True) if len(each) <= 10]
    long = [pair for pair, each in zip(pairs, wanted, strict=True) if len(each) > 10]
    return {
        "repeated %": 100 * repeats / max(1, sum(map(len, words))),
        "length error": sum(abs(len(a) - len(b)) for a, b in zip(words, wanted, strict=True)) / len(words),
        "≤ 10 words": bleu(*zip(*short, strict=True)) if short else 0.0,
        "> 10 words": bleu(*zip(*long, strict=True)) if long else 0.0,
    }


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return score(list(texts), list(references), make_metrics(["bleu"]))["BLEU"].value


def table(out: Path, floor: float) -> str:
    """A line for each system and decoding: seeds on distilled text, their mean, and what real text costs."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted((out / "scores").glob("*.json")):
        system, kind, _ = parts(file.stem)
        for row in json.loads(file.read_text("utf-8")):
            found[system, row["decoding"]][kind].append(row)
    figures = ["repeated %", "length error", "≤ 10 words", "> 10 words", "seconds", "steps"]
    cells = [["source copied (floor)", "", f"{floor:.2f}", *[""] * 9]]
    for (system, decoding), kinds in sorted(found.items(), key=lambda item: (item[0][0] != "teacher", item[0])):
        mean = {
            kind: {key: statistics.mean(row[key] for row in rows) for key in ("BLEU", *figures)} for kind, rows in kinds.items()
        }
        own, real = mean.get("distilled"), mean.get("real")
        seeds = "/".join(f"{row['BLEU']:.2f}" for row in kinds.get("distilled", []))
        goal = GOALS.get((system, decoding))
        shown = own or real or {}
        cells.append(
            [system, decoding, seeds or "–", "" if goal is None else f"{goal}", f"{real['BLEU']:.2f}" if real else "–"]
            + [f"{own['BLEU'] - real['BLEU']:+.2f}" if own and real else ""]
            + [f"{shown[key]:.2f}" for key in figures[:-1]]
            + [f"{shown['steps']:.0f}"]
        )
    headings = ["system", "decoding", "BLEU, distilled", "goal", "real", "gain", *figures]
    return markdown(headings, cells)


def latencies(folder: Path, out: Path, names: Sequence[str], device: str) -> str:
    """A table of the speed of each run in its fastest ways of decoding, beside the teacher's greedy decoding.

    On a CPU with two threads, in int8, with and without compiled kernels.
    """
    torch.set_num_threads(2)
    lines, count = lines_of(folder / f"{TEST}.en"), 20 if device == "cpu" else 100
    wanted = {"nat-ctc": ("greedy", "beam 10"), "nat-mask-predict": ("4 iterations, 5 lengths",), "teacher": ("greedy",)}
    rows: list[Row] = []
    for name in ("teacher", *names):
        system = parts(name)[0].removesuffix("-plain")
        translator = weft.load(out / name, device=device)
        for title in wanted.get(system, ("one",)):
            row: Row = {"system": f"{name}, {title}"}
            for way, options in FAST[device].items():
                decoding = {**systems(system, "")[title], **options, "workers": 1}
                row[f"{way}: ms"], row[f"{way}: sentences/s"] = latency(translator, lines, count, **decoding)
            rows.append(row)
    return speed_table(rows)


def latency(translator: Translator, lines: Sequence[str], count: int, **decoding: Any) -> tuple[float, float]:
    """Milliseconds per sentence one by one, the median of `count`, and sentences per second of 10 · `count` at once."""
    predictor = translator.translation_predictor("a benchmark", **decoding)

    def seconds(texts: Sequence[str]) -> float:
        began = time.perf_counter()
        for _ in predictor.predict(map(predictor.parse, texts), together=True):
            pass
        return time.perf_counter() - began

    # On a GPU, work is recorded when a size comes for the second time.
    alone = [seconds([line]) for line in [*lines[:count], *lines[:count], *lines[:count]]]
    together = [seconds(lines[: 10 * count]) for _ in range(4)]
    return 1000 * statistics.median(alone[-count:]), len(lines[: 10 * count]) / min(together)


def speed_table(rows: Sequence[Row]) -> str:
    """Latencies beside those of the teacher, in the first row."""
    headings = [key for key in rows[0] if key != "system"]
    cells = []
    for row in rows:
        ratios = (rows[0][key] / row[key] if key.endswith("ms") else row[key] / rows[0][key] for key in headings)
        cells.append([row["system"], *(f"{row[key]:.2f} ({ratio:.1f} ×)" for key, ratio in zip(headings, ratios, strict=True))])
    return markdown(["system", *headings], cells)
