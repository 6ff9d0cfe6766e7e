"""Processes side by side: every job comes back once, errors arrive where they can be read, and nobody is left behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.helpers import tiny
from weft import worker_processes as workers
from weft.data.formats import open_pairs
from weft.errors import DataError, DeviceError, WeftError
from weft.worker_processes import Workers

pytestmark = pytest.mark.skipif(not workers.LINUX, reason="processes are forked on Linux alone")


EARLIER: set[int | None] = set()
"""Processes that other tests have left."""


@pytest.fixture(autouse=True)
def _earlier_processes() -> None:
    EARLIER.clear()
    EARLIER.update(each.pid for each in multiprocessing.active_children())


def started() -> list[Any]:
    """The processes that this test has started and that still run."""
    return [each for each in multiprocessing.active_children() if each.pid not in EARLIER]


@pytest.fixture
def _two_threads() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


@pytest.mark.usefixtures("_two_threads")
def test_every_job_comes_back_with_its_result_and_workers_have_one_thread() -> None:
    with Workers(3, lambda job: (job * job, os.getpid(), torch.get_num_threads())) as crew:
        for jobs in (range(20), range(2), range(0)):
            found = list(crew.run(iter(jobs)))
            assert sorted((job, result[0]) for job, result in found) == [(job, job * job) for job in jobs]
            assert all(pid != os.getpid() and threads == 1 for _, (_, pid, threads) in found)
        assert len({pid for _, (_, pid, _) in crew.run(range(20))}) > 1
    assert not started()


def test_one_worker_is_this_process() -> None:
    with Workers(1, lambda job: os.getpid()) as crew:
        assert list(crew.run(["a", "b"])) == [("a", os.getpid()), ("b", os.getpid())]


@pytest.mark.usefixtures("_two_threads")
def test_single_jobs_start_no_process() -> None:
    with Workers(2, lambda job: (os.getpid(), torch.get_num_threads())) as crew:
        for job in ("a", "b"):
            assert list(crew.run([job])) == [(job, (os.getpid(), 1))]
        assert torch.get_num_threads() == 2 and not started()
        list(crew.run("cd"))
        assert [pid != os.getpid() for _, (pid, _) in crew.run("e")] == [True]


def test_an_error_in_a_worker_is_raised_here_and_all_of_them_end() -> None:
    def work(job: int) -> int:
        if job == 2:
            raise DataError("line 3 is not right")
        return job

    with pytest.raises(DataError, match="line 3"), Workers(2, work) as crew:
        list(crew.run(range(9)))
    assert not started()


class TwoPartError(Exception):
    """Can be pickled, but not read again: its constructor needs more than its message."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")


def test_an_error_or_a_result_that_cannot_be_sent_is_still_told() -> None:
    def work(job: str) -> object:
        if job == "error":
            raise TwoPartError(3, "is odd")
        if job == "local":
            raise type("HiddenError", (Exception,), {})("nobody can import me")
        return lambda: job

    for job, says in (("error", "TwoPartError in a worker process: line 3: is odd"), ("local", "nobody can import me")):
        with pytest.raises(WeftError, match=says), Workers(2, work) as crew:
            list(crew.run([job, job]))
    with pytest.raises((WeftError, AttributeError, TypeError, pickle.PicklingError), match=r"lambda"), Workers(2, work) as crew:
        list(crew.run(["result", "result"]))
    assert not started()


def test_a_worker_that_was_killed_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(WeftError, match=r"decode\.batch_tokens"), Workers(2, lambda job: os.kill(os.getpid(), job)) as crew:
        list(crew.run([signal.SIGKILL, signal.SIGKILL]))
    assert not started()


def test_where_processes_cannot_be_forked_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LINUX", False)
    with pytest.raises(DeviceError, match=r"decode\.workers: 2 needs Linux"):
        Workers(2, len)


def test_translations_are_the_same_in_the_same_order(reverse_run: Path) -> None:
    translator = weft.load(reverse_run, device="cpu")
    sources = [source for source, _ in open_pairs(tiny.generated("reverse", 70, "test"))]
    sources[3] = ""
    plain = translator.translate(sources, beam=3, n_best=2)
    for options in ({"workers": 2}, {"workers": 3, "batch_tokens": 90}):
        found = list(translator.stream(iter(sources), beam=3, n_best=2, **options))
        assert [each.text for each in found] == [each.text for each in plain]
        assert [each.score for each in found] == pytest.approx([each.score for each in plain], abs=1e-4)
        assert [len(each.alternatives) for each in found] == [len(each.alternatives) for each in plain]
    assert not started()


def test_a_stream_that_is_left_early_leaves_no_process(reverse_run: Path) -> None:
    stream = weft.load(reverse_run, device="cpu").stream((f"{letter} a" for letter in "abcdefg" * 40), workers=2)
    assert next(stream).text
    assert len(started()) == 2
    stream.close()  # type: ignore[attr-defined]
    assert not started()


def test_results_in_order_and_few_of_them_at_once() -> None:
    given: list[int] = []

    def jobs() -> Iterator[int]:
        for job in range(12):
            given.append(job)
            yield job

    def slow(job: int) -> tuple[int, int]:
        time.sleep(0.02 * (job % 3))
        return job, os.getpid()

    for count in (1, 3):
        given.clear()
        with Workers(count, slow) as crew:
            for place, (job, process) in enumerate(crew.run_in_order(jobs())):
                assert job == place and len(given) <= place + count + 1
                assert (process == os.getpid()) == (count == 1)
    assert not started()


def test_a_worker_that_dies_between_jobs_is_an_error_too() -> None:
    with Workers(2, lambda job: job, relief="buy memory") as crew:
        results = crew.run_in_order(range(100))
        assert next(results) == 0
        for each in started():
            os.kill(each.pid, signal.SIGKILL)
            each.join()
        with pytest.raises(WeftError, match=r"killed.*buy memory"):
            list(results)
    assert not started()
