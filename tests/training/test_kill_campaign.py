"""Short forms of the campaigns in benchmarks/campaigns, and the disk that they pretend to have."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks" / "campaigns"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the library that makes a disk fail is for Linux"
)


@pytest.fixture(autouse=True)
def _import_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def campaign(script: str, out: Path, *options: str) -> dict[str, Any]:
    """The summary of a campaign."""
    command = [sys.executable, str(FOLDER / f"{script}.py"), "--out", str(out), "--minutes", "5", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("{"), done.stdout
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_a_training_that_is_interrupted_in_every_way_ends_with_the_same_bits(tmp_path: Path) -> None:
    found = campaign("kills", tmp_path, "--only", "classification", "--kills", "4")
    assert found["interruptions"] >= 4 and found["failed"] == 0


@pytest.mark.slow
def test_resuming_and_averaging_at_once_damage_nothing(tmp_path: Path) -> None:
    found = campaign("races", tmp_path, "--only", "resume,average", "--pairs", "2")
    assert found["pairs"] == 2 and found["failed"] == 0


PRELUDE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from forked_commands import Disk
from weft.file_access import replace_file
root = Path(sys.argv[2])
Disk(root, Path(sys.argv[3]), *eval(sys.argv[4])).begin()
"""
"""Gives this process a disk of its own; what follows happens on it."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script on a disk at tmp_path/root. disk: the options of `Disk` after its paths"""
    library = import_module("forked_commands").compiled(tmp_path)
    (tmp_path / "root").mkdir()

    def call(script: str, *disk: Any) -> subprocess.CompletedProcess[str]:
        places = map(str, (FOLDER, tmp_path / "root", tmp_path / "record"))
        command = [sys.executable, "-c", PRELUDE + script, *places, repr(disk)]
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, start_new_session=True)

    return call


@pytest.mark.parametrize("torn", [False, True])
def test_a_replaced_file_survives_every_power_cut_and_a_plain_one_does_not(run: Run, torn: bool, tmp_path: Path) -> None:
    root, record, draw, new = tmp_path / "root", tmp_path / "record", random.Random(1), b"new" * 999
    for name in ("replaced", "plain"):
        (root / name).write_text("old")
    disk = import_module("power_cut").PowerCut(root)
    done = run('replace_file(root / "replaced", "new" * 999)\n(root / "plain").write_text("new" * 999)')
    assert done.returncode == 0, done.stderr
    assert {path: file.synced for path, file in disk.whole(record).items()} == {
        str(root / name): new for name in ("replaced", "plain")
    }
    found = [disk.cut(record, draw, torn) for _ in range(60)]
    contents = {name: {state[str(root / name)].synced for state in found} for name in ("replaced", "plain")}
    assert contents["replaced"] <= {b"old", new}
    assert not contents["plain"] <= {b"old", new}


@pytest.mark.parametrize("fault", ["full", "read-only", "broken"])
def test_a_failing_disk_fails_and_leaves_the_old_file(run: Run, fault: str, tmp_path: Path) -> None:
    (tmp_path / "root" / "file").write_text("old")
    done = run('replace_file(root / "file", "new" * 99999)', fault, 2)
    assert {"full": "No space left", "read-only": "Read-only file system", "broken": "Input/output error"}[fault] in done.stderr
    assert (tmp_path / "root" / "file").read_text() == "old"


def test_short_writes_are_continued(run: Run, tmp_path: Path) -> None:
    done = run('replace_file(root / "file", "new" * 99999)', "short", 1)
    assert done.returncode == 0 and (tmp_path / "root" / "file").read_text() == "new" * 99999


def test_a_process_is_killed_in_the_operation_that_was_chosen(run: Run, tmp_path: Path) -> None:
    for operation in (1, 2, 3, 4):
        done = run('replace_file(root / "file", "new")', "none", 0, True, operation)
        assert done.returncode == -9 and not (tmp_path / "root" / "file").exists()
    assert run('replace_file(root / "file", "new")', "none", 0, True, 99).returncode == 0
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["file"]
