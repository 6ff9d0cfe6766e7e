"""Interrupts small trainings of every task, and commands that write files, and checks what is left after a restart.

    python benchmarks/campaigns/kills.py --out kills            # 500 interruptions; the same call continues
    python benchmarks/campaigns/kills.py --out kills --case 17  # one of them again, with all that is said

An interruption is drawn from the seed and its number:

    operation  kill -9 in some operation on files; a write is done in part
    clock      kill -9 at some time
    fault      the disk is full, read-only, broken (EIO), or writes less than it is given, from some operation on
    power      kill -9, and what was not synced is lost from some moment on
    torn       kill -9, and any of what was not synced is lost; renames leave both names

Then the command is given again (a training that has begun: `weft train --resume`), and in a quarter of the cases killed once
more. Checked are: files under their final names are whole before the restart; a failing disk ends in a message; the last
restart succeeds; every file then has the bytes of an uninterrupted command; the log has the same records; no temporary file is
left. A line of JSON per case is appended to OUT/cases.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import struct
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import power_cut
from forked_commands import FAULTS, Command, Disk, Ended, import_everything, preloaded
from kill_cases import BASES, COMMANDS, Places, Work, trainings, without_clocks

KINDS = ("operation", "fault", "power", "clock", "fault", "torn")
AGAIN = 0.25
"""The share of cases whose restart is killed, too."""

DIFFERENT = ("train.log", "results.csv", "results.png", "README.md", "published.jsonl", "state.json", "run.lock")
"""Files with times, or with what happened to a run."""

TEMPORARY = (".tmp-", ".part", ".files", ".shards")


def digests(folder: Path) -> dict[str, Any]:
    """What a command has made: the bytes of each file, and the records of logs."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            continue
        if path.name in DIFFERENT:
            found[name] = "there"
        elif path.name in ("log.jsonl", "rounds.json", "adapted.json"):
            text = path.read_text("utf-8")
            records = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
            found[name] = without_clocks(records)
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def differences(expected: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*expected, *found}):
        if name not in found:
            yield f"{name} is missing"
        elif name not in expected:
            yield f"{name} is left over"
        elif expected[name] != found[name]:
            yield f"{name} differs"


def half_written(folder: Path) -> Iterator[str]:
    """Files below a folder that have their final names, and are not whole."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        if not path.is_file() or any(mark in part for part in inner for mark in TEMPORARY):
            continue
        problem = problem_of(path)
        if problem:
            yield f"{path.relative_to(folder)}: {problem}"


def problem_of(path: Path) -> str:
    """Why a file is not whole; empty if it is, or if its format does not say."""
    try:
        if path.suffix == ".safetensors":
            with open(path, "rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(size))
            ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
            if path.stat().st_size != 8 + size + max(ends, default=0):
                return "cut short"
        elif path.name == "state.json":
            for name, facts in json.loads(path.read_text("utf-8"))["files"].items():
                if hashlib.sha256((path.parent / name).read_bytes()).hexdigest() != facts["sha256"]:
                    return f"{name} has another hash"
        elif path.suffix == ".json":
            json.loads(path.read_text("utf-8"))
        elif path.suffix == ".weft":
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() or ""
        elif path.name == "config.yaml" and not path.read_text("utf-8").rstrip().endswith(("}", "]", "null", "false", "true")):
            return "" if path.stat().st_size > 1000 else "cut short"
    except (OSError, ValueError, KeyError, struct.error, zipfile.BadZipFile) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@dataclass(frozen=True)
class Reference:
    """An uninterrupted command: what it makes, how many operations it needs, and its time."""

    digests: dict[str, Any]
    operations: int
    seconds: float


class Campaign:
    """The cases of a folder. A case is a number; its draws follow from the seed and the number."""

    def __init__(self, out: Path, seed: int, only: str = "") -> None:
        self.places, self.seed = Places(out), seed
        self.trainings = trainings()
        names = [*(name for name in self.trainings if name not in BASES), *COMMANDS]
        self.names = [name for name in names if not only or name == only]
        self.references: dict[str, Reference] = {}
        self.record = out / "record"
        for folder in (self.places.data, self.places.bases, out / "said"):
            folder.mkdir(parents=True, exist_ok=True)

    def work(self, name: str) -> Work:
        return self.places.command(name) if name in COMMANDS else self.places.training(self.trainings[name])

    def run(self, arguments: Any, said: str, disk: Disk | None = None, after: float | None = None) -> Ended:
        """Runs a command to its end, or kills it after some seconds."""
        environment = {"XDG_CACHE_HOME": str(self.places.work / "home"), "TMPDIR": str(self.places.out)}
        command = Command(
            arguments, folder=self.places.out, said=self.places.out / "said" / said, disk=disk, environment=environment
        )
        if after is not None:
            time.sleep(after)
            command.kill()
        return command.wait()

    def fresh(self, work: Work) -> None:
        """Makes the folder as it is before the command."""
        shutil.rmtree(self.places.work, ignore_errors=True)
        self.places.work.mkdir()
        self.record.unlink(missing_ok=True)
        if work.base:
            shutil.copytree(self.places.bases / work.base, self.places.work / "run")

    def prepare(self) -> None:
        """Trains the runs that commands read, once."""
        bases = self.places.bases
        for name in BASES:
            if not (bases / name).exists():
                work = self.places.training(self.trainings[name])
                self.fresh(work)
                self._must(work.arguments, "prepare")
                (self.places.work / "run").rename(bases / name)
        made = {"base.weft": ["pack", "base", "--out"], "marian": ["export", "portable", "--to", "transformers", "--out"]}
        for name, (command, run, *rest) in made.items():
            if not (bases / name).exists():
                self._must([command, str(bases / run), *rest, str(bases / name)], "prepare")

    def _must(self, arguments: Any, said: str) -> Ended:
        ended = self.run(arguments, said)
        if ended.status:
            raise SystemExit(f"{' '.join(arguments[:3])} ended with {ended.status}: {ended.said[-2000:]}")
        return ended

    def reference(self, name: str) -> Reference:
        """The command without interruption; the second of two, so that what Python compiles and imports is ready."""
        if name not in self.references:
            work = self.work(name)
            self.fresh(work)
            disk = power_cut.PowerCut(self.places.work)
            began = time.monotonic()
            ended = self.run(work.arguments, "reference", Disk(self.places.work, self.record))
            if ended.status or not any(self.places.work.iterdir()):
                raise SystemExit(f"{name}: ended with {ended.status} without interruption: {ended.said[-2000:]}")
            seconds = time.monotonic() - began
            seen = {path for path, file in disk.whole(self.record).items() if file is not None}
            there = {str(path) for path in self.places.work.rglob("*") if path.is_symlink() or not path.is_dir()}
            if seen != there:
                raise SystemExit(f"{name}: the record does not have {sorted(seen ^ there)[:5]}")
            count = sum(1 for _ in power_cut.operations(self.record))
            self.references[name] = Reference(digests(self.places.work), count, seconds)
        return self.references[name]

    def case(self, number: int) -> dict[str, Any]:
        """Interrupts a command, restarts it, and returns what was found."""
        draw = random.Random(f"{self.seed} {number}")
        # Every piece of work meets every kind in turn.
        name, kind = self.names[number % len(self.names)], KINDS[(number + number // len(self.names)) % len(KINDS)]
        reference, work = self.reference(name), self.work(name)
        self.fresh(work)
        found: dict[str, Any] = {"case": number, "work": name, "kind": kind}
        failures = [*self._interrupt(work, reference, kind, draw, found)]
        failures += [f"before the restart: {each}" for each in half_written(self.places.work)]
        if draw.random() < AGAIN:
            found["again"] = draw.randrange(1, reference.operations + 1)
            disk = Disk(self.places.work, self.record, kill=found["again"], seed=number)
            self.run(self._restart(work), "again", disk)
        ended = self.run(self._restart(work), "restart")
        if ended.status or "Traceback" in ended.said:
            failures.append(f"the restart ended with {ended.status}: {ended.said.strip()[-600:]}")
        else:
            failures += differences(reference.digests, digests(self.places.work))
        return {**found, "failures": failures}

    def _restart(self, work: Work) -> Any:
        run = self.places.work / "run"
        begun = work.again and any((run / name).exists() for name in ("run.json", "config.yaml", "checkpoints"))
        return work.again if begun else work.arguments

    def _interrupt(
        self, work: Work, reference: Reference, kind: str, draw: random.Random, found: dict[str, Any]
    ) -> Iterator[str]:
        """Starts the command and interrupts it. Yields what is wrong with its end."""
        root, at = self.places.work, draw.randrange(1, reference.operations + 1)
        if kind == "clock":
            found["after"] = round(draw.random() * reference.seconds, 3)
            self.run(work.arguments, "killed", after=found["after"])
            return
        found["at"] = at
        if kind != "fault":
            disk = power_cut.PowerCut(root) if kind in ("power", "torn") else None
            self.run(work.arguments, "killed", Disk(root, self.record, kill=at, seed=draw.randrange(1 << 30)))
            if disk:
                power_cut.write(disk.cut(self.record, draw, kind == "torn"), root)
            return
        fault, lasts = draw.choice(FAULTS[1:]), draw.random() < 0.7
        found |= {"fault": fault, "lasts": lasts}
        ended = self.run(work.arguments, "failed", Disk(root, self.record, fault, at, lasts, seed=draw.randrange(1 << 30)))
        found |= {"status": ended.status, "said": ended.said.strip().splitlines()[-1:]}
        if "Traceback" in ended.said or "Exception ignored" in ended.said or ended.status not in (0, 1):
            yield f"the failing disk ended in {ended.status}: {ended.said.strip()[-900:]}"
        elif ended.status and "weft: error: " not in ended.said:
            yield f"there is no error message: {ended.said.strip()[-400:]}"
        elif ended.status and fault == "short":
            yield f"short writes are no error: {ended.said.strip()[-400:]}"
        elif not ended.status:
            yield from (f"it ended well, but {each}" for each in differences(reference.digests, digests(root)))


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of cases and of failed ones, by kind."""
    kinds = Counter(case.get("fault", case["kind"]) for case in cases)
    failed = Counter(case.get("fault", case["kind"]) for case in cases if case["failures"])
    works = {case["work"] for case in cases}
    return {
        "cases": len(cases),
        "kills": sum(case["kind"] != "fault" for case in cases) + sum("again" in case for case in cases),
        "works": len(works),
        "kinds": {kind: {"cases": count, "failed": failed[kind]} for kind, count in sorted(kinds.items())},
        "failed": sum(failed.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything; the same one continues")
    parser.add_argument("--kills", type=int, default=500, help="number of cases (500)")
    parser.add_argument("--minutes", type=float, default=60, help="after this time no further case begins (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="one of the trainings and commands")
    parser.add_argument("--case", type=int, help="only this case, in detail")
    parser.add_argument("--failed", action="store_true", help="first repeat the cases that have failed")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    preloaded(out)
    import_everything(out)
    campaign = Campaign(out, options.seed, options.only)
    campaign.prepare()
    if options.case is not None:
        print(json.dumps(campaign.case(options.case), indent=1))
        return
    file, ends = out / "cases.jsonl", time.monotonic() + 60 * options.minutes
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    done = {case["case"]: case for case in map(json.loads, lines)}  # the last line of a case counts
    failed = [number for number, case in done.items() if case["failures"]] if options.failed else []
    for number in (*failed, *(number for number in range(options.kills) if number not in done)):
        if time.monotonic() > ends:
            break
        done[number] = campaign.case(number)
        with file.open("a", encoding="utf-8") as out_lines:
            out_lines.write(json.dumps(done[number], ensure_ascii=False) + "\n")
        for failure in done[number]["failures"][:3]:
            print(f"case {number}, {done[number]['work']}, {done[number]['kind']}: {failure}", flush=True)
    print(json.dumps(summary([*done.values()]), indent=1))


if __name__ == "__main__":
    main()
