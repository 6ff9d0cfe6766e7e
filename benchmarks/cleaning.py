"""Precision and recall of the filters of `weft data clean` on noise injected into parallel data; BLEU with and without it.

    python benchmarks/cleaning.py filters --data l10n/en-de/train.tsv.xz --foreign l10n/en-eu/train.tsv.xz
    python benchmarks/cleaning.py train --data l10n/en-de/train.tsv.xz --foreign l10n/en-eu/train.tsv.xz \
        --valid l10n/en-de/dev.tsv.xz --test l10n/en-de/test.tsv.xz --out runs/cleaning --time 6m

`filters` needs a CPU only. `train` trains `auto` on noisy data and on the same data after cleaning, for each share of noise
(0: the data as it is); it is meant for a GPU. A share of the pairs is made noisy, a quarter each: targets of other pairs
(misaligned), sources as targets (copied), texts of a third language as targets (wrong language) and random characters
(garbage). Pairs that are left untouched count as clean, although real data has flaws, so precision is a lower bound; its floor
is the share of noise. Seed 1 was used to choose the defaults.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from weft.data.cleaning.filters import Choices, PairChecker
from weft.data.cleaning.learnt_statistics import LearntStatistics
from weft.data.formats import open_pairs

Labelled = list[tuple[str, str, str]]
KINDS = ("misaligned", "copied", "wrong language", "garbage")


def noisy(pairs: list[tuple[str, str]], foreign: list[str], share: float, seed: int) -> Labelled:
    """The pairs with noise in a share of them: (source, target, kind of noise or '')."""
    draw = random.Random(seed)
    rows: Labelled = []
    for source, target in pairs:
        kind = draw.choice(KINDS) if draw.random() < share else ""
        if kind == "misaligned":
            target = draw.choice(pairs)[1]
        elif kind == "copied":
            target = source
        elif kind == "wrong language":
            target = draw.choice(foreign)
        elif kind == "garbage":
            target = garbage(target, draw)
        rows.append((source, target, kind))
    return rows


def garbage(text: str, draw: random.Random) -> str:
    """A text with its letters shuffled, as bytes of another encoding, or of random signs."""
    way = draw.randrange(3)
    if way == 0:
        letters = list(text)
        draw.shuffle(letters)
        return "".join(letters)
    if way == 1:
        return text.encode("utf-8").decode("latin-1") if not text.isascii() else "".join(draw.choices("#*|_~^ =", k=len(text)))
    return "".join(chr(draw.randrange(33, 0x24F)) for _ in text)


def read(arguments: argparse.Namespace) -> tuple[list[tuple[str, str]], list[str]]:
    """Different pairs of --data with at least three letters on both sides, and targets of --foreign."""
    every = max(1, sum(1 for _ in open_pairs(arguments.data)) // arguments.pairs) if arguments.pairs else 1
    rows = islice(open_pairs(arguments.data), 0, None, every)
    pairs = list(dict.fromkeys(pair for pair in rows if min(sum(map(str.isalpha, text)) for text in pair) >= 3))
    return pairs, [target for _, target in islice(open_pairs(arguments.foreign), 20_000)]


def measure(rows: Labelled, languages: tuple[str, str]) -> dict[str, object]:
    """Counts of the first filter that finds each pair, by kind of noise."""
    began = time.perf_counter()
    learnt = LearntStatistics(((source, target) for source, target, _ in rows), languages)
    learning = time.perf_counter() - began
    checker = PairChecker(Choices({"filters": {"duplicate": False, "near_duplicate": False}}), learnt)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for source, target, kind in rows:
        flaw = checker.flaw(checker.repaired(source, target)) or ""
        found[flaw][kind] += 1
        if flaw and not kind and len(examples[flaw]) < 12:
            examples[flaw].append((source, target))
    took = time.perf_counter() - began - learning
    return {"found": found, "learning_s": learning, "pairs_per_s": len(rows) / took, "examples": examples}


def table(rows: Labelled, found: dict[str, Counter[str]]) -> Iterator[str]:
    totals = Counter(kind for _, _, kind in rows)
    yield f"{'filter':<16}{'found':>8}{'precision':>11}  " + "".join(f"{kind:>16}" for kind in KINDS) + f"{'untouched':>12}"
    order = [*sorted(flaw for flaw in found if flaw), "all"]
    every = sum((counts for flaw, counts in found.items() if flaw), Counter[str]())
    for flaw in order:
        counts = every if flaw == "all" else found[flaw]
        count = counts.total()
        precision = 1 - counts[""] / max(1, count)
        shares = "".join(f"{100 * counts[kind] / max(1, totals[kind]):>14.1f} %" for kind in KINDS)
        yield f"{flaw:<16}{count:>8,}{100 * precision:>9.1f} %  {shares}{100 * counts[''] / totals['']:>10.2f} %"
    noise = sum(totals[kind] for kind in KINDS)
    recall = sum(every[kind] for kind in KINDS) / max(1, noise)
    yield f"recall of all noise: {100 * recall:.1f} %; floor of precision (share of noise): {100 * noise / len(rows):.1f} %"


def filters(arguments: argparse.Namespace) -> None:
    pairs, foreign = read(arguments)
    for share in arguments.shares:
        rows = noisy(pairs, foreign, share, arguments.seed)
        result = measure(rows, tuple(arguments.languages.split(",")))
        print(f"\n{len(rows):,} pairs, noise {share:.0%}, seed {arguments.seed}")
        print("\n".join(table(rows, result["found"])))
        print(f"learnt in {result['learning_s']:.1f} s; {result['pairs_per_s']:,.0f} pairs per second")
        if arguments.examples:
            print(json.dumps(result["examples"], ensure_ascii=False, indent=1))


def train(arguments: argparse.Namespace) -> None:
    pairs, foreign = read(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for share in arguments.shares:
        rows = noisy(pairs, foreign, share, arguments.seed)
        name = f"noise{round(100 * share)}"
        file = arguments.out / f"{name}.jsonl"
        lines = (json.dumps({"source": source, "target": target}, ensure_ascii=False) for source, target, _ in rows)
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        cleaned = arguments.out / f"{name}-cleaned.jsonl"
        run(
            "data", "clean", file, "-o", cleaned, "--languages", arguments.languages, "--report", arguments.out / f"{name}.html"
        )
        for data in (file, cleaned):
            folder = arguments.out / data.stem
            run("train", "auto", "--data", data, "--valid", arguments.valid, "--out", folder, "--time", arguments.time)
            run("evaluate", folder, "--data", arguments.test, "--json", "-o", f"{folder}.txt")


def run(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "weft", *map(str, words)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["filters", "train"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--foreign", required=True, help="pairs whose targets are in a third language")
    parser.add_argument("--valid")
    parser.add_argument("--test")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--shares", type=lambda text: [float(part) for part in text.split(",")], default=[0.1, 0.3, 0.5])
    parser.add_argument("--pairs", type=int, default=0, help="the approximate number, evenly spread; default: all")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--examples", action="store_true", help="shows untouched pairs that each filter finds")
    parser.add_argument("--out", type=Path, default=Path("runs/cleaning"))
    parser.add_argument("--time", default="6m")
    arguments = parser.parse_args()
    (filters if arguments.what == "filters" else train)(arguments)


if __name__ == "__main__":
    main()
