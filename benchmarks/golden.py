"""Golden numbers: whether two commits compute the same, bit for bit.

    python benchmarks/golden.py --out before.json                          # before a refactoring
    python benchmarks/golden.py --out after.json --against before.json     # after it

Trains small models of every task, family and objective (golden_cases.py) on made-up data, on one thread of a CPU, and writes
down the weights, the losses of all steps, the scores, predictions of many searches, the output of commands, and whether a
stopped run that is resumed ends with the same bits. `--against` compares, and also loads, uses and resumes the runs of before.
`PYTHONPATH` says which checkout of weft is used, so that one copy of this script serves both. `--only 'speech*'` selects cases.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from golden_cases import GROUPS
from golden_runs import Found, Golden, commands, recipes


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested data."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from flattened(each, f"{path}/{key}")
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from flattened(each, f"{path}/{number}")
    else:
        yield path, value


def compare(before: dict[str, Found], after: dict[str, Found]) -> tuple[dict[str, list[str]], int]:
    """Differing values by case and measurement, and how many values were compared."""
    differing: dict[str, list[str]] = {}
    count = 0
    for case in after:
        earlier = before.get(case, {})
        for name in after[case] | earlier:
            a, b = (dict(flattened(found)) for found in (earlier.get(name.removeprefix("before: ")), after[case].get(name)))
            keys = sorted(a.keys() | b.keys())
            count += len(keys)
            if wrong := [f"{key}: {a.get(key)!r} → {b.get(key)!r}" for key in keys if a.get(key) != b.get(key)]:
                differing[f"{case} · {name}"] = wrong
    return differing, count


def unsound(found: dict[str, Found]) -> list[str]:
    """Cases whose resumed run differs from the uninterrupted one, and those that failed."""
    wrong = []
    for name, case in found.items():
        for weighed, resumed in (("weights", "resumed"), ("log", "resumed log")):
            if weighed in case and case[weighed] != case.get(resumed):
                wrong.append(f"{name}: {resumed} differs from the whole run")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the numbers; the runs go into a folder next to it")
    parser.add_argument("--against", type=Path, help="numbers of another commit to compare with")
    parser.add_argument("--only", default="*", help="pattern of the names of cases; default: all")
    arguments = parser.parse_args()
    work = arguments.out.absolute().with_suffix(".runs")
    before = json.loads(arguments.against.read_text("utf-8")) if arguments.against else {}
    earlier = arguments.against.absolute().with_suffix(".runs") if arguments.against else None
    os.environ["XDG_CACHE_HOME"] = str(work / "user-cache")
    import torch

    import weft

    torch.set_num_threads(1)
    print(f"weft {weft.__version__} of {Path(weft.__file__).parent}, torch {torch.__version__}")
    golden = Golden(work, earlier)
    cases = {name: case for group in GROUPS.values() for name, case in group().items()}
    calls: dict[str, Any] = {name: lambda name=name, case=case: golden.measure(name, case) for name, case in cases.items()}
    calls |= {"recipes": recipes, "commands": lambda: commands(golden)}
    found: dict[str, Found] = {}
    for name, call in calls.items():
        if fnmatch.fnmatch(name, arguments.only):
            began = time.perf_counter()
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
                found[name] = call()
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
            arguments.out.write_text(json.dumps(found, ensure_ascii=False), "utf-8")
    report(found, before)


def report(found: dict[str, Found], before: dict[str, Found]) -> None:
    """Prints what failed and what differs; exits with 1 if anything does."""
    failed = [
        f"{case} · {name}: {value}"
        for case in found
        for name, value in found[case].items()
        if isinstance(value, str) and "Error: " in value
    ]
    print(f"{len(failed)} refusals or errors", *(line[:300] for line in failed), sep="\n  ")
    wrong = unsound(found)
    print(f"{len(wrong)} resumed runs differ", *wrong, sep="\n  ")
    differing, count = compare(before, found) if before else ({}, 0)
    for name, lines in differing.items():
        print(f"DIFFERENT {name}: {len(lines)} values", *(line[:300] for line in lines[:5]), sep="\n  ")
    if before:
        print(f"{count:,} values of {len(found)} cases compared, {sum(map(len, differing.values()))} differ")
    sys.exit(bool(wrong or differing))


if __name__ == "__main__":
    main()
