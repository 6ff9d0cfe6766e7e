"""Adapting a model to a new project: BLEU after few corrections, the old domain beside it, and uses of fuzzy matches.

    python benchmarks/adapting.py DIR/l10n/en-de --out runs/adapting [--time 3m] [--base RUN] [--only counts,fuzzy]

DIR/l10n/en-de has train, dev and test.tsv.xz. The data names no projects, so the new project is what its markup gives away:
the help of LibreOffice (<emph>, <ahelp …>, <item type=…>, <switchinline …>, %PRODUCTNAME). All of it is kept from the base
model, which `auto` trains on the rest. Of the project, 500 pairs are the test, 500 others the validation, and the first 50,
200 and 1,000 of the rest the corrections. The old domain is the test set without the project. Floor: the base model.

`settings` tries ranks, rates and passes with 200 and 1,000 corrections, and judges by the validation. `fuzzy` translates the
validation and the test with a memory of 5,000 other pairs, for each use of fuzzy matches, and counts only texts that have one.
`markup` counts placeholders and tags that are kept, with and without protection.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import weft
from weft.data.formats import open_pairs
from weft.evaluation.metrics import make_metrics
from weft.runs.translator import Translator
from weft.tasks.translation.documents import translate_documents
from weft.training import adapt as adapting

Pairs = list[tuple[str, str]]

PROJECT = re.compile(r"<emph>|<ahelp|<item type=|<switchinline|<caseinline|<defaultinline|%PRODUCTNAME|LibreOffice")
"""Sources of the project."""

COUNTS = (50, 200, 1000)
TESTED, MEMORY = 500, 5000
PLACEHOLDERS = re.compile(
    r"%(?:\d+\$)?[-+#0]?\d*(?:\.\d+)?l{0,2}[sdiufgxc]\b|%\d+\b|\{\w*\}|\$\{\w+\}|\$\d\b|%\(\w+\)[sd]|</?\w[^<>]*>"
)

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "rate 5e-4": {"rate": 5e-4},
    "rate 5e-3": {"rate": 5e-3},
    "6 passes": {"passes": 6},
    "24 passes": {"passes": 24},
    "rank 4": {"rank": 4},
    "rank 64": {"rank": 64},
    "without old data": {"old": False},
}


def divide(folder: Path, out: Path) -> dict[str, str]:
    """Writes the parts of the data as files; returns their names."""
    parts = {"train": out / "train.tsv", "valid": out / "valid.tsv", "old": out / "old.tsv"}
    project: Pairs = []
    if all(each.exists() for each in (*parts.values(), out / "memory.tsv")):
        return {name: str(out / f"{name}.tsv") for name in (*parts, "sample", "new", "tuning", "memory", *map(str, COUNTS))}
    for name, file in (("train", "train"), ("valid", "dev"), ("old", "test")):
        rest = []
        for pair in open_pairs(str(folder / f"{file}.tsv.xz")):
            (project if PROJECT.search(pair[0]) else rest).append(pair)
        write(parts[name], rest if name == "train" else rest[:1000])
        if name == "train":
            write(out / "sample.tsv", random.Random(2).sample(rest, min(20_000, len(rest))))
    random.Random(1).shuffle(project)
    project = list({source: (source, target) for source, target in project}.values())
    cuts = {"new": project[:TESTED], "tuning": project[TESTED : 2 * TESTED]}
    rest = project[2 * TESTED :]
    cuts |= {str(count): rest[:count] for count in COUNTS} | {"memory": rest[:MEMORY]}
    for name, pairs in cuts.items():
        write(out / f"{name}.tsv", pairs)
    return {name: str(out / f"{name}.tsv") for name in (*parts, "sample", *cuts)}


def write(file: Path, pairs: Pairs) -> None:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")


def scores(system: Translator, file: str, **options: Any) -> tuple[float, float]:
    """BLEU and chrF."""
    pairs = list(open_pairs(file))
    texts = [each.text for each in system.translate([source for source, _ in pairs], **options)]
    return judged(texts, [target for _, target in pairs])


def judged(texts: list[str], references: list[str]) -> tuple[float, float]:
    bleu, chrf = (metric.score(metric.count(texts, references)).value for metric in make_metrics(["bleu", "chrf"]))
    return bleu, chrf


def adapted(
    run: Path, files: dict[str, str], count: int, seed: int, *, old: bool = True, **constants: Any
) -> tuple[Translator, float]:
    """The base adapted to `count` corrections, and the seconds. constants: those of `weft.training.adapt` that differ."""
    before = {name: getattr(adapting, name.upper()) for name in constants}
    for name, value in constants.items():
        setattr(adapting, name.upper(), value)
    try:
        sets = [f"train.seed={seed}"]
        made = adapting.adapt(run, files[str(count)], old=[files["sample"]] if old else [str(run / "none.tsv")], set=sets)
    finally:
        for name, value in before.items():
            setattr(adapting, name.upper(), value)
    return weft.load(made.folder), made.seconds


def counts(run: Path, files: dict[str, str], seeds: list[int]) -> None:
    base = weft.load(run)
    new, old = scores(base, files["new"]), scores(base, files["old"])
    print(f"{'corrections':<13}{'seed':>5}  {'new: BLEU, chrF':<18}{'old: BLEU, chrF':<18}{'seconds':>8}")
    print(f"{0:<13}{'':>5}  {new[0]:<8.1f}{new[1]:<10.1f}{old[0]:<8.1f}{old[1]:<10.1f}", flush=True)
    for count in COUNTS:
        for seed in seeds:
            for mixed in (True, False):
                system, seconds = adapted(run, files, count, seed, old=mixed)
                new, old = scores(system, files["new"]), scores(system, files["old"])
                name = f"{count:,}" if mixed else f"{count:,} alone"
                line = f"{name:<13}{seed:>5}  {new[0]:<8.1f}{new[1]:<10.1f}{old[0]:<8.1f}{old[1]:<10.1f}{seconds:>8.0f}"
                print(line, flush=True)


def settings(run: Path, files: dict[str, str], seeds: list[int]) -> None:
    print(f"{'settings':<20}{'corrections':>12}  {'validation of the project: BLEU':<33}{'old domain: BLEU':<18}")
    for name, constants in SETTINGS.items():
        for count in COUNTS[1:]:
            system, _ = adapted(run, files, count, seeds[0], **constants)
            new, old = scores(system, files["tuning"])[0], scores(system, files["valid"])[0]
            print(f"{name:<20}{count:>12,}  {new:<33.1f}{old:<18.1f}", flush=True)


def markup(run: Path, files: dict[str, str]) -> None:
    """Texts that keep all placeholders and tags, each as often as the source has it."""
    system = weft.load(run)
    pairs = [pair for pair in open_pairs(files["old"]) if PLACEHOLDERS.search(pair[0])]
    sources = [source for source, _ in pairs]
    ways: dict[str, list[str]] = {
        "references": [target for _, target in pairs],
        "as plain text, decode.protect off": [each.text for each in system.translate(sources, protect="off")],
        "as plain text, decode.protect auto": [each.text for each in system.translate(sources)],
        "as HTML, decode.protect auto": [each.text for each in translate_documents(system.stream, sources, "html")],
    }
    for name, texts in ways.items():
        wanted = kept = whole = 0
        for source, text in zip(sources, texts, strict=True):
            ours, theirs = Counter(PLACEHOLDERS.findall(source)), Counter(PLACEHOLDERS.findall(text))
            wanted, kept, whole = wanted + ours.total(), kept + (ours & theirs).total(), whole + (ours == theirs)
        share = f"{100 * kept / wanted:.2f} % of {wanted:,} placeholders and tags"
        print(f"{name:<36} {share}; {100 * whole / len(texts):.1f} % of {len(texts)} texts keep exactly theirs", flush=True)


def fuzzy(run: Path, files: dict[str, str]) -> None:
    """BLEU of texts that have a fuzzy match, by how it is used, and of the match's own target, on validation and test."""
    from weft.runs.translator import open_memory

    system = weft.load(run)
    memory = open_memory(system, [files["memory"]])
    for part in ("tuning", "new"):
        found = [(source, target, memory.find(source)) for source, target in open_pairs(files[part])]
        rows = [(source, target, match) for source, target, match in found if match is not None and not match.exact]
        references = [target for _, target, _ in rows]
        mean = sum(match.score for *_, match in rows) / max(1, len(rows))
        print(f"\n{part}: {len(rows)} of {len(found)} texts have a fuzzy match, mean similarity {mean:.2f}")
        print(f"{'the match itself':<20}{judged([match.target for _, _, match in rows], references)[0]:>8.1f}", flush=True)
        for use in FUZZY_USES:
            stream = system.stream([source for source, _, _ in rows], matches=[match for _, _, match in rows], fuzzy=use)
            bleu, chrf = judged([each.text for each in stream], references)
            print(f"{use:<20}{bleu:>8.1f}{chrf:>8.1f}", flush=True)


FUZZY_USES = ("report", "prefix", "terms", "prompt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/adapting"))
    parser.add_argument("--base", type=Path, help="a trained run; default: trained now")
    parser.add_argument("--time", default="3m", help="training of the base")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--only", default="counts,settings,fuzzy,markup")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    files, run = divide(arguments.data, arguments.out), arguments.base or arguments.out / "base"
    print(json.dumps({name: sum(1 for _ in open_pairs(file)) for name, file in files.items()}), flush=True)
    if not run.exists():
        options = {"data.source_language": "en", "data.target_language": "de"}
        weft.train("auto", data=files["train"], valid=files["valid"], out=run, time=arguments.time, set=options, tell=print)
    for name in arguments.only.split(","):
        began = time.monotonic()
        print(f"\n## {name}", flush=True)
        work = {"counts": counts, "settings": settings}.get(name)
        if work is not None:
            work(run, files, arguments.seeds)
        else:
            {"fuzzy": fuzzy, "markup": markup}[name](run, files)
        print(f"({time.monotonic() - began:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
