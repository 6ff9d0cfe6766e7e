"""Plants a bug: imports a module again with one passage changed, and all that import it, and runs the suite against it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import chain
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from tests.test_layering import PACKAGE, imports

RELOADED = re.compile(r"(weft|weft_contract|tests\.contract|tests\.reference)(\.|$)")


@dataclass(frozen=True)
class Bug:
    """A change to the source, and the checks that must catch it.

    module is a file of the package, in which `old`, which must occur once, becomes `new`. caught_by names cases of
    the suite; "loss" is the check of the output layer's loss, and "limits: …(…)" a test of tests/reference/test_limits.py
    with its arguments, and likewise for the other files there.
    """

    name: str
    module: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def change(self, source: str) -> str:
        count = source.count(self.old)
        assert count == 1, f"{self.name}: the passage occurs {count} times in {self.module}, not once; adapt the bug"
        return source.replace(self.old, self.new)


class _Changed(SourceFileLoader):
    """Compiles the changed source, and never uses cached bytecode."""

    def __init__(self, spec: ModuleSpec, bug: Bug) -> None:
        assert spec.origin is not None
        super().__init__(spec.name, spec.origin)
        self.bug = bug

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.bug.change(self.get_data(self.path).decode()), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self.bug = bug

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != f"weft.{self.bug.module}":
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        spec.loader = _Changed(spec, self.bug)
        return spec


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Inside this context the suite, the module with the bug, and all modules that import it are loaded afresh."""
    spec = importlib.util.find_spec(f"weft.{bug.module}")
    assert spec is not None and spec.origin is not None
    bug.change(Path(spec.origin).read_text())
    before, affected = _loaded(), _importers(f"weft.{bug.module}")
    for name in before:
        if name in affected or name.split(".")[0] != "weft":
            _unload(name, before)
    finder = _Finder(bug)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in _loaded():
            _unload(name, before)
        for name, module in before.items():
            sys.modules[name] = module
            package, _, last = name.rpartition(".")
            if package in before:
                setattr(before[package], last, module)


def _unload(name: str, before: dict[str, ModuleType]) -> None:
    """Forgets a module, also as an attribute of its package, where `from package import module` would find it."""
    del sys.modules[name]
    package, _, last = name.rpartition(".")
    if package in before:
        vars(before[package]).pop(last, None)


@functools.cache
def _import_graph() -> dict[str, set[str]]:
    """The modules of the package with what they import."""
    files = {file: ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): {each for _, each in imports(file, PACKAGE)} for file, name in files.items()}


def _importers(module: str) -> set[str]:
    """A module and all that import it, directly or not."""
    found, size = {module}, 0
    while size < len(found):
        size = len(found)
        found |= {name for name, imported in _import_graph().items() if imported & found}
    return found


def find(case: str) -> Callable[[], Any]:
    """Imports the suite, and returns the function that runs the case of that name."""
    torch.manual_seed(0)
    if case == "loss":
        check = importlib.import_module("tests.contract.test_loss").check_linear_loss
        return lambda: check(0.1, 10)
    file, colon, rest = case.partition(": ")
    if colon:
        module = importlib.import_module(f"tests.reference.test_{file}")
        test, _, arguments = rest.partition("(")
        return lambda: getattr(module, f"test_{test}")(*filter(None, arguments.rstrip(")").split(", ")))
    suite = importlib.import_module("weft_contract.suite")
    parts = suite.of_mechanisms, suite.of_decoders, suite.of_language_models, suite.of_poolings
    return dict(chain.from_iterable(part(case) for part in parts))[case]


def _loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if RELOADED.match(name)}
