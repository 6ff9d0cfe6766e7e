"""Adapting a model to a new project: BLEU after few corrections, the old domain beside it, and uses of fuzzy matches.

    python benchmarks/adapting.py DIR/l10n/en-de --out runs/adapting [--base RUN] [--only counts,fuzzy]
        [--time 3m] [--recipe auto] [--pairs N --words LOW,HIGH --tested N --set KEY=VALUE …]

DIR/l10n/en-de has train, dev and test.tsv.xz. The data names no projects, so the new project is what its markup gives away
(--project): `libreoffice`, the help of LibreOffice (<emph>, <ahelp …>, %PRODUCTNAME), or `gcc`, messages of the compiler that
quote or name something (%<…%>, %qD). All of it is kept from the base model, which is trained on the rest. Of the project,
--tested pairs are the test, as many others the validation, and the first 50, 200 and 1,000 of the rest the corrections. The old
domain is the test set without the project. Floors: the base model, and the source copied.

`settings` tries ranks, rates and passes with --tried corrections, and judges by the validation. `fuzzy` translates the
validation and the test with a memory of all other pairs, at most 5,000, for each use of fuzzy matches, and counts only texts
that have one. `markup` counts placeholders and tags that are kept, with and without protection.
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
from weft.evaluation.significance import paired_bootstrap
from weft.runs.run_folder import complete
from weft.runs.translator import Translator, open_memory
from weft.tasks.translation.documents import translate_documents
from weft.training import adapt as adapting

Pairs = list[tuple[str, str]]

PROJECTS = {
    "libreoffice": re.compile(r"<emph>|<ahelp|<item type=|<switchinline|<caseinline|<defaultinline|%PRODUCTNAME|LibreOffice"),
    "gcc": re.compile(r"%<(?!PRI)|%>|%q[A-Zs]"),
}
"""Sources of the projects."""

COUNTS = (50, 200, 1000)
MEMORY = 5000
BANDS = ((0.7, 0.8), (0.8, 0.9), (0.9, 1.0))
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


def divide(options: argparse.Namespace) -> dict[str, str]:
    """Writes the parts of the data as files, unless an earlier call has; returns their names."""
    out, chance, (low, high) = options.out, random.Random(1), options.words
    parts: dict[str, Pairs] = {}
    names = ("train", "valid", "old", "sample", "new", "tuning", "memory", *map(str, COUNTS))
    files = {name: str(out / f"{name}.tsv") for name in names}
    if all(Path(file).exists() for file in files.values()):
        return files
    project: Pairs = []
    for name, file in (("train", "train"), ("valid", "dev"), ("old", "test")):
        pairs = [pair for pair in open_pairs(str(options.data / f"{file}.tsv.xz")) if low <= len(pair[0].split()) <= high]
        project += [pair for pair in pairs if PROJECTS[options.project].search(pair[0])]
        parts[name] = [pair for pair in pairs if not PROJECTS[options.project].search(pair[0])]
    if options.pairs:
        parts["train"] = chance.sample(parts["train"], options.pairs)
    parts |= {"valid": parts["valid"][:1000], "old": parts["old"][: 2 * options.tested]}
    parts["sample"] = random.Random(2).sample(parts["train"], min(20_000, len(parts["train"])))
    chance.shuffle(project)
    project = list({source: (source, target) for source, target in project}.values())
    parts["new"], parts["tuning"] = project[: options.tested], project[options.tested : 2 * options.tested]
    rest = project[2 * options.tested :]
    parts |= {str(count): rest[:count] for count in COUNTS} | {"memory": rest[:MEMORY]}
    for name, pairs in parts.items():
        Path(files[name]).write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return files


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
    for name in ("new", "old"):
        sources, references = zip(*open_pairs(files[name]), strict=True)
        print("{}: source copied {:.1f} BLEU, {:.1f} chrF".format(name, *judged([*sources], [*references])))
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


def settings(run: Path, files: dict[str, str], seeds: list[int], tried: list[int]) -> None:
    print(f"{'settings':<20}{'corrections':>12}  {'validation of the project: BLEU':<33}{'old domain: BLEU':<18}")
    for name, constants in SETTINGS.items():
        for count in tried:
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
    """BLEU and chrF of texts that have a fuzzy match, by how it is used, and of the match's own target, by similarity."""
    system = weft.load(run)
    memory = open_memory(system, [files["memory"]])
    for part in ("tuning", "new"):
        found = [(source, target, memory.find(source)) for source, target in open_pairs(files[part])]
        rows = [(source, target, match) for source, target, match in found if match is not None and not match.exact]
        texts = {"the match itself": [match.target for *_, match in rows]}
        for use in FUZZY_USES:
            stream = system.stream([source for source, *_ in rows], matches=[match for *_, match in rows], fuzzy=use)
            texts[use] = [each.text for each in stream]
        print(f"\n{part}: {len(rows)} of {len(found)} texts have a fuzzy match")
        for low, high in ((0.0, 1.0), *BANDS):
            places = [place for place, (*_, match) in enumerate(rows) if low <= match.score < high]
            print(f"similarity {low} to {high}: {len(places)} texts")
            by_similarity({use: [each[place] for place in places] for use, each in texts.items()}, [rows[p][1] for p in places])


def by_similarity(texts: dict[str, list[str]], references: list[str]) -> None:
    """Prints the scores of each use, and their difference from `report` by the paired bootstrap."""
    metrics = make_metrics(["bleu", "chrf"])
    for use, each in texts.items():
        bleu, chrf = judged(each, references)
        line = f"  {use:<20}{bleu:>8.1f}{chrf:>8.1f}"
        if use != "report":
            for metric in metrics:
                both = (metric.count(some, references) for some in (each, texts["report"]))
                other = paired_bootstrap(metric, *both)
                line += f"   {other.delta:+.1f} ({other.ci[0]:+.1f} to {other.ci[1]:+.1f}, p {other.p:.3f})"
        print(line, flush=True)


FUZZY_USES = ("report", "prefix", "terms", "prompt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/adapting"))
    parser.add_argument("--base", type=Path, help="a trained run; default: trained now")
    parser.add_argument("--recipe", default="auto", help="of the base")
    parser.add_argument("--time", help="training of the base; default: what --recipe and --set say")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of the base")
    parser.add_argument("--project", choices=[*PROJECTS], default="libreoffice")
    parser.add_argument("--pairs", type=int, default=0, help="the base is trained on so many; default: all")
    parser.add_argument(
        "--words", type=lambda text: tuple(map(int, text.split(","))), default=(1, 10**6), help="of a source: LOW,HIGH"
    )
    parser.add_argument("--tested", type=int, default=500)
    parser.add_argument("--tried", type=lambda text: [int(part) for part in text.split(",")], default=[200, 1000])
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--only", default="counts,settings,fuzzy,markup")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    files, run = divide(arguments), arguments.base or arguments.out / "base"
    print(json.dumps({name: sum(1 for _ in open_pairs(file)) for name, file in files.items()}), flush=True)
    if not complete(run):
        options = ["data.source_language=en", "data.target_language=de", *arguments.set]
        length = {"time": arguments.time} if arguments.time else {}
        weft.train(arguments.recipe, data=files["train"], valid=files["valid"], out=run, set=options, tell=print, **length)
    for name in arguments.only.split(","):
        began = time.monotonic()
        print(f"\n## {name}", flush=True)
        if name == "counts":
            counts(run, files, arguments.seeds)
        elif name == "settings":
            settings(run, files, arguments.seeds, arguments.tried)
        else:
            {"fuzzy": fuzzy, "markup": markup}[name](run, files)
        print(f"({time.monotonic() - began:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
