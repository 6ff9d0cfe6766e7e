"""Files that commands write: compressed if they are called .gz, and complete or not there."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.cli.input_and_output import opened, write_line


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    (tmp_path / "a.src").write_text("a b c\nd e\n")
    (tmp_path / "a.trg").write_text("c b a\ne d\n")
    return f"{tmp_path / 'a.src'},{tmp_path / 'a.trg'}"


def test_every_command_compresses_a_file_called_gz(weft: tiny.Shell, reverse_run: Path, pairs: str, tmp_path: Path) -> None:
    written = tmp_path / "out.gz"
    for command in (["translate", reverse_run, pairs.split(",")[0]], ["evaluate", reverse_run, "--data", pairs]):
        weft(*command, "-o", written)
        assert gzip.decompress(written.read_bytes()) == b"c b a\ne d\n"
    weft("align", reverse_run, "--data", pairs, "-o", written)
    assert len(gzip.decompress(written.read_bytes()).splitlines()) == 2
    assert weft("translate", reverse_run, written) and not list(tmp_path.glob("*.part"))


def test_lines_are_not_compressed_one_by_one(tmp_path: Path) -> None:
    with opened(tmp_path / "a.gz") as file:
        for _ in range(1000):
            write_line(file, "the same line")
    assert (tmp_path / "a.gz").stat().st_size < 200


def test_a_file_is_complete_or_the_old_one(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    written, part = tmp_path / "out.txt", tmp_path / "out.txt.part"
    written.write_text("the old one")
    broken = b"a b c\n" * 40 + b"\xff\n"
    weft.fails("translate", reverse_run, "-o", written, stdin=broken, says=["line 41", f"what was written is in {part}"])
    assert written.read_text() == "the old one"
    assert part.read_text() == "c b a\n" * 40
    weft.fails("translate", reverse_run, "-o", written, stdin=b"\xff\n")
    assert not part.exists(), "there is nothing to keep"
    weft("translate", reverse_run, "-o", written, stdin="a b c\n")
    assert written.read_text() == "c b a\n" and not part.exists()


def test_an_error_in_a_file_shows_before_anything_is_translated(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a b c\n" * 40 + b"\xff\n")
    weft.fails("translate", reverse_run, tmp_path / "in", "-o", tmp_path / "out", says=["line 41"])
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_modes_links_and_devices_are_respected(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    with opened(link) as file:
        file.write("new")
    assert link.is_symlink() and target.read_text() == "new" and target.stat().st_mode & 0o777 == 0o640
    mask = os.umask(0o022)
    try:
        with opened(tmp_path / "fresh") as file:
            file.write("new")
    finally:
        os.umask(mask)
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o644
    with opened(Path("/dev/null")) as file:
        file.write("gone")
    assert not Path("/dev/null").is_file()
