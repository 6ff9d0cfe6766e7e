"""Lines are answered as they come, at a terminal and in a pipe; a text on the command line is translated."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from weft.cli.input_and_output import LiveLines, open_input
from weft.data.text_lines import read_lines
from weft.errors import DataError

ROOT = Path(__file__).parent.parent.parent
WAIT = 120.0
"""Seconds after which a test gives up."""


@contextmanager
def running(*arguments: str | Path, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`weft` in a process of its own, with its output in pipes unless `streams` says otherwise."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "weft", *map(str, arguments), "--device", "cpu"]
    # A test that runs in the background of a shell ignores interrupts, and so would the process.
    listens = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment, preexec_fn=listens, **{**pipes, **streams}) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream: Any, wanted: bytes) -> bytes:
    """What comes from a stream or descriptor, up to `wanted`."""
    found = b""
    while wanted not in found:
        assert select.select([stream], [], [], WAIT)[0], f"{wanted!r} did not come: {found!r}"
        block = os.read(stream if isinstance(stream, int) else stream.fileno(), 1 << 12)
        assert block, f"the end came before {wanted!r}: {found!r}"
        found += block
    return found


def test_a_pipe_is_answered_line_by_line_until_control_c(reverse_run: Path) -> None:
    with running("translate", reverse_run) as process:
        assert process.stdin and process.stdout and process.stderr
        for line, answer in ((b"a b c\n", b"c b a\n"), (b"\n", b"\n"), (b"d e\n", b"e d\n")):
            process.stdin.write(line)
            process.stdin.flush()
            assert read_until(process.stdout, b"\n") == answer
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 130
        assert b"Traceback" not in process.stderr.read()


def test_a_terminal_shows_a_prompt_and_ends_with_control_d(reverse_run: Path) -> None:
    ours, theirs = pty.openpty()
    with running("translate", reverse_run, stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        assert b"Ctrl-D" in read_until(ours, b"> ")
        os.write(ours, b"a b c\n")
        assert read_until(process.stdout, b"\n") == b"c b a\n"
        read_until(ours, b"> ")
        os.write(ours, b"\x04")
        assert process.wait(WAIT) == 0
    os.close(ours)


def test_lines_are_ready_when_they_are_complete() -> None:
    out, into = os.pipe()
    lines = LiveLines(out)
    assert not lines.ready()
    os.write(into, b"one\ntwo\nthr")
    assert lines.ready() and next(lines) == b"one\n"
    assert lines.ready() and next(lines) == b"two\n"
    assert not lines.ready(), "half a line is not a line"
    os.write(into, b"ee\nfour")
    assert lines.ready() and next(lines) == b"three\n"
    os.close(into)
    assert lines.ready() and list(lines) == [b"four"]
    assert lines.ready() and list(lines) == []
    os.close(out)


def test_a_line_without_end_is_refused_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cli.input_and_output.LONGEST", 1000)
    monkeypatch.setattr("weft.data.text_lines.LONGEST", 1000)
    out, into = os.pipe()
    os.write(into, b"a b\n" + b"x" * 1500)  # the line goes on
    lines = read_lines(LiveLines(out), "standard input")
    assert next(lines) == "a b"
    with pytest.raises(DataError, match=r"standard input, line 2: the line has more than 1,000 characters"):
        next(lines)
    os.close(into)
    os.close(out)


def test_json_lines_have_the_source(weft: tiny.Shell, reverse_run: Path) -> None:
    for flags in (("--json",), ("--n-best", "2", "--beam", "2")):
        found = [json.loads(line) for line in weft("translate", reverse_run, *flags, stdin="a b\nc d! e f!\n").splitlines()]
        assert [each["source"] for each in found] == ["a b", "c d! e f!"] and found[0]["text"] == "b a"


def test_a_text_on_the_command_line_is_translated_without_a_word(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    assert weft("translate", reverse_run, "a b c") == "c b a\n"
    assert not weft.err
    assert weft("predict", reverse_run, "a b\nd e\n") == "b a\ne d\n\n"
    (tmp_path / "a b").write_text("d e\n")
    assert weft("translate", reverse_run, tmp_path / "a b") == "e d\n"
    assert not weft.err


@pytest.mark.parametrize("name", ["input.txt", "data/input", "/no/such/file", "my input.txt", "test.de", "a b.gz"])
def test_the_name_of_a_missing_file_is_no_text(weft: tiny.Shell, reverse_run: Path, name: str) -> None:
    weft.fails("translate", reverse_run, name, says=[name, "there is no such file", "standard input"])


@pytest.mark.parametrize("text", ["A dog.", "Hund", "and/or not", "3.5", "What?", "Hello...", "a" * 5000])
def test_text_is_not_taken_for_a_file(text: str) -> None:
    assert list(open_input(text).lines) == [text]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(DataError, match="not valid UTF-8"):
        open_input(os.fsdecode(b"caf\xe9 au lait"))


def test_lines_are_counted_only_if_they_can_be_read_twice(tmp_path: Path) -> None:
    (tmp_path / "three.txt").write_text("a\nb\nc")
    assert open_input(str(tmp_path / "three.txt")).count() == 3
    assert open_input("a b").count() is None
    os.mkfifo(tmp_path / "pipe")
    assert open_input(str(tmp_path / "pipe")).count() is None
