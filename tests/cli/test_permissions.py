"""Files follow the umask, permission errors say so, and read-only runs serve for everything that only reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.decoding.shortlist import FILE, cached_file
from weft.file_access import why_unreadable, why_unwritable
from weft.runs.weight_files import read_tensors, write_tensors

BOUND = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Starts a process that permissions apply to, also if the user is root."""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o007])
def test_every_file_of_a_run_follows_the_umask(weft: tiny.Shell, tmp_path: Path, mask: int) -> None:
    cache, data = tmp_path / "cache", tiny.generated("reverse", 30)
    settings = {"train.steps": 1, "data.cache": str(cache), "train.tensorboard": True}
    with umask(mask):
        weft("train", "transformer-tiny", "--data", data, "--valid", data, "--out", tmp_path / "run", *tiny.sets(settings))
        weft("shortlist", tmp_path / "run")
        weft("average", tmp_path / "run")
        weft("translate", tmp_path / "run", "-o", tmp_path / "out.txt", stdin="a b\n")
    for path in tmp_path.rglob("*"):
        expected = (0o777 if path.is_dir() else 0o666) & ~mask
        assert path.stat().st_mode & 0o777 == expected, f"{path}: {oct(path.stat().st_mode)}"


def bound(home: Path, *arguments: str | Path, stdin: str = "a b c\n") -> subprocess.CompletedProcess[str]:
    """Runs command lines, separated by "--then", in one process that permissions apply to."""
    code = (
        "import os, sys\n"
        "from weft.cli import run\n"
        "commands = [[]]\n"
        "for word in sys.argv[1:]:\n"
        "    commands.append([]) if word == '--then' else commands[-1].append(word)\n"
        "sys.exit(max([run(command) for command in commands]))\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "OMP_NUM_THREADS": "1"}
    command = [*BOUND, sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, cwd=home, timeout=300)


@pytest.fixture
def read_only(reverse_run: Path, tmp_path: Path) -> Iterator[Path]:
    """A run that may only be read."""
    run = Path(shutil.copytree(reverse_run, tmp_path / "run"))
    (run / FILE).unlink(missing_ok=True)
    for path in (run, *run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield run
    for path in (run, *run.rglob("*"), *tmp_path.glob("closed")):
        path.chmod(0o755)


@pytest.mark.skipif(bool(BOUND) and shutil.which("setpriv") is None, reason="root needs setpriv to be bound by permissions")
def test_a_read_only_run_serves_and_everything_that_is_denied_says_so(read_only: Path, tmp_path: Path) -> None:
    run, home, data = read_only, tmp_path / "home", tiny.generated("reverse", 8, "test")
    home.mkdir()
    done = bound(
        home,
        *("translate", run, "--set", "decode.workers=1", "--then"),
        *("evaluate", run, "--data", data, "--samples", "2", "--against", run / ".", "--then"),
        *("explain", run, "a b c", "-o", home / "page.html", "--then"),
        *("shortlist", run, "--data", data, "--then"),
        *("average", run, "--out", home / "mean", "--then"),
        *("explain", run, "a b", "--set", "decode.shortlist=20", "-o", home / "short.html"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("c b a\n")
    assert "The shortlist is kept in your cache" in done.stderr and list((home / "cache").rglob("*.safetensors"))
    assert not (run / FILE).exists()

    (run / "model.safetensors").chmod(0)
    closed, locked, mine = tmp_path / "closed", tmp_path / "locked", home / "mine.txt"
    closed.mkdir()
    locked.mkdir(mode=0o555)
    (closed / "in.txt").write_text("a\n")
    mine.write_text("a\n")
    mine.chmod(0)
    closed.chmod(0)
    said = bound(
        home,
        *("translate", run, "--then", "train", "--resume", run, "--then", "average", run, "--then"),
        *("translate", run, closed / "in.txt", "--then", "translate", closed / "run", "--then"),
        *("translate", run, mine, "--then", "new", locked / "mine.yaml"),
    )
    assert said.returncode == 1 and "Traceback" not in said.stderr and "no such" not in said.stderr
    unreadable, resume, average, folder, run_folder, file, new = [
        line for line in said.stderr.splitlines() if line.startswith("weft: error")
    ]
    assert "may not read it" in unreadable and "chmod a+r" in unreadable and "model.safetensors" in unreadable
    assert all("the run cannot be changed: permission denied" in line for line in (resume, average))
    assert all(f"may not enter the folder {closed} (d---------, owner" in line for line in (folder, run_folder)), said.stderr
    assert "mine.txt: permission denied" in file
    assert f"may not write to the folder {locked}" in new and f"chmod a+w {locked}" in new


def test_what_is_missing_is_missing_and_what_is_denied_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_unreadable(tmp_path / "a") == "there is no such file"
    assert why_unreadable(tmp_path / "a" / "b") == "there is no such file"
    assert why_unreadable(tmp_path) is None and why_unwritable(tmp_path) is None
    write_tensors(tmp_path / "w.safetensors", {})

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert "permission denied: the user" in (why_unreadable(tmp_path / "w.safetensors") or "")
        with pytest.raises(Exception, match="permission denied"):
            read_tensors(tmp_path / "w.safetensors")


def test_the_cached_shortlist_belongs_to_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cached_file(Path("a")) == cached_file(tmp_path / "a") != cached_file(tmp_path / "b")
