"""Metrics that another program computes: `weft evaluate --metric command:'COMMAND'`.

Such a metric may need packages, or a Python, that do not fit into the environment of weft, such as COMET. The program reads one
JSON object per sentence on its standard input, with the keys source, output, reference (the first one) and references (all of
them), and writes one JSON object per sentence, {"score": 0.83}, on its standard output. One more object may follow, with the
score of the whole test set, the name of the metric, its signature and whether a higher score is better,

    {"score": 0.83, "name": "COMET", "signature": "wmt22-comet-da|version:2.2.2", "higher_is_better": true}

where every key may be missing.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from weft.errors import ConfigError, DataError
from weft.evaluation.metrics import Counts, Metric, MetricScore

PREFIX = "command:"
SUMMARY = frozenset(("name", "signature", "higher_is_better"))
"""Keys that only the object after those of the sentences has."""

TIMEOUT = 3600.0
"""Seconds that a command may take to score a test set."""

LAST_LINES = 10
"""Lines of the command's standard error that an error message shows."""

MEAN = "intervals and tests:mean of the sentence scores"


class CommandMetric(Metric):
    """The mean of the scores that a command gives to single sentences, or the score of the test set if it gives one.

    sources: the inputs of the test set · several: whether each line of a reference is a reference of its own · timeout: the
    seconds after which the command is stopped.
    """

    name = "command"
    digits = 4

    def __init__(self, command: str, sources: Sequence[str] = (), *, several: bool = False, timeout: float = TIMEOUT) -> None:
        self.arguments = _arguments(command)
        if not timeout > 0:
            raise ConfigError(f"a command needs a timeout of more than 0 seconds, not {timeout:g}")
        self.command, self.sources, self.several, self.timeout = command, sources, several, timeout
        self.name = Path(self.arguments[0]).name
        self._signature = command
        self._total: float | None = None

    @property
    def signature(self) -> str:
        return self._signature

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 2]: the score of each sentence, and 1."""
        lines = [
            json.dumps({"source": source, "output": ours, "reference": every[0], "references": every}, ensure_ascii=False)
            for source, ours, every in zip(self.sources, hypotheses, map(self._references, references), strict=True)
        ]
        scores, summary = self._parse(self._run("".join(f"{line}\n" for line in lines)), len(lines))
        self.name, self._signature = summary.get("name", self.name), summary.get("signature", self._signature)
        self.higher_is_better, self._total = summary.get("higher_is_better", True), summary.get("score")
        return np.stack([np.array(scores, np.float64), np.ones(len(scores))], 1)

    def value(self, sums: Counts) -> Counts:
        return sums[..., 0] / np.maximum(sums[..., 1], 1)

    def score(self, counts: Counts) -> MetricScore:
        """The value for the outputs that were counted last."""
        mean = replace(super().score(counts), key=self.name.lower().replace(" ", "_"))
        if self._total is None or math.isclose(self._total, mean.value, rel_tol=1e-4, abs_tol=1e-6):
            return mean
        return replace(mean, value=self._total, signature=f"{self.signature}|{MEAN}")

    def _references(self, reference: str) -> list[str]:
        return reference.split("\n") if self.several else [reference]

    def _run(self, content: str) -> str:
        """The output of the command. Stops it, with all processes that it has started, after the timeout or an interruption."""
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(self.arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"--metric {PREFIX}{self.command}: the command cannot be run: {error.strerror}") from None
        try:
            output, errors = process.communicate(content.encode(), timeout=self.timeout)
        except subprocess.TimeoutExpired:
            _stop(process)
            self._fail(
                f"the command did not finish within {self.timeout:g} seconds; set --metric-timeout to allow more, and see "
                "whether the command ends when its input does"
            )
        except BaseException:
            _stop(process)
            raise
        said = errors.decode(errors="replace").splitlines()[-LAST_LINES:]
        if process.returncode:
            reason = "\n".join(["; its last messages:", *said]) if said else ", without a message"
            self._fail(f"the command ended with status {process.returncode}{reason}")
        try:
            return output.decode()
        except UnicodeDecodeError:
            self._fail("the output of the command is not UTF-8")

    def _parse(self, output: str, count: int) -> tuple[list[float], dict[str, Any]]:
        """The scores of the sentences, and the object that follows them, empty if there is none."""
        lines = [line for line in output.split("\n") if line.strip()]
        objects = [self._object(line, number) for number, line in enumerate(lines, start=1)]
        summary = objects.pop() if objects and (len(objects) > count or SUMMARY & objects[-1].keys()) else {}
        if len(objects) != count:
            self._fail(
                f"the command wrote the scores of {len(objects):,} sentences, and there are {count:,}; it must write one JSON "
                'object, {"score": …}, for each'
            )
        for number, each in enumerate(objects, start=1):
            if "score" not in each:
                self._fail(f"line {number} of the command's output has no key score: {lines[number - 1][:200]}")
        for key in SUMMARY & summary.keys():
            kind, described = (bool, "true or false") if key == "higher_is_better" else (str, "text")
            if not isinstance(summary[key], kind) or summary[key] == "":
                self._fail(f"the {key} in the last line of the command's output must be {described}: {lines[-1][:200]}")
        return [each["score"] for each in objects], summary

    def _object(self, line: str, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self._fail(
                f"line {number} of the command's output is not a JSON object; messages go to standard error: {line[:200]}"
            )
        score = found.get("score", 0.0)
        if isinstance(score, bool) or not (isinstance(score, int | float) and math.isfinite(score)):
            self._fail(f"line {number} of the command's output has a score that is not a number: {line[:200]}")
        return found

    def _fail(self, problem: str) -> NoReturn:
        raise DataError(f"--metric {PREFIX}{self.command}: {problem}")


def command_of(spelling: str) -> str:
    """The command in `command:COMMAND`, whose program must exist. Raises ConfigError for any other spelling of a metric."""
    if not spelling.startswith(PREFIX):
        raise ConfigError(
            f"--metric {spelling}: metrics are added as {PREFIX}'COMMAND'; those of the task are always computed, and "
            "train.metrics adds parts of weft"
        )
    command = spelling.removeprefix(PREFIX)
    _arguments(command)
    return command


def _arguments(command: str) -> list[str]:
    """The program and arguments of a command, which is split as a shell does, but not run by one."""
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--metric {PREFIX}{command}: the command cannot be split into words: {error}") from None
    if not arguments:
        raise ConfigError(f"--metric {PREFIX}: there is no command; for example {PREFIX}'venv/bin/python comet_metric.py'")
    if shutil.which(arguments[0]) is None:
        raise ConfigError(
            f"--metric {PREFIX}{command}: there is no program {arguments[0]!r}; give its path, and mind that pipes and "
            f"variables need a shell: {PREFIX}\"sh -c '…'\""
        )
    return arguments


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it has started, which may outlive it."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            pipe.close()
