"""Which tests run which lines of the rooms, and which of them to run against a mutant."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import runpy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from mutation_operators import Mutant

TRANSLATION = tuple(
    f"tests/tasks/test_{name}.py"
    for name in (
        "context_and_inline_terms",
        "docx",
        "explain_translation",
        "fuzzy_matches",
        "glossary",
        "markup",
        "nonautoregressive",
        "translated_files",
        "translation_memory",
        "word_alignment",
    )
)
ROOMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data": ("weft/data", ("tests/data",)),
    "search": ("weft/decoding", ("tests/decoding", *TRANSLATION)),
    "training": ("weft/training", ("tests/training",)),
    "inference": ("weft/tasks/translation", ("tests/decoding", *TRANSLATION)),
    "serve": ("weft/serve", ("tests/serve",)),
    "runs": ("weft/runs", ("tests/runs",)),
}
"""Name → the folder of the code, and the folders and files of its tests."""
FEW = 10
"""With fewer tests for a statement outside of functions, all that run anything of its file are asked."""
LONGEST = 1.0
"""Seconds of processor time that a test may take while its lines are measured."""
LONG = 15.0
"""Seconds that are expected of tests that take longer than that."""


SELECT = runpy.run_path(str(Path(__file__).parents[2] / "tests" / "helpers" / "changed_tests.py"))["select_tests"]


@lru_cache
def texts_of_tests(root: Path) -> dict[Path, str]:
    return {path.relative_to(root): path.read_text("utf-8") for path in sorted((root / "tests").rglob("test_*.py"))}


@lru_cache
def tests_of(root: Path, file: str) -> tuple[str, ...]:
    """The tests of a file: those of its room, and those that `make check` runs after a change of it."""
    return (*ROOMS[room_of(file)][1], *(path.as_posix() for path in SELECT(Path(file), texts_of_tests(root))))


def room_of(file: str) -> str:
    return next(name for name, (folder, _) in ROOMS.items() if file.startswith(folder + "/"))


def digest(*texts: bytes) -> str:
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


@dataclass(frozen=True)
class Sources:
    """The files of all rooms, and the place of each in one long list of lines."""

    root: Path
    files: list[str]
    offsets: dict[str, int]
    lines: list[str]

    @staticmethod
    def read(root: Path, folders: list[str] | None = None) -> Sources:
        folders = folders or [folder for folder, _ in ROOMS.values()]
        files = [each.relative_to(root).as_posix() for folder in folders for each in sorted((root / folder).rglob("*.py"))]
        offsets: dict[str, int] = {}
        lines: list[str] = []
        for file in files:
            offsets[file] = len(lines)
            lines += ["", *(root / file).read_text("utf-8").splitlines()]
        return Sources(root, files, offsets, lines)

    @property
    def digest(self) -> str:
        return digest("\n".join(self.lines).encode())

    def span(self, file: str) -> slice:
        following = [offset for offset in self.offsets.values() if offset > self.offsets[file]]
        return slice(self.offsets[file], min(following, default=len(self.lines)))


@dataclass
class Coverage:
    """For each test, the lines that it runs and its seconds of processor time, with the fixtures of its module."""

    sources: Sources
    tests: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    fixtures: list[float] = field(default_factory=list)
    """The part of `seconds` that the tests of a module share."""
    hits: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), bool))

    @staticmethod
    def load(file: Path, sources: Sources, tests: Sequence[str]) -> Coverage:
        """Known facts about the tests in these folders and files, as far as neither they nor the sources have changed since."""
        newest = {}
        for line in file.read_text("utf-8").splitlines() if file.exists() else ():
            entry = json.loads(line)
            newest[entry["file"]] = entry
        found = Coverage(sources)
        packed = []
        for entry in newest.values():
            if entry["digest"] != digest_of(sources, entry["file"]) or not entry["file"].startswith(tuple(tests)):
                continue
            for test in entry["tests"]:
                long = test.get("why", "").endswith("TooLong")
                if test["outcome"] == "passed" or long:
                    found.tests.append(test["test"])
                    found.seconds.append(test["seconds"] + long * LONG)
                    found.fixtures.append(test["seconds"] - test.get("own", test["seconds"]))
                    packed.append(np.frombuffer(base64.b64decode(test["hits"]), np.uint8))
        if packed:
            found.hits = np.unpackbits(np.stack(packed), axis=1, count=len(sources.lines)).astype(bool)
        return found

    def select(self, mutant: Mutant, seconds: float, most: int = 40, files: int = 99) -> list[str]:
        """Tests of the room that run the mutant: cheap ones first, and those that run little else."""
        covering = self._running(mutant)
        own = tests_of(self.sources.root, mutant.file)
        covering = [each for each in covering if self.tests[each].startswith(own)]
        if not covering:
            return []
        totals = self.hits[covering].sum(1)
        share = self.hits[covering][:, self.sources.span(mutant.file)].sum(1) / np.maximum(totals, 1)
        score = {at: (self.seconds[at] + 0.02) / (0.02 + float(part)) for at, part in zip(covering, share, strict=True)}
        seen: dict[str, int] = {}
        ranked = []
        for at in sorted(covering, key=lambda at: (score[at], self.tests[at])):
            name = self.tests[at].partition("[")[0]
            seen[name] = seen.get(name, 0) + 1
            ranked.append((score[at] * seen[name] ** 2, at))
        chosen: dict[str, list[str]] = {}
        spent, count = 0.0, 0
        for _, at in sorted(ranked):
            module = self.tests[at].partition("::")[0]
            cost = self.seconds[at] - self.fixtures[at] * (module in chosen)
            if count < most and (not count or spent + cost <= seconds) and (module in chosen or len(chosen) < files):
                chosen.setdefault(module, []).append(self.tests[at])
                spent, count = spent + cost, count + 1
        return [each for some in chosen.values() for each in some]

    def _running(self, mutant: Mutant) -> list[int]:
        """The tests that run a statement; for one at the level of a module or class, those that run lines with its name."""
        start = self.sources.offsets[mutant.file]
        found: np.ndarray = self.hits[:, start + mutant.statement]
        if not mutant.function:
            found = np.asarray(self.hits[:, self._readers(mutant)].any(1))
            if found.sum() < FEW:
                found |= self.hits[:, self.sources.span(mutant.file)].any(1)
        return [int(each) for each in np.flatnonzero(found)]

    def _readers(self, mutant: Mutant) -> list[int]:
        start = self.sources.offsets[mutant.file]
        tree = ast.parse("\n".join(self.sources.lines[self.sources.span(mutant.file)][1:]))
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno == mutant.statement:
                    return [start + line for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)]
                if node.lineno == mutant.statement and isinstance(node, (ast.Assign, ast.AnnAssign)):
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    word = re.compile(rf"\b{re.escape(ast.unparse(target))}\b")
                    return [
                        at for at, line in enumerate(self.sources.lines) if at != start + mutant.statement and word.search(line)
                    ]
        return []


def digest_of(sources: Sources, test_file: str) -> str:
    path = sources.root / test_file
    return digest(sources.digest.encode(), path.read_bytes() if path.exists() else b"")


def entry_of(sources: Sources, test_file: str, tests: list[dict[str, Any]]) -> str:
    """The line for what a test file runs."""
    return json.dumps({"file": test_file, "digest": digest_of(sources, test_file), "tests": tests}) + "\n"
