"""Precision and recall of the filters of `weft data clean` on noise injected into parallel data; BLEU with and without it.

    python benchmarks/cleaning.py filters --data l10n/en-de/train.tsv.xz --foreign l10n/en-eu/train.tsv.xz
    python benchmarks/cleaning.py train --data l10n/en-de/train.tsv.xz --foreign l10n/en-eu/train.tsv.xz \
        --valid l10n/en-de/dev.tsv.xz --test l10n/en-de/test.tsv.xz --out runs/cleaning --shares 0,0.1,0.3,0.5 --time 6m

`train` trains on noisy data and on the same data after cleaning, for each share of noise (0: the data as it is): on a GPU,
`auto` with all pairs and --time; on a CPU, few short pairs (--pairs, --words) and a small model (--recipe, --set), all
for as many steps. Each training makes its own tokenizer of its own data. A call that was stopped is repeated.

A share of the pairs is made noisy, a quarter each: targets of other pairs (misaligned), sources as targets (copied), texts of a
third language as targets (wrong language) and random characters (garbage). Pairs that are left untouched count as clean,
although real data has flaws, so precision is a lower bound; its floor is the share of noise. Seed 1 was used to choose the
defaults of the filters.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from adapting import PROJECTS

from weft.data.cleaning.filters import Choices, PairChecker
from weft.data.cleaning.learnt_statistics import LearntStatistics
from weft.data.formats import open_pairs
from weft.evaluation.metrics import make_metrics, score
from weft.runs.run_folder import complete
from weft.training.resumption import begun

Labelled = list[tuple[str, str, str]]
PLAIN = re.compile(r"[A-Za-z ,.'!?:-]+")
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
    every = max(1, sum(1 for _ in chosen(arguments.data, arguments)) // arguments.pairs) if arguments.pairs else 1
    rows = islice(chosen(arguments.data, arguments), 0, None, every)
    pairs = list(dict.fromkeys(pair for pair in rows if min(sum(map(str.isalpha, text)) for text in pair) >= 3))
    return pairs, [target for _, target in islice(chosen(arguments.foreign, arguments), 20_000)]


def chosen(file: str, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The pairs of a file whose sources are as long as --words says and do not belong to the project --without."""
    low, high = arguments.words
    hidden = PROJECTS.get(arguments.without)
    for source, target in open_pairs(file):
        if low <= len(source.split()) <= high and not (hidden and hidden.search(source)):
            yield source, target


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
    tests = {}
    for part in ("valid", "test"):
        found = (
            pair for pair in chosen(getattr(arguments, part), arguments) if not arguments.plain or PLAIN.fullmatch(pair[0])
        )
        tests[part] = write(arguments.out / f"{part}.jsonl", found)
        print(f"{part}, source copied: {copied(tests[part])}")
    for seed in arguments.seeds:
        for share in arguments.shares:
            file = arguments.out / f"noise{round(100 * share)}.jsonl"
            rows = noisy(pairs, foreign, share, arguments.seed)
            write(file, ((source, target) for source, target, _ in rows))
            one_training(file, seed, tests, arguments, None)
            if share or arguments.clean_clean:
                one_training(cleaned(file, arguments), seed, tests, arguments, arguments.out / f"{file.stem}-{seed}")


def cleaned(file: Path, arguments: argparse.Namespace) -> Path:
    """The file that `weft data clean` makes of another."""
    out, report = file.with_stem(f"{file.stem}-cleaned"), file.with_suffix(".html")
    if not out.exists():
        run("data", "clean", file, "-o", out, "--languages", arguments.languages, "--report", report)
    return out


def one_training(data: Path, seed: int, tests: dict[str, Path], arguments: argparse.Namespace, against: Path | None) -> None:
    """Trains and scores one run, unless an earlier call has. against: the run it is compared with by the paired bootstrap."""
    folder = arguments.out / f"{data.stem}-{seed}"
    if begun(folder) and not complete(folder):
        run("train", "--resume", folder)
    elif not complete(folder):
        length = ["--time", arguments.time] if arguments.time else []
        sets = [f"train.seed={seed}", *arguments.set]
        run("train", arguments.recipe, "--data", data, "--valid", tests["valid"], "--out", folder, *length, "--set", *sets)
    cells = [f"{data.stem:<18} seed {seed}  {sum(1 for _ in open_pairs(str(data))):>7,} pairs"]
    for part, test in tests.items():
        file = folder.with_name(f"{folder.name}.{part}.json")
        if not file.exists():
            versus = ["--against", against, "--test", "bootstrap"] if against else []
            file.write_text(run("evaluate", folder, "--data", test, "--beam", arguments.beam, "--json", *versus))
        report = json.loads(file.read_text())
        for name in ("BLEU", "chrF2"):
            cells.append(f"{part} {name} {report['metrics'][name]['value']:.1f}")
            if against:
                other = report["comparison"]["metrics"][name]
                cells.append(f"({other['delta']:+.1f}, {other['ci'][0]:+.1f} to {other['ci'][1]:+.1f}, p {other['p']:.3f})")
    print("  ".join(cells), flush=True)


def copied(file: Path) -> str:
    sources, targets = zip(*open_pairs(str(file)), strict=True)
    found = score(list(sources), list(targets), make_metrics(["bleu", "chrf"]))
    return f"{len(sources):,} texts, " + ", ".join(f"{name} {each.value:.1f}" for name, each in found.items())


def write(file: Path, pairs: Iterable[tuple[str, str]]) -> Path:
    if not file.exists():
        lines = (json.dumps({"source": source, "target": target}, ensure_ascii=False) for source, target in pairs)
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return file


def run(*words: object) -> str:
    """The output of a command of weft."""
    return subprocess.run(
        [sys.executable, "-m", "weft", *map(str, words)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


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
    parser.add_argument(
        "--words", type=lambda text: tuple(map(int, text.split(","))), default=(1, 10**6), help="of a source: LOW,HIGH"
    )
    parser.add_argument(
        "--plain", action="store_true", help="test sources of letters and punctuation only: a copy scores little"
    )
    parser.add_argument("--without", choices=[*PROJECTS], help="a project that is left out, see adapting.py")
    parser.add_argument("--out", type=Path, default=Path("runs/cleaning"))
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--time", default="", help="of each training; default: what --recipe and --set say")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of all trainings")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1], help="of trainings")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--clean-clean", action="store_true", help="cleans data without injected noise, too")
    arguments = parser.parse_args()
    (filters if arguments.what == "filters" else train)(arguments)


if __name__ == "__main__":
    main()
