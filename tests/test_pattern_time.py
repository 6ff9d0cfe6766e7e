"""Every regular expression takes time in proportion to its text, in the way in which it is used.

A pattern that is searched for begins anew at every place, so it must not run to the end of a text from many of them; one that
is matched at one place must not try many ways to divide the same letters.
"""

from __future__ import annotations

import ast
import importlib
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [file for package in ("weft", "weft_studies") for file in sorted((ROOT / package).rglob("*.py"))]

SEARCHES = ("sub", "subn", "search", "findall", "finditer", "split")
MATCHES = ("match", "fullmatch")

SMALL, LARGE = 1_000, 4_000
"""Characters of the two texts."""

SHORT, GROWTH = 0.002, 8.0
"""Seconds that are too few to be compared, and how many times as long the long text may take, which has four times as much."""

UNITS, COMBINED = 12, 8
"""The most fragments of a pattern that are repeated by themselves, and after another one."""


def written() -> dict[str, tuple[str, int, bool]]:
    """The patterns of the sources, by where they are: pattern, flags, and whether it is searched for."""
    found: dict[str, tuple[str, int, bool]] = {}
    sources = {file: file.read_text("utf-8") for file in FILES}
    for file, source in sources.items():
        place = file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        if re.search(r"^[A-Z_]+\b.*= re\.compile\(", source, re.MULTILINE):
            users = "\n".join(each for each in sources.values() if each is source or f"from {place} import" in each)
            for name, value in vars(importlib.import_module(place)).items():
                if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                    searched = re.search(rf"\b{name}\.({'|'.join(SEARCHES)})\b", users) is not None
                    found[f"{place}.{name}"] = value.pattern, value.flags, searched
        for call in ast.walk(ast.parse(source)) if "re." in source else ():
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            module, pattern = call.func.value, call.args[0]
            used = call.func.attr in (*SEARCHES, *MATCHES) and isinstance(module, ast.Name) and module.id == "re"
            if used and isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
                found[f"{place}:{call.lineno}"] = pattern.value, 0, call.func.attr in SEARCHES
    return found


def fragments(pattern: str) -> list[str]:
    """What texts may consist of that a pattern is slow with: signs that it names, a letter, a digit, a space and a stop."""
    plain = re.sub(r"\\[uU][0-9a-fA-F]{4,8}|\\x..|\\[dswbDSWB]|\(\?[a-zA-Z<!=:>]+", "", pattern)
    signs = dict.fromkeys([*"a0 ", *(sign for sign in plain if not sign.isalnum() and sign not in "()|?*+\\"), ".", "\n"])
    return [*signs][:UNITS] + re.findall(r"[A-Za-z]{3,}", plain)[:2]


def texts(pattern: str) -> Iterator[tuple[str, str]]:
    """How texts begin, and what is repeated in them."""
    units = fragments(pattern)
    yield from (("", unit) for unit in units)
    both = [(first, second) for first in units for second in units]
    yield from random.Random(1).sample(both, min(COMBINED, len(both)))
    yield from (("", first + second) for first, second in random.Random(2).sample(both, min(COMBINED, len(both))))


def seconds(compiled: re.Pattern[str], searched: bool, begin: str, unit: str, length: int) -> float:
    text = begin + unit * (length // len(unit)) + "\0"
    start = time.process_time()
    if searched:
        for _ in compiled.finditer(text):
            pass
    else:
        compiled.match(text)
        compiled.fullmatch(text)
    return time.process_time() - start


def slow_text(pattern: str, flags: int, searched: bool) -> str:
    """The beginning of a text for which the time grows too fast; empty if there is none."""
    compiled = re.compile(pattern, flags)
    for begin, unit in texts(pattern):
        if seconds(compiled, searched, begin, unit, LARGE) <= SHORT:
            continue
        short, long = (min(seconds(compiled, searched, begin, unit, length) for _ in range(3)) for length in (SMALL, LARGE))
        if long > max(SHORT, GROWTH * short):
            return f"{begin}{unit * 3}… takes {short:.4f} s, and four times as much of it {long:.4f} s"
    return ""


@pytest.mark.parametrize(
    ("pattern", "searched"), [("<[^>]*>", True), (r"(.*?)\s*$", False), (r"[-+#0]*\d*x", False), (r"[\w.]+@", True)]
)
def test_slow_patterns_are_caught(pattern: str, searched: bool) -> None:
    assert slow_text(pattern, 0, searched)


def test_no_pattern_is_superlinear() -> None:
    found = written()
    assert len(found) > 90 and {searched for *_, searched in found.values()} == {True, False}
    slow = {place: text for place, given in found.items() if (text := slow_text(*given))}
    assert not slow
