"""The figures of benchmarks/nat.py: BLEU and errors of every way of decoding, their table, and latencies."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_multi30k import lines_of
from trainings import markdown

import weft
from weft.evaluation.metrics import make_metrics, score
from weft.runs.run_folder import records
from weft.tasks.translation.predictor import TranslationPredictor

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
    "cuda": {"GPU": {}, "GPU, compiled": {"compile": True}},
}
"""Settings in which latency is measured, by device."""

LINES, ROUNDS = 40, 8
TOGETHER = {"cpu": 200, "cuda": 1000}
"""Sentences that are translated together, by device."""

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


def latencies(folder: Path, out: Path, names: Sequence[str], device: str, count: int = LINES) -> str:
    """A table of the speed of each run in its fastest ways of decoding, beside the teacher's greedy decoding.

    Milliseconds per sentence one by one: the mean of the first `count`, each the best of `ROUNDS` times. Sentences per second
    of all `TOGETHER` at once: the best of four times. The runs take turns sentence by sentence, so that what slows the machine
    down slows all of them. On a CPU with two threads, in int8, with and without compiled kernels.
    """
    torch.set_num_threads(2)
    lines = lines_of(folder / f"{TEST}.en")
    wanted = {"nat-ctc": "greedy", "nat-mask-predict": "4 iterations, 5 lengths", "teacher": "greedy"}
    decodings = {}
    for name in ("teacher", *names):
        system = parts(name)[0].removesuffix("-plain")
        title = wanted.get(system, "one")
        decodings[f"{name}, {title}"] = weft.load(out / name, device=device), systems(system, "")[title]
    rows: dict[str, Row] = {name: {"system": name} for name in decodings}
    for way, options in FAST[device].items():
        timed = {
            name: partial(seconds, translator.translation_predictor("a benchmark", **{**decoding, **options, "workers": 1}))
            for name, (translator, decoding) in decodings.items()
        }
        alone = [in_turn(timed, [line], ROUNDS) for line in lines[:count]]
        together = in_turn(timed, lines[: TOGETHER[device]], 4)
        for name, row in rows.items():
            row[f"{way}: ms"] = 1000 * statistics.mean(best[name] for best in alone)
            row[f"{way}: sentences/s"] = TOGETHER[device] / together[name]
        print(*rows.values(), sep="\n", flush=True)  # the table comes last, and time may run out
    return speed_table(list(rows.values()))


def in_turn(timed: Mapping[str, Callable[[Sequence[str]], float]], texts: Sequence[str], rounds: int) -> dict[str, float]:
    """The best time of each system, after a round for warming up."""
    found = [{name: time_of(texts) for name, time_of in timed.items()} for _ in range(rounds + 1)]
    return {name: min(each[name] for each in found[1:]) for name in timed}


def seconds(predictor: TranslationPredictor, texts: Sequence[str]) -> float:
    began = time.perf_counter()
    for _ in predictor.predict(map(predictor.parse_input, texts), together=True):
        pass
    return time.perf_counter() - began


def speed_table(rows: Sequence[Row]) -> str:
    """Latencies beside those of the teacher, in the first row."""
    headings = [key for key in rows[0] if key != "system"]
    cells = []
    for row in rows:
        ratios = (rows[0][key] / row[key] if key.endswith("ms") else row[key] / rows[0][key] for key in headings)
        cells.append([row["system"], *(f"{row[key]:.2f} ({ratio:.1f} ×)" for key, ratio in zip(headings, ratios, strict=True))])
    return markdown(["system", *headings], cells)
