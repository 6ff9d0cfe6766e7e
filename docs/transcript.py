"""Runs the commands of the transcript, docs/first-ten-minutes.md, and writes their real output into the page.

    python docs/transcript.py

A console block of the page shows commands after `$` and their output. The comment `<!-- output varies -->` before a block says
that the output differs between machines. `tests/test_transcript.py` runs the same commands, with less time for training.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "first-ten-minutes.md"
PORT, HOME = "5000", "/home/me"
BLOCK = re.compile(r"(<!-- output varies -->\n)?```console\n(.*?)```", re.DOTALL)
SETTING_UP = re.compile(r"git clone |cd weft$|python3 -m venv |source |pip install ")
"""Commands that get and install weft. They are not run: weft is there."""


@dataclass(frozen=True)
class Step:
    """A command of the page, its output there, and whether the output may differ."""

    command: str
    shown: str
    varies: bool

    @property
    def sets_up(self) -> bool:
        return bool(SETTING_UP.match(self.command))


def steps(text: str) -> list[Step]:
    """The commands of a page, in order."""
    found = []
    for mark, block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append(Step(command, shown.rstrip(), bool(mark)))
    return found


def run(wanted: Sequence[Step], base: Path, change: Callable[[str], str] = str) -> list[tuple[str, int]]:
    """Runs the commands in one shell, in a folder like a fresh checkout. Returns the output and the status of each.

    `change` may replace a command by another one. The server gets a free port; the outputs show neither it nor the folder.
    """
    folder, programs = base / "weft", base / "programs"
    for made in (folder, programs):
        made.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    for name, call in (("weft", f'{sys.executable} -m weft "$@"'), ("python", f'{sys.executable} "$@"')):
        (programs / name).write_text(f"#!/bin/sh\nexec {call}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    port = str(_free_port())
    given = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    commands = [change(step.command).replace(PORT, port) for step in wanted]
    subprocess.run(["bash", "-c", script(commands, port)], cwd=folder, env=given, timeout=1200, check=True)
    outputs = [(folder / f"{number}.out").read_text("utf-8") for number in range(len(commands))]
    states = [int((folder / f"{number}.status").read_text()) for number in range(len(commands))]
    return [(each.replace(port, PORT).replace(str(base), HOME), state) for each, state in zip(outputs, states, strict=True)]


def script(commands: Sequence[str], port: str) -> str:
    """A shell script that writes the output and the status of command i to i.out and i.status, and waits for a server."""
    lines = ["set -m"]
    for number, command in enumerate(commands):
        end = "" if command.endswith("&") else ";"
        lines += [f"{{ {command}{end} }} > {number}.out 2>&1", f"echo $? > {number}.status"]
        if " serve " in command:
            ready = f"curl -sf http://127.0.0.1:{port}/health > /dev/null"
            lines.append(f"for i in $(seq 600); do {ready} && break; sleep 0.2; done")
    return "\n".join([*lines, "wait", ""])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def recorded(text: str, outputs: Sequence[str]) -> str:
    """The page with the outputs of the commands that were run, in order."""
    left = iter(outputs)

    def block(found: re.Match[str]) -> str:
        lines = [f"{found[1] or ''}```console"]
        for step in steps(found[0]):
            output = step.shown if step.sets_up else re.sub(r"[ \t]+$", "", next(left), flags=re.MULTILINE).rstrip()
            if step.command.endswith("&"):
                output = output.partition("\n")[0]  # the rest is the log of later requests
            lines += [f"$ {step.command}", *filter(None, [output])]
        return "\n".join([*lines, "```"])

    return BLOCK.sub(block, text)


def main() -> None:
    text = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        found = run([step for step in steps(text) if not step.sets_up], Path(folder))
    if any(status for _, status in found):
        raise SystemExit("\n".join(output for output, status in found if status))
    PAGE.write_text(recorded(text, [output for output, _ in found]), encoding="utf-8")


if __name__ == "__main__":
    main()
