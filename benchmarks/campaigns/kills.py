"""Interrupts small trainings of every task, and commands that write files, and checks what is left after a restart.

    python benchmarks/campaigns/kills.py --out kills            # until 500 interruptions; the same call continues
    python benchmarks/campaigns/kills.py --out kills --case 17  # one of them again, with all that is said

An interruption is drawn from the seed and its number:

    operation  kill -9 in some operation on files; a write is done in part
    clock      kill -9 at some time
    fault      the disk is full, read-only, broken (EIO), or writes less than it is given, from some operation on
    power      kill -9, and what was not synced is lost from some moment on
    torn       kill -9, and any of what was not synced is lost; renames leave both names

Then the command is given again (a training that has begun: `weft train --resume`), and interrupted again, up to eight times;
the last time it may end. Checked are: files under their final names are whole after each interruption; a failing disk ends in
a message; the last restart succeeds; every file then has the bytes of an uninterrupted command; the log has the same records;
no temporary file is left. A line of JSON per command is appended to OUT/cases.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import shutil
import signal
import struct
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import power_cut
from forked_commands import FAULTS, Command, Disk, Ended, import_everything, preloaded
from kill_cases import BASES, COMMANDS, Places, Work, trainings, without_clocks

KINDS = ("operation", "fault", "power", "clock", "fault", "torn")

MOST = 8
"""The most interruptions of a command."""

FINISHED = re.compile("exists already|the folder is not empty")
"""The refusal of a command that was interrupted when its work was whole."""

DIFFERENT = ("train.log", "results.csv", "results.png", "README.md", "published.jsonl", "state.json", "run.lock")
"""Files with times, or with what happened to a run; so is the configuration of an adapter, which has the time left."""

TEMPORARY = (".tmp-", ".part", ".files", ".shards")


def digests(folder: Path) -> dict[str, Any]:
    """The output of a command: the bytes of each file, and the records of logs."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            continue
        if path.name in DIFFERENT or (path.name == "config.yaml" and "adapted" in path.parts):
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

    def prepare(self, names: Sequence[str] = BASES) -> None:
        """Trains the runs that commands read, once."""
        bases = self.places.bases
        for name in names:
            if not (bases / name).exists():
                work = self.places.training(self.trainings[name])
                self.fresh(work)
                self._must(work.arguments, "prepare")
                (self.places.work / "run").rename(bases / name)
        made = {"base.weft": ["pack", "base", "--out"], "marian": ["export", "portable", "--to", "transformers", "--out"]}
        for name, (command, run, *rest) in made.items():
            if run in names and not (bases / name).exists():
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
        """Interrupts a command several times, lets it end, and returns what was found."""
        draw = random.Random(f"{self.seed} {number}")
        name = self.names[(number + (self.seed - 1) * len(self.names) // 3) % len(self.names)]  # seeds begin at other ones
        reference, work = self.reference(name), self.work(name)
        self.fresh(work)
        found: dict[str, Any] = {"case": number, "work": name, "interruptions": []}
        failures: list[str] = []
        arguments, ended = work.arguments, Ended(1, "", 0.0)
        for _ in range(draw.randrange(1, MOST + 1)):
            each: dict[str, Any] = {"kind": draw.choice(KINDS)}
            ended = self._interrupt(arguments, reference, draw, each, not found["interruptions"])
            if FINISHED.search(ended.said):
                break
            found["interruptions"].append(each)
            failures += [f"{each['kind']}: {problem}" for problem in _problems(ended, each, str(self.places.work))]
            failures += [f"after {each['kind']}: {problem}" for problem in half_written(self.places.work)]
            if not ended.status:
                break
            arguments = self._restart(work)
        if ended.status and not FINISHED.search(ended.said):
            ended = self.run(arguments, "restart")
        left = [*differences(reference.digests, digests(self.places.work))]
        if ended.status and FINISHED.search(ended.said) and not left:
            found["finished"] = True  # it was killed when all was done, and does not overwrite its work
        elif ended.status or "Traceback" in ended.said:
            failures.append(f"the restart ended with {ended.status}: {ended.said.strip()[-600:]}")
        lost = any(each["kind"] in ("power", "torn") for each in found["interruptions"])
        failures += [each for each in left if not (lost and each.startswith("cache/") and each.endswith("is missing"))]
        return {**found, "failures": failures}

    def _restart(self, work: Work) -> Any:
        run = self.places.work / "run"
        begun = work.again and any((run / name).exists() for name in ("run.json", "config.yaml", "checkpoints"))
        return work.again if begun else work.arguments

    def _interrupt(
        self, arguments: Any, reference: Reference, draw: random.Random, found: dict[str, Any], first: bool
    ) -> Ended:
        """Starts the command and interrupts it, as `found` gets to know."""
        root, seed = self.places.work, draw.randrange(1 << 30)
        # What was interrupted before has less to do.
        at = draw.randrange(1, 2 + int(reference.operations * (1.0 if first else 0.5)))
        self.record.unlink(missing_ok=True)
        kind = found["kind"]
        if kind == "clock":
            found["after"] = round(draw.random() * reference.seconds * (1.0 if first else 0.5), 3)
            ended = self.run(arguments, "killed", after=found["after"])
        elif kind == "fault":
            fault = draw.choice(FAULTS[1:])
            lasts = draw.random() < 0.7 or fault == "read-only"
            found |= {"fault": fault, "lasts": lasts, "at": at}
            ended = self.run(arguments, "failed", Disk(root, self.record, fault, at, lasts, seed=seed))
            found |= {"status": ended.status, "said": ended.said.strip().splitlines()[-1:]}
        else:
            found["at"] = at
            disk = power_cut.PowerCut(root) if kind in ("power", "torn") else None
            ended = self.run(arguments, "killed", Disk(root, self.record, kill=at, seed=seed))
            if disk and ended.status:
                power_cut.write(disk.cut(self.record, draw, kind == "torn"), root)
        found["hit"] = bool(ended.status) if kind != "fault" else sum(1 for _ in power_cut.operations(self.record)) >= at
        return ended


def _problems(ended: Ended, interruption: dict[str, Any], folder: str) -> Iterator[str]:
    """Problems with the end of an interrupted command. folder: an error names something in it."""
    killed = interruption["kind"] != "fault"
    if (
        "Traceback" in ended.said
        or "Exception ignored" in ended.said
        or ended.status not in (0, -signal.SIGKILL if killed else 1)
    ):
        yield f"it ended with {ended.status}: {ended.said.strip()[-900:]}"
    elif not killed and ended.status and folder not in ended.said.partition("weft: error: ")[2]:
        yield f"there is no error message that names a file: {ended.said.strip()[-400:]}"
    elif not killed and ended.status and interruption["fault"] == "short":
        yield f"short writes are no error: {ended.said.strip()[-400:]}"


Found = dict[str, Any]


def collect(
    file: Path, kind: str, enough: Callable[[list[Found]], bool], minutes: float, run: Callable[[int], Found], *, again: bool
) -> list[Found]:
    """Runs the numbers that the file does not have yet until it has enough, and appends what each has found; returns all.

    kind: the name under which a line has its number · again: whether those that failed are repeated first
    """
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    done = {found[kind]: found for found in map(json.loads, lines)}  # of several lines the last one counts
    failed = [number for number, found in done.items() if found["failures"]] if again else []
    ends = time.monotonic() + 60 * minutes
    for number in chain(failed, (number for number in count() if number not in done)):
        if time.monotonic() > ends or (enough([*done.values()]) and number not in failed):
            break
        done[number] = run(number)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(done[number], ensure_ascii=False) + "\n")
        for failure in done[number]["failures"][:3]:
            print(f"{kind} {number}: {json.dumps(done[number])[:160]}: {failure}", flush=True)
    return [*done.values()]


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of commands, of interruptions that hit them, by kind, and of what went wrong."""
    hits = [each for case in cases for each in case["interruptions"] if each["hit"]]
    return {
        "commands": len(cases),
        "interruptions": len(hits),
        "kill -9": sum(each["kind"] != "fault" for each in hits),
        "kinds": dict(sorted(Counter(each.get("fault", each["kind"]) for each in hits).items())),
        "works": len({case["work"] for case in cases}),
        "failed": sum(bool(case["failures"]) for case in cases),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything; the same one continues")
    parser.add_argument("--kills", type=int, default=500, help="number of interruptions (500)")
    parser.add_argument("--minutes", type=float, default=60, help="after this time no further command begins (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="one of the trainings and commands")
    parser.add_argument("--case", type=int, help="only this case, in detail")
    parser.add_argument("--failed", action="store_true", help="first repeat the cases that have failed")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    preloaded(out)
    import_everything(out)
    campaign = Campaign(out, options.seed, options.only)
    if not options.only:
        campaign.prepare()
    if options.case is not None:
        print(json.dumps(campaign.case(options.case), indent=1))
        return

    def enough(found: list[Found]) -> bool:
        return summary(found)["interruptions"] >= options.kills

    done = collect(out / "cases.jsonl", "case", enough, options.minutes, campaign.case, again=options.failed)
    print(json.dumps(summary(done), indent=1))


if __name__ == "__main__":
    main()
