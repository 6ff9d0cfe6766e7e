"""Mutants: small mistakes planted one at a time, and whether the tests of their room catch them.

    python benchmarks/campaigns/mutants.py --folder DIR --count 500 [--seed 1] [--seconds 12]
    python benchmarks/campaigns/mutants.py --folder DIR --seed 1 --again      survivors once more, with all their tests
    python benchmarks/campaigns/mutants.py --report

First measures which tests run which lines (kept in DIR), then tries a random sample of the lines of all rooms, one mutant
each, on a few of the tests that run it: those that are cheap and run little else. Results are lines of JSON (`--out`); a call
continues where the last one stopped. Every twentieth time the code is left as it is, which no test may notice.
`mutant_survivors.json` says why a survivor may live. `--after` instead of `--again` notes that tests were added meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import mutant_runs
import mutated_imports
import pytest
from mutant_tests import LONGEST, ROOMS, Coverage, Sources, digest_of, entry_of, room_of, tests_of
from mutation_operators import Mutant, sample

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.jsonl"
REASONS = Path(__file__).with_name("mutant_survivors.json")
THIRD_PARTY = (
    "torch",
    "numpy",
    "pydantic",
    "httpx",
    "starlette",
    "uvicorn",
    "safetensors",
    "tokenizers",
    "yaml",
    "typer",
    "rich",
    "sacrebleu",
)
LEFT_OUT = ("tests/serve/test_serve_process.py", "tests/runs/test_ray_engine.py", "tests/training/test_torchrun.py")
"""Tests that start several programs each and take minutes."""
UNCHANGED_EVERY = 20
ALIVE = ("survived", "not run")
CAUGHT = ("caught", "too long", "died", "not importable")


@dataclass
class Workplace:
    """A checkout, a folder for what is kept between calls, and the zygotes."""

    root: Path
    folder: Path
    tests: list[str]
    """Folders or files of tests."""

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def run(self, work: Any, take: Any, silence: float, total: float, but: set[int]) -> str:
        """In a fork with a temporary folder of its own."""
        own = Path(tempfile.mkdtemp(prefix="weft-mutant-", dir=self.folder))
        try:
            return mutant_runs.in_fork(lambda tell: work(own, tell), take, silence, total, but)
        finally:
            shutil.rmtree(own, ignore_errors=True)


def distinct(tests: list[str]) -> list[str]:
    """The folders and files of a list, without files of these folders."""
    folders = [each for each in dict.fromkeys(tests) if not each.endswith(".py")]
    return [
        *folders,
        *(each for each in dict.fromkeys(tests) if each.endswith(".py") and str(Path(each).parent) not in folders),
    ]


def import_third_party() -> None:
    for name in THIRD_PARTY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Judge:
    """Runs the tests chosen for a mutant in a fork: of a zygote that has collected them all or, if need be, importing anew."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        mutant_runs.adopt_orphans()
        self.ours, theirs = Pipe()
        self.zygote = os.fork()
        if self.zygote == 0:
            try:
                mutant_runs.silence_output()
                mutant_runs.collect(place.tests, lambda session: self._serve(session, theirs))
            finally:
                os._exit(1)
        theirs.close()
        self.seconds: dict[str, float] = {}

    def __call__(self, mutant: Mutant, tests: list[str]) -> dict[str, Any]:
        began, used = time.perf_counter(), mutant_runs.processor_seconds()
        verdict = None
        if mutant.function or mutant.operator == "none":
            self.ours.send((mutant.to_dict(), tests, self.seconds))
            verdict = self.ours.recv()
        if verdict is None:
            verdict = judged(partial(self._run, partial(self._anew, mutant, tests), tests, {self.zygote}))
            verdict["processor"] = round(mutant_runs.processor_seconds() - used, 2)
        return {**verdict, "seconds": round(time.perf_counter() - began, 2)}

    def close(self) -> None:
        self.ours.close()
        os.waitpid(self.zygote, 0)

    def _run(self, work: Any, tests: list[str], but: set[int], take: Any) -> str:
        longest = max((self.seconds.get(each, 1.0) for each in tests), default=1.0)
        return self.place.run(work, take, 60 + 20 * longest, 240.0, but)

    def _serve(self, session: pytest.Session, asked: Connection) -> None:
        self.ours.close()
        mutant_runs.adopt_orphans()
        gc.unfreeze()
        functions = mutated_imports.functions_of(str(self.place.root))
        gc.freeze()
        loaded = {file for file, _ in functions}
        items = {item.nodeid: item for item in session.items}
        while True:
            try:
                mutant, tests, self.seconds = asked.recv()
            except EOFError:
                os._exit(0)
            used = mutant_runs.processor_seconds()
            work = partial(self._patched, session, mutant, [items[each] for each in tests], (functions, loaded))
            found = judged(partial(self._run, work, tests, set()))
            found["processor"] = round(mutant_runs.processor_seconds() - used, 2)
            asked.send(None if found["verdict"] == "anew" else found)

    def _patched(
        self, session: Any, mutant: dict[str, Any], items: Any, code: tuple[Any, set[str]], own: Path, tell: Any
    ) -> None:
        root = str(self.place.root)
        functions, loaded = code
        if mutant["candidate"] >= 0:
            if str(Path(root, mutant["file"])) in loaded and not mutated_imports.replace_function(functions, root, mutant):
                tell({"anew": True})
                return
            mutated_imports.install({"root": root, "mutant": mutant}, own)
        mutant_runs.use_folder(session.config, own, self.place.shared)
        mutant_runs.until_one_fails(items, self.seconds, tell)

    def _anew(self, mutant: Mutant, tests: list[str], own: Path, tell: Any) -> None:
        mutant_runs.silence_output()
        mutated_imports.install({"root": str(self.place.root), "mutant": mutant.to_dict()}, own)
        collected: list[str] = []

        def work(session: pytest.Session) -> None:
            items = {item.nodeid: item for item in session.items}
            collected.extend(items)
            mutant_runs.use_folder(session.config, own, self.place.shared)
            mutant_runs.until_one_fails([items[each] for each in tests if each in items], self.seconds, tell)

        mutant_runs.collect(tests, work)
        if not collected:
            tell({"test": "", "outcome": "not importable", "why": ""})


def judged(run: Any) -> dict[str, Any]:
    """The verdict from what a run tells."""
    ended: list[dict[str, Any]] = []
    begun: list[str] = []

    def take(event: dict[str, Any]) -> None:
        if "begins" in event:
            begun.append(event["begins"])
        else:
            ended.append(event)

    state = run(take)
    last = ended[-1] if ended else {}
    if "anew" in last:
        return {"verdict": "anew"}
    if last.get("outcome") == "not importable":
        return {"verdict": "not importable", "by": "", "why": "", "tests": 0}
    if last.get("outcome") == "failed":
        verdict = "too long" if last["why"].endswith("TooLong") else "caught"
        return {"verdict": verdict, "by": last["test"], "why": last["why"], "tests": len(ended)}
    if state in ("silent", "died"):
        return {
            "verdict": "too long" if state == "silent" else "died",
            "by": begun[-1] if begun else "",
            "why": state,
            "tests": len(begun),
        }
    return {"verdict": "survived", "by": "", "why": state, "tests": len(ended)}


def prepare(place: Workplace, sources: Sources) -> None:
    """Measures the test files that have changed, or all of them if the code has; one line each in `coverage.jsonl`."""
    file = place.folder / "coverage.jsonl"
    known = {json.loads(line)["digest"] for line in file.read_text("utf-8").splitlines()} if file.exists() else set()
    files = [
        path.relative_to(place.root).as_posix()
        for each in place.tests
        for path in (sorted((place.root / each).rglob("test_*.py")) if (place.root / each).is_dir() else [place.root / each])
    ]
    stale = [each for each in files if digest_of(sources, each) not in known and each not in LEFT_OUT]
    if not stale:
        return
    hits = place.folder / "hits"
    hits.write_bytes(bytes(len(sources.lines)))
    marks = mutated_imports.open_hits(hits)
    mutant_runs.adopt_orphans()

    def zygote(own: Path, tell: Any) -> None:
        mutant_runs.silence_output()
        mutant_runs.adopt_orphans()
        mutated_imports.install({"root": str(place.root), "hits": str(hits), "offsets": sources.offsets}, own)
        fixtures = mutant_runs.Fixtures(marks)
        mutant_runs.collect(stale, lambda session: cover_files(place, session, fixtures, tell), fixtures)

    def take(event: dict[str, Any]) -> None:
        with open(file, "a", encoding="utf-8") as out:
            out.write(entry_of(sources, event["file"], event["tests"]))
        outcomes = Counter(each["outcome"] for each in event["tests"])
        taken = sum(each.get("seconds", 0) for each in event["tests"])
        print(f"{event['file']}: {dict(outcomes)}, {taken:.1f} s", flush=True)

    state = place.run(zygote, take, 3600, 7200, set())
    if state:
        raise SystemExit(f"the measurement of the tests ended too early: {state}")


def cover_files(place: Workplace, session: pytest.Session, fixtures: Any, tell: Any) -> None:
    """Each file of tests in a fork; what the session's fixtures make is kept."""
    files: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for name, items in files.items():
        ended: list[dict[str, Any]] = []
        begun: list[str] = []

        def take(event: dict[str, Any], ended: Any = ended, begun: Any = begun) -> None:
            (begun if "begins" in event else ended).append(event.get("begins", event))

        while items:
            state = place.run(
                lambda own, tell, items=items: measure(place, session, items, fixtures, own, tell), take, 150, 1800, set()
            )
            if state:
                ended.append({"test": begun[-1] if begun else items[0].nodeid, "outcome": state})
            done = {each["test"] for each in ended}
            items = [each for each in items if each.nodeid not in done] if state else []
        tell({"file": name, "tests": ended})


def measure(place: Workplace, session: pytest.Session, items: list[pytest.Item], fixtures: Any, own: Path, tell: Any) -> None:
    mutant_runs.use_folder(session.config, own, place.shared)
    mutant_runs.cover(items, fixtures, LONGEST, tell)
    made = own / "shared"
    if made.exists():
        shutil.copytree(made, place.shared, symlinks=True, dirs_exist_ok=True)


def read(file: Path) -> list[dict[str, Any]]:
    """The last row for each mutant, with its verdict `before` tests were added."""
    rows: dict[tuple[int, float], dict[str, Any]] = {}
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        row = json.loads(line)
        known = rows.get((row["seed"], row["number"]))
        row["before_tests"] = known["before_tests"] if known and row["added"] else row["verdict"]
        rows[row["seed"], row["number"]] = row
    return list(rows.values())


def campaign(place: Workplace, sources: Sources, options: argparse.Namespace) -> None:
    rows = {(row["seed"], row["number"]): row for row in read(options.out)}
    once_more = ALIVE if options.again or options.after else ()
    coverage = Coverage.load(place.folder / "coverage.jsonl", sources, place.tests)
    judge = Judge(place)
    judge.seconds = dict(zip(coverage.tests, coverage.seconds, strict=True))
    for number, mutant in wanted(sources, options):
        row = rows.get((options.seed, number))
        if options.rooms and room_of(mutant.file) not in options.rooms:
            continue
        if row is not None and (row["verdict"] not in once_more or row["operator"] == "none"):
            continue
        tests = coverage.select(mutant, options.seconds, options.most, 99 if mutant.function else 5)
        found = judge(mutant, tests) if tests else {"verdict": "not run", "tests": 0, "seconds": 0.0}
        known = {"seed": options.seed, "number": number, "room": room_of(mutant.file), "key": mutant.key}
        with open(options.out, "a", encoding="utf-8") as out:
            out.write(
                json.dumps(
                    {**known, **mutant.to_dict(), **found, "added": options.after},
                    ensure_ascii=False,
                )
                + "\n"
            )
        change = f"{mutant.key} {mutant.operator}: {mutant.before} -> {mutant.after}"
        print(number, found["verdict"], change, f"{found['seconds']} s", flush=True)
    judge.close()


def wanted(sources: Sources, options: argparse.Namespace) -> Iterator[tuple[float, Mutant]]:
    """The sample with its numbers; between two of them, now and then, nothing is changed."""
    for number, mutant in enumerate(sample(sources.root, sources.files, options.seed)[: options.count]):
        yield number, mutant
        if number % UNCHANGED_EVERY == UNCHANGED_EVERY - 1:
            yield number + 0.5, replace(mutant, candidate=-1, operator="none", before="", after="")


def wilson(part: int, whole: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z, share = 1.96, part / whole
    middle = share + z * z / (2 * whole)
    half = z * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    return (middle - half) / (1 + z * z / whole), (middle + half) / (1 + z * z / whole)


COMPARED = ("assert", "AssertionError", "Failed")
"""How a test says that something differs. Anything else is an error that a test without assertions would have shown, too."""
COLUMNS = (
    "room",
    "mutants",
    "without assertions",
    "caught before",
    "caught",
    "too long or crashed",
    "alive",
    "of these equivalent",
    "95 %",
)


def report(file: Path, reasons_file: Path = REASONS) -> str:
    """For each seed, a table by room, and the survivors with their reasons."""
    reasons = json.loads(reasons_file.read_text("utf-8")) if reasons_file.exists() else {}
    everything = sorted(read(file), key=lambda row: (row["seed"], row["file"], row["line"]))
    text = []
    for seed in sorted({row["seed"] for row in everything}):
        rows = [row for row in everything if row["seed"] == seed and row["operator"] != "none"]
        unchanged = [row for row in everything if row["seed"] == seed and row["operator"] == "none"]
        text += [f"seed {seed}", "", line_of(COLUMNS), line_of(["---", *["---:"] * 7, "---"])]
        for room in [*ROOMS, "all"]:
            some = [row for row in rows if room in ("all", row["room"])]
            if some:
                text.append(line_of((room, *counts(some, reasons))))
        noticed = sum(row["verdict"] != "survived" for row in unchanged)
        spent = sum(row.get("processor", 0) for row in rows)
        text += [
            "",
            f"unchanged code noticed {noticed} of {len(unchanged)} times; {spent / 60:.1f} minutes of processor time",
            "",
        ]
        for row in rows:
            if row["verdict"] not in CAUGHT:
                change = f"{row['file']}:{row['line']} {row['operator']}: `{row['before']}` → `{row['after']}`"
                text.append(f"- {row['verdict']} {change}: {reasons.get(reason_key(row), '?')}")
    return "\n".join(text) + "\n"


def line_of(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def counts(rows: list[dict[str, Any]], reasons: dict[str, str]) -> list[object]:
    caught = sum(row["verdict"] in CAUGHT for row in rows)
    before = sum(row["before_tests"] in CAUGHT for row in rows)
    other = sum(row["verdict"] in CAUGHT[1:] for row in rows)
    floor = sum(row["verdict"] in CAUGHT and not row["why"].startswith(COMPARED) for row in rows)
    alive = [row for row in rows if row["verdict"] not in CAUGHT]
    equivalent = sum(reasons.get(reason_key(row), "").startswith("equivalent") for row in alive)
    low, high = wilson(caught, len(rows))
    share = f"{100 * caught / len(rows):.1f} % ({100 * low:.1f}–{100 * high:.1f})"
    return [
        len(rows),
        f"{100 * floor / len(rows):.1f} %",
        f"{100 * before / len(rows):.1f} %",
        caught,
        other,
        len(alive),
        equivalent,
        share,
    ]


def reason_key(row: dict[str, Any]) -> str:
    return f"{row['seed']}/{row['number']} {row['key']}"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--folder", type=Path, help="keeps what was measured about the tests, and temporary files")
    made.add_argument("--count", type=int, default=500, help="mutants")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--seconds", type=float, default=12, help="processor time of the tests for one mutant")
    made.add_argument("--most", type=int, default=40, help="tests for one mutant")
    made.add_argument("--rooms", default="", help="only these, joined by commas")
    made.add_argument("--again", action="store_true", help="survivors once more")
    made.add_argument("--after", action="store_true", help="survivors once more, with tests that were added")
    made.add_argument("--wider", action="store_true", help="with the tests that `make check` selects for survivors' files")
    made.add_argument("--prepare", action="store_true", help="only measures the tests")
    made.add_argument("--report", action="store_true", help="prints the table and the survivors")
    made.add_argument("--out", type=Path, default=RESULTS)
    return made


def main() -> None:
    options = parser().parse_args()
    if options.report:
        print(report(options.out))
        return
    if options.folder is None:
        raise SystemExit("--folder is needed")
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    import_third_party()
    options.rooms = options.rooms.split(",") if options.rooms else list(ROOMS)
    tests = [each for room in options.rooms for each in ROOMS[room][1]]
    if options.wider:
        alive = [row["file"] for row in read(options.out) if row["room"] in options.rooms and row["verdict"] in ALIVE]
        tests += [each for file in alive for each in tests_of(ROOT, file)]
    place = Workplace(ROOT, options.folder.resolve(), distinct(tests))
    sources = Sources.read(ROOT)
    prepare(place, sources)
    if not options.prepare:
        campaign(place, sources, options)


if __name__ == "__main__":
    main()
