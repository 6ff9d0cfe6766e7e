"""Writes the pairs that pass all filters. Data is read twice: first a sample is learnt from, then each pair is looked at once.

What is written so far is in OUT.part, with its state beside it; the same command continues there. A shard has the pairs of a
share of all hashes, so that equal pairs are in one shard, and all shards together have the pairs of the whole.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from weft.data.cleaning.duplicates import near_hash, pair_hash
from weft.data.cleaning.filters import Choices, PairChecker, normal
from weft.data.cleaning.learnt_statistics import LearntStatistics
from weft.data.formats import Pairs, Texts
from weft.errors import DataError
from weft.file_access import claim, naming, replace_file, same_file, sole_writer

BLOCK = 10_000
"""Pairs after which everything that is done is on disk."""

SCORED = 2000
"""Pairs whose cross-entropy sets the threshold of that filter."""

EXAMPLES = 20
"""Examples of each finding in a report: the pairs with the lowest hashes."""

Unlikely = Callable[[Texts], Sequence[bool]]
"""Says of each pair whether models find it unlikely."""

Example = tuple[int, str, str]
"""The hash of a pair, and the pair."""


@dataclass
class Findings:
    """The number of pairs that each filter found, with examples."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)

    def add(self, name: str, source: str, target: str) -> None:
        self.counts[name] += 1
        kept = self.examples.setdefault(name, [])
        rank = pair_hash(source, target)
        if len(kept) < EXAMPLES or rank < kept[-1][0]:
            kept.append((rank, source, target))
            kept.sort()
            del kept[EXAMPLES:]


@dataclass(frozen=True)
class CleaningJob:
    """A request to clean data: the files, and how.

    languages: those of both sides, if known · test: data none of whose sentences may stay · shard: (k, n), the k-th of n
    shares · left_out: a file for the pairs that are left out, as JSON lines with the name of the filter
    """

    data: Sequence[Pairs]
    out: str
    choices: Choices = field(default_factory=Choices)
    languages: tuple[str | None, str | None] = (None, None)
    test: Sequence[Pairs] = ()
    shard: tuple[int, int] = (1, 1)
    left_out: Path | None = None

    def identity(self, models: str) -> str:
        """A hash of everything that decides what is written. models: that of models that score pairs."""
        parts = [
            [pairs.digest() for pairs in self.data],
            self.choices.document(),
            self.languages,
            [pairs.digest() for pairs in self.test],
            self.shard,
            models,
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def clean(
    job: CleaningJob,
    make_unlikely: Callable[[Texts], Unlikely] | None = None,
    models: str = "",
    advance: Callable[[], None] = lambda: None,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Cleans data. Returns the report: counts and examples of each filter.

    make_unlikely: makes a filter by cross-entropy, given pairs that pass all others · models: names the models of this filter
    """
    with closing(PairFiles(job.out, job.left_out)) as output:
        state = output.resume(job.identity(models))
        if state["read"]:
            report(f"{job.out}: continuing after {state['read']:,} pairs")
        report(f"learning from {', '.join(pairs.name for pairs in job.data)}")
        learnt = LearntStatistics(chain.from_iterable(job.data), job.languages)
        if not learnt.total:
            raise DataError("there are no pairs to clean")
        checker = PairChecker(job.choices, learnt, test_sentences(job.test))
        unlikely = make_unlikely(_clean_sample(checker)) if make_unlikely else None
        for pair in output.written():
            checker.remember(checker.repaired(*pair))
        findings = Findings(
            Counter(state["counts"]), {name: [tuple(each) for each in kept] for name, kept in state["examples"].items()}
        )
        pairs, done = islice(chain.from_iterable(job.data), state["read"], None), state["read"]
        while block := list(islice(pairs, BLOCK)):
            rows = [pair for pair in block if _in_shard(*pair, job.shard)]
            candidates = [checker.repaired(*pair) for pair in rows]
            doubts = unlikely([each.texts for each in candidates]) if unlikely else [False] * len(rows)
            for pair, candidate, doubt in zip(rows, candidates, doubts, strict=True):
                flaw = checker.flaw(candidate, doubt)
                if flaw is None:
                    output.write(*candidate.texts)
                    findings.counts["kept"] += 1
                    findings.counts["repaired"] += candidate.texts != pair
                else:
                    output.leave_out(*pair, flaw)
                    findings.add(flaw, *pair)
                advance()
            done += len(block)
            output.save({"read": done, "counts": findings.counts, "examples": findings.examples})
        output.finish()
    return cleaning_report(job, learnt, findings)


def _clean_sample(checker: PairChecker) -> Texts:
    """Pairs of the sample that have no flaw, to which the cross-entropy of others is compared."""
    found = (checker.repaired(*pair) for pair in checker.learnt.sample)
    clean = (
        pair.texts for pair in found if not any(each.finds(pair, checker.learnt) for each in checker.choices.filters.values())
    )
    return list(islice(clean, SCORED))


def cleaning_report(job: CleaningJob, learnt: LearntStatistics, findings: Findings) -> dict[str, Any]:
    """The report of a cleaning as plain data."""
    counts = dict(findings.counts)
    kept, repairs = counts.pop("kept", 0), counts.pop("repaired", 0)
    return {
        "data": [pairs.name for pairs in job.data],
        "out": job.out,
        "shard": list(job.shard),
        "pairs": kept + sum(counts.values()),
        "kept": kept,
        "repaired": repairs,
        "languages": [language.shares for language in learnt.languages],
        "counts": counts,
        "examples": {name: [[source, target] for _, source, target in kept] for name, kept in findings.examples.items()},
        "entries_left_out": {pairs.name: dict(pairs.left_out) for pairs in job.data if pairs.left_out},
        "choices": job.choices.document(),
    }


def test_sentences(data: Sequence[Pairs]) -> frozenset[str]:
    """All sentences of test data, in the form in which equal sentences are equal."""
    return frozenset(normal(text) for pair in chain.from_iterable(data) for text in pair if text.strip())


def _in_shard(source: str, target: str, shard: tuple[int, int]) -> bool:
    """Whether a pair belongs to a shard. Nearly equal pairs belong to the same one."""
    return near_hash(" ".join(source.split()), " ".join(target.split())) % shard[1] == shard[0] - 1


class PairFiles:
    """The files that pairs are written to: a .tsv, .csv or .jsonl, or two text files; also .gz.

    Blocks are complete members of a compressed file, so that it can be cut after each of them.
    """

    def __init__(self, out: str, left_out: Path | None = None) -> None:
        self.out, self.left_out_file = out, left_out
        names = [part.strip() for part in out.split(",")]
        self.kind = Path(names[0].removesuffix(".gz")).suffix
        if len(names) > 2 or (len(names) == 1 and self.kind not in (".tsv", ".csv", ".jsonl")):
            raise DataError(f"{out}: name a .tsv, .csv or .jsonl file, or two text files such as clean.en,clean.de (also .gz)")
        self.files = [Path(name) for name in names] + ([left_out] if left_out else [])
        self.parts = [path.with_name(f"{path.name}.part") for path in self.files]
        self._waiting = [io.StringIO(newline="") for _ in self.files]
        self._state = self.parts[0].with_name(f"{self.parts[0].name}.state")
        self._identity, self._lock = "", ExitStack()

    def check(self, inputs: Sequence[str]) -> None:
        """Raises DataError if a file that is read would be overwritten."""
        for name in inputs:
            for path in (name, *name.partition("#")[0].split(",")):
                if any(same_file(Path(path), file) for file in self.files):
                    raise DataError(f"{self.out}: it would overwrite the data; choose another name")

    def resume(self, identity: str) -> dict[str, Any]:
        """The state of an earlier, interrupted call, if it was the same work; the files are cut where that state was saved."""
        self._lock.enter_context(sole_writer(self.parts[0], self.out))
        self._identity = identity
        fresh: dict[str, Any] = {"read": 0, "counts": {}, "examples": {}, "sizes": [0] * len(self.parts)}
        try:
            state = json.loads(self._state.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            state = fresh
        if not isinstance(state, dict) or state.get("identity") != identity:
            state = fresh
        if any(not path.exists() or path.stat().st_size < size for path, size in zip(self.parts, state["sizes"], strict=True)):
            state = fresh
        for path, size in zip(self.parts, state["sizes"], strict=True):
            with open(claim(path), "ab") as file:
                file.truncate(size)
        return state

    def written(self) -> Iterator[tuple[str, str]]:
        """The pairs in the unfinished files."""
        if len(self.out.split(",")) == 2:
            yield from zip(self._lines(0), self._lines(1), strict=True)
        elif self.kind == ".csv":
            yield from ((row[0], row[1]) for row in csv.reader(f"{line}\n" for line in self._lines(0)))
        elif self.kind == ".tsv":
            yield from ((line.split("\t")[0], line.split("\t")[1]) for line in self._lines(0))
        else:
            yield from ((record["source"], record["target"]) for record in map(json.loads, self._lines(0)))

    def _lines(self, place: int) -> Iterator[str]:
        opened = gzip.open if self.files[place].suffix == ".gz" else open
        with opened(self.parts[place], "rb") as file:
            yield from (line.decode("utf-8", "surrogatepass").removesuffix("\n") for line in file)

    def write(self, source: str, target: str) -> None:
        """Adds a pair."""
        if len(self.out.split(",")) == 2:
            for text, waiting in zip((source, target), self._waiting):
                waiting.write(f"{' '.join(text.split())}\n")
        elif self.kind == ".tsv":
            self._waiting[0].write(f"{' '.join(source.split())}\t{' '.join(target.split())}\n")
        elif self.kind == ".csv":
            csv.writer(self._waiting[0], lineterminator="\n").writerow((source, target))
        else:
            self._waiting[0].write(json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n")

    def leave_out(self, source: str, target: str, filter: str) -> None:
        """Adds a pair to those that are left out."""
        if self.left_out_file:
            record = {"source": source, "target": target, "filter": filter}
            self._waiting[-1].write(json.dumps(record, ensure_ascii=False) + "\n")

    def save(self, state: dict[str, Any]) -> None:
        """Writes everything to disk, and what was done."""
        sizes = []
        for path, waiting, part in zip(self.files, self._waiting, self.parts, strict=True):
            content = waiting.getvalue().encode("utf-8", "surrogatepass")
            waiting.seek(0)
            waiting.truncate()
            with naming(path), open(part, "ab") as file:
                file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" and content else content)
                file.flush()
                os.fsync(file.fileno())
                sizes.append(file.tell())
        replace_file(self._state, json.dumps({"identity": self._identity, "sizes": sizes, **state}, ensure_ascii=False))

    def close(self) -> None:
        """Lets other processes write these files."""
        self._lock.close()

    def finish(self) -> None:
        """Gives the files their names."""
        for path, part in zip(self.files, self.parts, strict=True):
            os.replace(part, path)
        self._state.unlink(missing_ok=True)
        self.close()
