"""Bad input: fuzzed lines and fuzzed files through everything that weft reads, with counts of what happened.

    python benchmarks/campaigns/bad_input.py --out bad_input [--lines 1000000] [--files 20000] [--seed 1] [--minutes 60]

A case is a line or a file that is made by `bad_input_mutations` from its number and the seed, and read by
`bad_input_readers`. Reading it or refusing it with a WeftError is right. Everything else is a finding: another exception, a
crash of the process, more processor time than `SECONDS` and `PER_BYTE` allow, time that grows faster than the length when a
slow text is doubled, and more memory than `MEMORY` above that of the warm process. Cases run in forks of one process that has
imported everything, some at a time. `cases.jsonl` in --out has a line per block: a run that is stopped continues there.
`findings.jsonl` has each finding, and `--case lines:123` runs one case alone, with its traceback.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from bad_input_mutations import changed, fuzzed_bytes, fuzzed_line
from bad_input_readers import TEXTS, Reader, file_readers, line_readers, make_tokenizers

from weft.data.text_lines import read_lines
from weft.errors import WeftError

BLOCK = {"lines": 5_000, "files": 200}
"""Cases of a process."""

SECONDS, PER_BYTE = 2.0, 30e-6
"""Processor time that a case may take: this, and this for each byte."""

SLOW = 0.4
"""Seconds from which on the time of a text is measured again, at twice and at four times the length."""

GROWTH = 1.4
"""The largest power of the length that the time may grow by."""

MEMORY = 2 << 30
"""Bytes of memory that a case may take."""

TURNS = 12
"""Each reader of lines reads one line in so many, in turn, unless it is listed in `COSTLY`."""

COSTLY = {
    **dict.fromkeys(("sentencepiece tokens", "unigram tokens", "bpe tokens", "segments", "markdown text", "YAML value"), 96),
    **dict.fromkeys(("filters", "language"), 960),
}
"""The same for readers that take longer: those that identify languages take milliseconds."""

UNREAD = ("ctranslate2 model", "argos model", "a.tsv@idna", "a.tsv@unicode_escape", "listed files")
"""Readers that refuse even the files as they are, since weft writes such models only, or since the data does not fit."""

STUCK = 120
"""Seconds without progress, by the clock of the wall, after which a process is killed."""


class TooSlow(BaseException):
    """A case took more processor time than allowed. Not an Exception, so that no reader takes it for a damaged file."""


@dataclass
class Counts:
    """The results: by reader, how many cases were read and refused; findings."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {"read": self.read, "refused": self.refused, "findings": self.findings, "slowest": self.slowest}

    def add(self, other: dict[str, Any]) -> None:
        self.read.update(other["read"])
        self.refused.update(other["refused"])
        self.findings += other["findings"]
        self.slowest = max(self.slowest, other["slowest"])


def attempt(counts: Counts, name: str, size: int, read: Callable[[], object], case: str) -> float:
    """Reads one case, and notes what happened. Returns the processor seconds that it took."""
    allowed = SECONDS + PER_BYTE * size
    start = time.process_time()
    problem = None
    signal.setitimer(signal.ITIMER_PROF, allowed)
    try:
        read()
        counts.read[name] += 1
    except WeftError:
        counts.refused[name] += 1
    except TooSlow:
        problem = {"kind": "too slow", "what": f"more than {allowed:.1f} s", "where": _place()}
    except MemoryError:
        problem = {"kind": "memory", "what": f"more than {MEMORY >> 20:,} MiB", "where": _place()}
    except (Exception, SystemExit) as error:
        problem = {"kind": type(error).__name__, "what": str(error)[:200], "where": _place()}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    spent = time.process_time() - start
    counts.slowest = max(counts.slowest, spent / allowed)
    if problem:
        counts.findings.append({"case": case, "reader": name, **problem})
    return spent


def _place() -> str:
    """The innermost lines of weft's that the exception passed."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [f"{Path(each.filename).name}:{each.lineno}" for each in frames if "/weft" in each.filename]
    return " < ".join(reversed(own[-3:]))


class Lines:
    """Lines, each through the reader of files of lines as bytes, and through some of the readers of lines in turn."""

    def __init__(self, seed: int) -> None:
        self.seed, self.readers = seed, line_readers(make_tokenizers())
        for read in self.readers.values():  # what is loaded once is not loaded in each process
            with suppress(WeftError):
                read(TEXTS[0])

    def run(self, number: int, counts: Counts) -> None:
        rng = random.Random(f"{self.seed}/line/{number}")
        line = fuzzed_line(TEXTS, rng)
        content = fuzzed_bytes(line, rng)
        attempt(counts, "bytes", len(content), lambda: list(read_lines(iter([content]), "a")), f"lines:{number}")
        for place, (name, read) in enumerate(self.readers.items()):
            if (number + place) % COSTLY.get(name, TURNS):
                continue
            spent = attempt(counts, name, len(line), lambda read=read: read(line), f"lines:{number}")
            if spent > SLOW:
                self._check_growth(line, name, counts, number)

    def _check_growth(self, line: str, name: str, counts: Counts, number: int) -> None:
        """Notes a finding if four times the text takes more than 4 ** GROWTH times as long."""
        part = line[: len(line) // 4] or line

        def seconds(text: str) -> float:
            start = time.process_time()
            with suppress(WeftError, ValueError, RecursionError):
                self.readers[name](text)
            return time.process_time() - start

        short, long = min(seconds(part) for _ in range(3)), min(seconds(part * 4) for _ in range(2))
        if long <= SLOW or long <= 4**GROWTH * max(short, SLOW / 40):
            return
        if (longest := min(seconds(part * 16) for _ in range(2))) > 4**GROWTH * long:  # a busy machine hides less there
            what = f"{len(part):,} characters {short:.2f} s, four times as many {long:.2f} s, sixteen times {longest:.2f} s"
            counts.findings.append({"case": f"lines:{number}", "reader": name, "kind": "growth", "what": what, "where": ""})


class Files:
    """Folders of files of which one is changed, each for one reader."""

    def __init__(self, seed: int, readers: list[Reader], random_bytes: bool = False) -> None:
        self.seed, self.readers, self.random_bytes = seed, readers, random_bytes
        self.others = [content for reader in self.readers for content in reader.files.values() if len(content) < 100_000]
        self.check()

    def check(self) -> None:
        """Reads all files unchanged, which must be possible, so that fuzzing begins from what is valid."""
        refused = []
        for reader in self.readers:
            try:
                self._in_folder(reader, reader.files, lambda at, reader=reader: reader.read(at))
            except Exception as error:
                if not isinstance(error, WeftError) or reader.name not in UNREAD:
                    refused.append(f"{reader.name}: {type(error).__name__}: {error}")
        if refused:
            raise AssertionError("valid files are not read:\n" + "\n".join(refused))

    def run(self, number: int, counts: Counts) -> None:
        rng = random.Random(f"{self.seed}/file/{number}")
        reader = self.readers[number % len(self.readers)]
        name = rng.choice([*reader.files])
        whole, other = reader.files[name], rng.choice(self.others)
        content = rng.randbytes(len(whole)) if self.random_bytes else changed(whole, rng, name, other)
        files = {**reader.files, name: content}
        if rng.random() < 0.02 and len(files) > 1:
            del files[name]
        self._in_folder(
            reader,
            files,
            lambda at: attempt(counts, reader.name, sum(map(len, files.values())), lambda: reader.read(at), f"files:{number}"),
        )

    def _in_folder(self, reader: Reader, files: dict[str, bytes], read: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory(prefix="bad-input-", dir=SHARED_MEMORY) as place:
            at = Path(place) / "in"
            at.mkdir()
            for name, content in files.items():
                (at / name).parent.mkdir(parents=True, exist_ok=True)
                (at / name).write_bytes(content)
            read(at)


SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def in_fork(cases: Lines | Files, kind: str, first: int, end: int, out: Path) -> Counts:
    """Runs cases in forks, with another one after each that dies."""
    counts, at = Counts(), mmap.mmap(-1, 8)
    while first < end:
        found, aside = Counts(), out / "block.json"
        aside.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            _work(cases, first, end, at, aside)
        stopped = _wait(child, at)
        if aside.exists():
            counts.add(json.loads(aside.read_text("utf-8")))
            break
        number = struct.unpack("q", at[:8])[0]
        if number > first:  # the counts of the cases before it are lost with the process
            counts.add(in_fork(cases, kind, first, number, out).as_json())
        found.findings.append({"case": f"{kind}:{number}", "reader": "?", "kind": stopped, "what": "", "where": ""})
        counts.add(found.as_json())
        first = number + 1
    return counts


def _work(cases: Lines | Files, first: int, end: int, at: mmap.mmap, out: Path) -> NoReturn:
    """Runs cases in this process, then ends it."""
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, _too_slow)
        counts = Counts()
        for number in range(first, end):
            at[:8] = struct.pack("q", number)
            cases.run(number, counts)
        aside = out.with_suffix(".part")
        aside.write_text(json.dumps(counts.as_json(), ensure_ascii=True), "utf-8")
        aside.replace(out)
    finally:
        os._exit(0)


def _too_slow(*_: object) -> None:
    raise TooSlow


def _wait(child: int, at: mmap.mmap) -> str:
    """Waits for a process; kills it if it makes no progress. Returns how it ended."""
    before, since, stuck = at[:8], time.monotonic(), False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "hang" if stuck else f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended"
        if at[:8] != before:
            before, since = at[:8], time.monotonic()
        elif time.monotonic() - since > STUCK and not stuck:
            stuck = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)


def make_cases(kind: str, options: argparse.Namespace, folder: Path) -> Lines | Files:
    """The cases of a kind. folder: where valid files are made."""
    return Files(options.seed, file_readers(folder), options.random_bytes) if kind == "files" else Lines(options.seed)


def blocks(kind: str, count: int) -> Iterator[tuple[int, int]]:
    size = BLOCK[kind]
    return ((first, min(count, first + size)) for first in range(0, count, size))


def campaign(options: argparse.Namespace) -> Counts:
    """All cases that were not run before."""
    journal, total = options.out / "cases.jsonl", Counts()
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()] if journal.exists() else []
    done = {(each["kind"], each["first"]) for each in lines}
    for each in lines:
        total.add(each)
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="bad-input-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for kind, count in (("files", options.files), ("lines", options.lines)):
            waiting = [each for each in blocks(kind, count) if (kind, each[0]) not in done]
            cases: Lines | Files | None = None
            for first, last in waiting:
                if time.monotonic() > end:
                    break
                if cases is None:
                    cases = make_cases(kind, options, Path(folder))
                    gc.freeze()  # or else each process that collects garbage copies the memory of this one
                counts = in_fork(cases, kind, first, last, options.out)
                total.add(counts.as_json())
                with journal.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"kind": kind, "first": first, "cases": last - first, **counts.as_json()}) + "\n")
    return total


def report(total: Counts, journal: Path) -> str:
    """The counts of all readers as a table, and the kinds of findings."""
    done: Counter[str] = Counter()
    for line in journal.read_text("utf-8").splitlines():
        record = json.loads(line)
        done[record["kind"]] += record["cases"]
    rows = ["| reader | read | refused | findings |", "|---|--:|--:|--:|"]
    wrong = Counter(each["reader"] for each in total.findings)
    for name in sorted({*total.read, *total.refused, *wrong}):
        rows.append(f"| {name} | {total.read[name]:,} | {total.refused[name]:,} | {wrong[name]:,} |")
    rows.append(f"| all | {total.read.total():,} | {total.refused.total():,} | {wrong.total():,} |")
    kinds = Counter((each["reader"], each["kind"], each["where"]) for each in total.findings)
    example = {(each["reader"], each["kind"], each["where"]): f"{each['case']} {each['what']}" for each in total.findings}
    rows += [f"{count} × {' · '.join(kind)} · {example[kind]}" for kind, count in kinds.most_common()]
    heading = f"{done['lines']:,} lines, {done['files']:,} files; slowest: {total.slowest:.0%} of the time allowed"
    return "\n".join([heading, "", *rows]) + "\n"


def again(options: argparse.Namespace) -> None:
    """Runs all cases again that found something, and prints what they find now."""
    lines = [json.loads(line) for line in (options.out / "cases.jsonl").read_text("utf-8").splitlines()]
    found = sorted({each["case"] for line in lines for each in line["findings"]})
    left = Counts()
    with tempfile.TemporaryDirectory(prefix="bad-input-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for kind in ("files", "lines"):
            numbers = [int(case.partition(":")[2]) for case in found if case.startswith(kind)]
            if numbers:
                cases = make_cases(kind, options, Path(folder))
            for number in numbers:
                left.add(in_fork(cases, kind, number, number + 1, options.out).as_json())
    print("".join(f"{json.dumps(each)}\n" for each in left.findings), end="")
    print(f"{len(found)} cases again, {len(left.findings)} findings")


def one_case(options: argparse.Namespace) -> None:
    """Runs one case in this process and shows the traceback of what it raises."""
    kind, _, number = options.case.partition(":")

    def shown(counts: Counts, name: str, size: int, read: Callable[[], object], case: str) -> float:
        try:
            read()
        except WeftError as error:
            print(f"{name}: refused: {error}")
        except Exception:
            print(f"{name}:")
            traceback.print_exc()
        return 0.0

    globals()["attempt"] = shown
    with tempfile.TemporaryDirectory(prefix="bad-input-") as folder:
        cases = make_cases(kind, options, Path(folder))
        cases.run(int(number), Counts())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bad_input"))
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this time; the next call continues")
    parser.add_argument("--random-bytes", action="store_true", help="the floor: files of random bytes, not of changed ones")
    parser.add_argument("--case", help="one case, such as lines:123 or files:45, with its traceback")
    parser.add_argument("--again", action="store_true", help="only the cases of --out that found something, as after a change")
    options = parser.parse_args()
    if options.again:
        return again(options)
    if options.case:
        return one_case(options)
    options.out.mkdir(parents=True, exist_ok=True)
    total = campaign(options)
    shutil.rmtree(options.out / "block.json", ignore_errors=True)
    text = report(total, options.out / "cases.jsonl")
    (options.out / "report.md").write_text(text, "utf-8")
    (options.out / "findings.jsonl").write_text("".join(json.dumps(each) + "\n" for each in total.findings), "utf-8")
    print(text)


if __name__ == "__main__":
    main()
