"""Other code for some modules of this process and of those that it starts: a mutant, or marks of the lines that run.

A process that starts with `FOLDER` of this file as a `sitecustomize` on its path reads what to do from the environment.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import mmap
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import mutation_operators

PLAN = "MUTATED_IMPORTS"
"""The environment variable with the plan, as JSON."""
SITE = "import sys; sys.path.append({folder!r}); import mutated_imports; mutated_imports.follow_plan()\n"


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with other code than its file has."""

    def __init__(self, name: str, path: str, code: CodeType, hits: mmap.mmap | None) -> None:
        super().__init__(name, path)
        self.code, self.hits = code, hits

    def get_code(self, fullname: str) -> CodeType:
        return self.code

    def exec_module(self, module: ModuleType) -> None:
        if self.hits is not None:
            module.__dict__["_hits"] = self.hits
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the plan: `mutant` has a file and a candidate, `offsets` the place of each file in `hits`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.root, self.mutant, self.offsets = plan["root"], plan.get("mutant"), plan.get("offsets", {})
        files = [self.mutant["file"]] if self.mutant else self.offsets
        self.packages = {file.partition("/")[0] for file in files}
        self.hits = open_hits(Path(plan["hits"])) if self.offsets else None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.packages:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not spec.origin:
            return None
        file = os.path.relpath(spec.origin, self.root)
        if self.mutant and file == self.mutant["file"]:
            code = compiled(self.root, file, self.mutant["candidate"])
        elif file in self.offsets:
            tree = mutation_operators.instrumented(Path(spec.origin).read_text("utf-8"), self.offsets[file])
            code = compile(tree, spec.origin, "exec", dont_inherit=True)
        else:
            return None
        spec.loader = _Loader(name, spec.origin, code, self.hits)
        return spec


def compiled(root: str, file: str, candidate: int) -> CodeType:
    path = Path(root, file)
    tree = mutation_operators.mutated(path.read_text("utf-8"), candidate)
    return compile(tree, str(path), "exec", dont_inherit=True)


def open_hits(file: Path) -> mmap.mmap:
    """The marks, shared by all processes that open them."""
    with open(file, "r+b") as opened:
        return mmap.mmap(opened.fileno(), 0)


def follow_plan() -> None:
    plan = os.environ.get(PLAN)
    if plan:
        sys.meta_path.insert(0, _Finder(json.loads(plan)))


def install(plan: dict[str, Any], folder: Path) -> None:
    """For this process, and by a `sitecustomize` in `folder` for those that it starts."""
    (folder / "sitecustomize.py").write_text(SITE.format(folder=str(Path(__file__).parent)))
    os.environ[PLAN] = json.dumps(plan)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    follow_plan()


Functions = dict[tuple[str, str], list[FunctionType]]


def functions_of(root: str) -> Functions:
    """All functions of files below a folder by file and `line:name`."""
    found: Functions = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(root):
            code = each.__code__
            found.setdefault((code.co_filename, f"{code.co_firstlineno}:{code.co_name}"), []).append(each)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def replace_function(functions: Functions, root: str, mutant: dict[str, Any]) -> bool:
    """Puts the code of a mutant into the functions that exist already; False if that cannot be done."""
    path, name = str(Path(root, mutant["file"])), mutant["function"]
    found = functions.get((path, name), [])
    for code in _codes(compiled(root, mutant["file"], mutant["candidate"])) if found else ():
        if f"{code.co_firstlineno}:{code.co_name}" == name:
            if any(each.__code__.co_freevars != code.co_freevars for each in found):
                return False
            for each in found:
                each.__code__ = code
            return True
    return False
