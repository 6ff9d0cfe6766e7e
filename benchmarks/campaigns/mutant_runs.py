"""Runs chosen tests in a forked process: with marks of the lines that they run, or until one fails.

A zygote has collected all tests once; each run is a fork of it. What a run starts is killed with it.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from mutant_tests import LONG

Event = dict[str, Any]
Tell = Callable[[Event], None]
ARGUMENTS = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-n",
    "0",
    "--capture=fd",
    "-m",
    "not slow and not gpu and not browser and not clients",
]
SUBREAPER = 36
LEAST = 4.0
"""Seconds of processor time that any test may take with a mutant."""


class TooLong(Exception):
    """A test takes longer than its limit."""


def adopt_orphans() -> None:
    """Makes processes that a killed run leaves behind children of this process, so that they can be killed."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_children(but: set[int]) -> None:
    """Kills the children of this process, until there are no more."""
    for _ in range(50):
        found = set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())) - but
        if not found:
            return
        for pid in found:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def in_fork(work: Callable[[Tell], None], take: Callable[[Event], None], silence: float, total: float, but: set[int]) -> str:
    """Runs `work` in a fork and hands on what it tells. Returns "" if it ended by itself, "silent", "late" or "died" if not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setpgid(0, 0)
            os.set_inheritable(writing, False)
            with open(writing, "w", encoding="utf-8") as pipe:
                work(lambda event: print(json.dumps(event), file=pipe, flush=True))
                print('{"end": true}', file=pipe, flush=True)
        finally:
            os._exit(0)
    os.close(writing)
    began, text, state = time.monotonic(), b"", "died"
    while True:
        ready, _, _ = select.select([reading], [], [], min(silence, max(0.1, began + total - time.monotonic())))
        if not ready:
            state = "late" if time.monotonic() - began >= total else "silent"
            break
        got = os.read(reading, 1 << 16)
        text += got
        *lines, text = text.split(b"\n")
        events = [json.loads(line) for line in lines]
        for event in events:
            if "end" in event:
                state = ""
            else:
                take(event)
        if not got or not state:
            break
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    end_children(but)
    return state


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


class Limit:
    """Raises TooLong in this thread after so many seconds of processor time, or of the clock."""

    def __init__(self, processor: float, clock: float) -> None:
        self.processor, self.clock = processor, clock

    def __enter__(self) -> None:
        for name in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(name, self._raise)
        signal.setitimer(signal.ITIMER_PROF, self.processor)
        signal.setitimer(signal.ITIMER_REAL, self.clock)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, *_: object) -> None:
        raise TooLong


class Fixtures:
    """Measures the fixtures of modules, classes and the session apart from the test that happens to come first."""

    def __init__(self, hits: Any) -> None:
        self.hits = hits
        self.measured: dict[tuple[str, str], tuple[float, np.ndarray]] = {}
        self.taken = 0.0

    def now(self) -> np.ndarray:
        return np.frombuffer(self.hits, np.uint8).astype(bool)

    def clear(self) -> None:
        self.hits[:] = bytes(len(self.hits))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before, began = self.now(), processor_seconds()
        self.clear()
        left = [(timer, signal.setitimer(timer, 0)[0]) for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL)]
        try:
            return (yield)
        finally:
            for timer, seconds in left:
                signal.setitimer(timer, seconds)
            seconds = processor_seconds() - began
            self.taken += seconds
            if fixturedef.scope != "session":
                self.measured[fixturedef.argname, fixturedef.baseid] = (seconds, self.now())
            self.hits[:] = before.tobytes()

    def of(self, item: pytest.Item) -> list[tuple[float, np.ndarray]]:
        names = getattr(item, "fixturenames", ())
        return [
            found for (name, base), found in self.measured.items() if name in names and item.nodeid.startswith(base or "tests")
        ]


def outcome_of(reports: list[Any]) -> tuple[str, str]:
    for report in reports:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            return "failed", (crash.message if crash else "error").partition("\n")[0].partition(":")[0][:60]
    return ("skipped" if any(report.skipped for report in reports) else "passed"), ""


def cover(items: list[pytest.Item], fixtures: Fixtures, longest: float, tell: Tell) -> None:
    """Runs tests one after the other, and tells of each which lines it ran and how long it took."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        tell({"begins": item.nodeid})
        fixtures.clear()
        fixtures.taken = 0.0
        began = processor_seconds()
        with Limit(longest, 20 * longest):
            outcome, why = outcome_of(runtestprotocol(item, log=False, nextitem=following))
        own = processor_seconds() - began - fixtures.taken
        used = fixtures.of(item)
        known = {"seconds": round(own + sum(each for each, _ in used), 3), "own": round(own, 3)}
        lines = fixtures.now()
        for _, more in used:
            lines |= more
        packed = base64.b64encode(np.packbits(lines).tobytes()).decode()
        tell({"test": item.nodeid, "outcome": outcome, "why": why, **known, "hits": packed})


def until_one_fails(items: list[pytest.Item], seconds: dict[str, float], tell: Tell) -> None:
    """Runs tests in this order and tells of each how it ended; stops at the first that fails."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        tell({"begins": item.nodeid})
        usual = seconds.get(item.nodeid, 1)
        with Limit(LEAST + usual * (1 if usual >= LONG else 4), 30 + 20 * usual):
            outcome, why = outcome_of(runtestprotocol(item, log=False, nextitem=following))
        if why.endswith("TooLong") and usual >= LONG:
            outcome = "skipped"
        tell({"test": item.nodeid, "outcome": outcome, "why": why})
        if outcome == "failed":
            return


class Collected:
    """A plugin of pytest that does something else with the collected tests than to run them."""

    def __init__(self, work: Callable[[pytest.Session], None]) -> None:
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.work(session)
        return True


def use_folder(config: pytest.Config, folder: Path, shared: Path) -> None:
    """Gives the tests a temporary folder with a copy of what the session's fixtures have made before."""
    if shared.exists():
        shutil.copytree(shared, folder / "shared", symlinks=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]


def collect(arguments: list[str], work: Callable[[pytest.Session], None], *plugins: Any) -> int:
    return int(pytest.main([*ARGUMENTS, *arguments], plugins=[Collected(work), *plugins]))


def silence_output() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
