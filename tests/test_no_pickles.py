"""No file is ever unpickled, and none that is written holds a pickle: reading a file never executes what is in it."""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from weft.runs.packed_run import pack_run

ROOT = Path(__file__).parent.parent
FOLDERS = ("weft", "weft_studies", "weft_contract", "deploy", "benchmarks", "examples")

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dbm", "dill", "cloudpickle", "joblib", "pandas"}
"""Modules that read or write pickles, or code."""

ALLOWED = {
    "weft/interop/foreign_files.py": "the name of an exception of torch.load",
    "weft/serve/engine_process.py": "the name of an exception of a pipe",
    "benchmarks/l10n_peer.py": "the state of a peer's training, which is read again with weights_only",
    "benchmarks/campaigns/mutant_tests.py": "a helper of the tests beside it",
    "weft/worker_processes.py": "whether an exception of this process can be sent through a pipe",
}
"""Files that may import them, or use what is in NEVER, and why."""

REQUIRED = {
    ("torch", "load"): ("weights_only", True),
    ("np", "load"): ("allow_pickle", False),
    ("numpy", "load"): ("allow_pickle", False),
}
"""Functions that would unpickle without this argument."""

NEVER = {
    *(("torch", "save"), ("torch.jit", "load"), ("torch.package", "PackageImporter"), ("runpy", "run_path")),
    *(("yaml", name) for name in ("unsafe_load", "full_load", "UnsafeLoader", "FullLoader", "Loader")),
}


def faults(source: str, name: str = "a.py") -> Iterator[str]:
    """What is wrong with a source: imports, calls and attributes by which a file could be unpickled or executed."""
    for node in ast.walk(ast.parse(source)):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if name not in ALLOWED:
            yield from (f"{where}: imports {module}" for module in modules if module.split(".")[0] in MODULES)
        if isinstance(node, ast.Attribute) and (ast.unparse(node.value), node.attr) in NEVER and name not in ALLOWED:
            yield f"{where}: {ast.unparse(node)}"
        if isinstance(node, ast.Call):
            yield from _call_faults(node, where)


def _call_faults(node: ast.Call, where: str) -> Iterator[str]:
    called = node.func
    if isinstance(called, ast.Name) and called.id in ("eval", "exec", "__import__"):
        yield f"{where}: calls {called.id}"
    if not isinstance(called, ast.Attribute):
        return
    if called.attr in ("Unpickler", "read_pickle") or (called.attr == "loads" and ast.unparse(called.value) == "marshal"):
        yield f"{where}: calls {ast.unparse(called)}"
    keyword, value = REQUIRED.get((ast.unparse(called.value), called.attr), ("", None))
    given = {each.arg: each.value for each in node.keywords}
    if keyword and not (isinstance(found := given.get(keyword), ast.Constant) and found.value is value):
        yield f"{where}: {ast.unparse(called)} without {keyword}={value}"


WRONG = """
import pickle; from marshal import loads; import shelve as s; torch.load(f); torch.load(f, weights_only=False); np.load(f)
numpy.load(f, allow_pickle=True); torch.save(x, f); yaml.unsafe_load(t); yaml.load(t, yaml.FullLoader); eval(t); x.Unpickler(f)
"""


@pytest.mark.parametrize("source", WRONG.strip().replace("\n", "; ").split("; "))
def test_what_unpickles_is_found(source: str) -> None:
    assert list(faults(source))


def test_nothing_in_the_source_unpickles_a_file() -> None:
    wrong = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            wrong += [each for each in faults(file.read_text("utf-8"), name) if "calls eval" not in each or folder == "weft"]
    assert not wrong


def test_pickles_between_processes_come_from_this_process_only() -> None:
    tree = ast.parse((ROOT / "weft/worker_processes.py").read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("pickle.")]
    assert [ast.unparse(call) for call in calls] == ["pickle.loads(ForkingPickler.dumps(error))"]


def pickles(content: bytes, name: str) -> Iterator[str]:
    """The pickles in a file: itself, members of an archive, and arrays of objects."""
    if content[:1] == b"\x80" and content[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        yield name
    if content.startswith(b"\x93NUMPY") and b"'descr': '|O'" in content[:200]:
        yield f"{name} (an array of objects)"
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from pickles(archive.read(member), f"{name}/{member}")


def test_pickles_in_files_are_found(tmp_path: Path) -> None:
    import pickle

    import torch

    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pt")
    np.save(tmp_path / "a.npy", np.array([{}], object))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({}))
    for file in tmp_path.iterdir():
        assert list(pickles(file.read_bytes(), file.name)), file


def test_no_file_of_a_run_holds_a_pickle(reverse_run: Path, tmp_path: Path) -> None:
    pack_run(reverse_run, tmp_path / "a.weft")
    files = [file for folder in (reverse_run, tmp_path) for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 10 and any(file.suffix == ".weft" for file in files)
    assert not [found for file in files for found in pickles(file.read_bytes(), file.name)]
