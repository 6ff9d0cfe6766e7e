"""The tests of what has changed since a commit, for `make check`: one line of arguments for each call of pytest.

A changed module selects the tests that mirror its name and those that import it; a changed mechanism, its part of the contract
suite. Without such a change, the contract is checked for one mechanism.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICK = "not slow and not gpu and not browser and not clients"
MOST = 12
"""Test files that import a changed module: of more, only those in the folder of its room are run."""


def changed_files(base: str) -> list[Path]:
    """Files that differ from a commit, and new ones."""
    commands = ("git", "diff", "--name-only", "--diff-filter=d", base), ("git", "ls-files", "--others", "--exclude-standard")
    found = [subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout for command in commands]
    return [Path(line) for text in found for line in text.splitlines()]


def select_tests(file: Path, tests: dict[Path, str]) -> list[Path]:
    """The test files for a changed file, given the text of all test files."""
    if file in tests:
        return [file]
    if file.parts[:2] == ("docs", "course"):
        return [Path("tests/test_readme.py"), Path("tests/test_course.py")]
    if file.parts[0] == "docs" or file.suffix == ".md":
        return [Path("tests/test_readme.py")]
    if file.suffix == ".yaml":
        return [Path("tests/test_recipes.py")]
    if file.suffix != ".py" or file.parts[0] not in ("weft", "weft_studies", "tests"):
        return []
    module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    imported = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import .*\b{re.escape(name)}\b")
    importing = [test for test, text in tests.items() if imported.search(text)]
    if len(importing) > MOST:
        importing = [test for test in importing if test.parts[1:2] == file.parts[1:2]]
    mirrored = [test for test in tests if test.stem == f"test_{file.stem}"]
    return [*dict.fromkeys([*mirrored, *importing])]


def mechanisms_of(files: Iterable[Path]) -> list[str]:
    """The kinds of attentions and mixers that changed files define."""
    from weft.config.registry import find_table

    tables = [find_table(name) for name in ("weft.attention:ATTENTIONS", "weft.attention.mixers:MIXERS")]
    changed = {".".join(file.with_suffix("").parts) for file in files}
    return sorted({kind for table in tables for kind, place in table.items() if str(place).partition(":")[0] in changed})


def main(base: str) -> None:
    files = changed_files(base)
    tests = {file.relative_to(ROOT): file.read_text("utf-8") for file in sorted((ROOT / "tests").rglob("test_*.py"))}
    chosen = dict.fromkeys(test for file in files for test in select_tests(file, tests))
    print(shlex.join(["-m", QUICK, "tests/test_layering.py", *map(str, chosen)]))
    kinds = mechanisms_of(files) or ["linear"]
    print(shlex.join(["-m", QUICK, "tests/contract/test_contract.py", "-k", " or ".join(kinds)]))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "HEAD")
