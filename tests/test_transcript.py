"""The transcript in the documents runs: every command in order, in one shell, with less time to train than on the page.

A console block shows commands after `$` and their output. Output has to be the same as on the page, unless the comment
`<!-- output varies -->` comes before the block.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from documents import ROOT, has_auto

PAGE = ROOT / "docs" / "first-ten-minutes.md"
BLOCK = re.compile(r"(<!-- output varies -->\n)?```console\n(.*?)```", re.DOTALL)
SETTING_UP = re.compile(r"git clone |cd weft$|python3 -m venv |source |pip install ")
"""Commands that get and install weft. The test has weft already."""


@dataclass(frozen=True)
class Step:
    """A command of the page, its output there, and whether the output may differ."""

    command: str
    shown: str
    varies: bool


def steps(text: str) -> list[Step]:
    found = []
    for mark, block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append(Step(command, shown.rstrip(), bool(mark)))
    return found


def hastened(command: str, port: int) -> str:
    """The command with little time to train, on a free port."""
    if command.startswith("weft train auto") and not has_auto():
        small = "data.vocabulary=600 model.dim=64 model.feedforward=64 model.encoder_layers=1 model.decoder_layers=1"
        command = command.replace("auto", "transformer-tiny").replace("--time 2m", f"--set {small} train.seconds=3")
    return command.replace("--time 2m", "--time 10s").replace("5000", str(port))


def script(wanted: list[Step], port: int) -> str:
    """A shell script that runs the commands and writes the output and status of number i to i.out and i.status."""
    lines = ["set -m"]
    for number, step in enumerate(wanted):
        command = hastened(step.command, port)
        redirected = (
            f"{{ {command} }} > {number}.out 2>&1" if command.endswith("&") else f"{{ {command}; }} > {number}.out 2>&1"
        )
        lines += [redirected, f"echo $? > {number}.status"]
        if " serve " in command:
            lines.append(
                f"for i in $(seq 300); do curl -sf http://127.0.0.1:{port}/health > /dev/null && break; sleep 0.2; done"
            )
    return "\n".join([*lines, "wait", ""])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a fresh checkout, next to programs called `weft` and `python` that run this environment."""
    base = tmp_path_factory.mktemp("transcript")
    folder, programs = base / "weft", base / "programs"
    folder.mkdir()
    programs.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    for name, run in (("weft", f'{sys.executable} -m weft "$@"'), ("python", f'{sys.executable} "$@"')):
        (programs / name).write_text(f"#!/bin/sh\nexec {run}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    return folder


def test_the_first_ten_minutes(checkout: Path) -> None:
    wanted = [step for step in steps(PAGE.read_text("utf-8")) if not SETTING_UP.match(step.command)]
    path = f"{checkout.parent / 'programs'}:{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    done = subprocess.run(["bash", "-c", script(wanted, free_port())], cwd=checkout, env=given, timeout=600)
    outputs = [(checkout / f"{number}.out").read_text("utf-8") for number in range(len(wanted))]
    assert done.returncode == 0, outputs
    for number, (step, output) in enumerate(zip(wanted, outputs, strict=True)):
        assert (checkout / f"{number}.status").read_text().strip() == "0", f"{step.command}\n{output}"
        assert "Traceback" not in output
        if not step.varies:
            assert output.rstrip() == step.shown, step.command
        elif step.shown and not step.command.endswith("&"):
            assert output.strip(), step.command
    assert len((checkout / "output.txt").read_text("utf-8").splitlines()) == 200
    assert "<html" in (checkout / "page.html").read_text("utf-8")
    answers = [output for step, output in zip(wanted, outputs, strict=True) if step.command.startswith("curl")]
    assert answers and all("translatedText" in json.loads(answer) for answer in answers)


def test_steps_are_found() -> None:
    text = "```console\n$ a b\none\ntwo\n$ c\n```\n\n<!-- output varies -->\n```console\n$ d\nthree\n```\n"
    assert steps(text) == [Step("a b", "one\ntwo", False), Step("c", "", False), Step("d", "three", True)]


def test_the_page_goes_from_a_clone_to_a_served_model() -> None:
    commands = [step.command for step in steps(PAGE.read_text("utf-8"))]
    order = [next(place for place, command in enumerate(commands) if command.startswith(start)) for start in MILESTONES]
    assert order == sorted(order)


MILESTONES = ("git clone", "pip install", "weft train auto --data", "weft translate", "weft serve", "curl")
