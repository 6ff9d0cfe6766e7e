"""A corpus is predicted shard by shard: the output has the bytes of one process, whoever does which shard and dies when."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from weft import worker_processes
from weft.decoding import predictor
from weft.errors import DataError
from weft.garbage_collection import OBJECTS
from weft.runs import sharded_prediction
from weft.runs.prediction_work import InputFile, PredictionWork
from weft.runs.ray_engine import ShardActor
from weft.runs.sharded_prediction import ShardFolder, ShardPredictor, predict_corpus
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.translation_input import TranslationInput

LINES = ["a b c", "", "d e f g", "b \u2028 c", "  ", "g f\tc", "e e e", "", "c a\u00a0b d e.  A b c. G f e!", "zzz ü 😀 a"] * 3


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_prediction, "SHARD", 4)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "in.txt"


@pytest.fixture
def wanted(weft: tiny.Shell, reverse_run: Path, text: Path, tmp_path: Path) -> bytes:
    weft("translate", reverse_run, text, "-o", tmp_path / "whole.txt", "--device", "cpu")
    return (tmp_path / "whole.txt").read_bytes()


def work(run: Path, text: Path, out: Path, **options: object) -> PredictionWork:
    return PredictionWork([run], InputFile(text, run), out, "cpu", dict(options))


def test_shares_together_write_the_bytes_of_translate(
    weft: tiny.Shell, reverse_run: Path, text: Path, wanted: bytes, tmp_path: Path
) -> None:
    out, common = tmp_path / "out.txt", ("translate", reverse_run, text, "--device", "cpu")
    for number in (2, 1):
        weft(*common, "-o", out, "--shard", f"{number}/3")
        assert "other shards are not finished" in weft.err and not out.exists()
    weft(*common, "-o", out, "--shard", "3/3")
    assert f"wrote {out}" in weft.err
    assert out.read_bytes() == wanted
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.txt", "out.txt", "whole.txt"]


def test_shards_are_computed_in_the_batches_of_translate(
    weft: tiny.Shell, reverse_run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are rounded as the size of a batch has it, so other batches could choose another of two beams with equal scores."""
    monkeypatch.setattr(sharded_prediction, "SHARD", 16)
    monkeypatch.setattr(predictor, "WINDOWS", (3, 16))
    monkeypatch.setattr(worker_processes, "cores", lambda: 3)
    monkeypatch.setattr(sharded_prediction, "cores", lambda: 3)
    found, cut = list[list[list[int]]](), predictor.Predictor._batches

    def recorded(*given: Any) -> Iterator[list[Any]]:
        for batch in cut(*given):
            found[-1].append([*map(len, (part.ids for part in batch))])
            yield batch

    monkeypatch.setattr(predictor.Predictor, "_batches", recorded)
    found.append([])
    weft("translate", reverse_run, text, "-o", tmp_path / "whole.txt", "--device", "cpu")
    found.append([])
    assert predict_corpus(work(reverse_run, text, tmp_path / "out.txt"))
    found.append([])
    folder = ShardFolder(work(reverse_run, text, tmp_path / "again.txt"))
    folder.open(False, print)
    monkeypatch.setattr(sharded_prediction, "cores", lambda: 1)  # as on another machine, or as an actor
    folder = ShardFolder(folder.work)
    folder.open(False, print)
    one = ShardPredictor(folder)
    for shard in range(len(folder)):
        one.predict(shard)
    folder.join()
    assert found[0] == found[1] == found[2] and max(map(len, found[0])) > 1
    assert len({(tmp_path / f"{name}.txt").read_bytes() for name in ("whole", "out", "again")}) == 1


def test_an_actor_collects_garbage_as_rarely_as_the_command(
    reverse_run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, make = list[int](), sharded_prediction.make_inputs

    def recorded(*given: Any, **named: Any) -> Iterator[Any]:
        found.append(gc.get_threshold()[0])
        return make(*given, **named)

    monkeypatch.setattr(sharded_prediction, "make_inputs", recorded)
    task = work(reverse_run, text, tmp_path / "out.txt")
    ShardFolder(task).open(False, print)
    before = gc.get_threshold()
    assert ShardActor(task)({"item": 0}) == {"shard": 0, "error": ""}
    assert found == [OBJECTS] and gc.get_threshold() == before


def test_context_reaches_into_the_shard_before(
    reverse_run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()

    def parse(self: TranslationPredictor, line: str, **fields: Any) -> TranslationInput:
        seen.append(fields.get("context", ""))
        return TranslationInput(line)

    monkeypatch.setattr(TranslationPredictor, "parse_input", parse)
    predict_corpus(work(reverse_run, text, tmp_path / "out.txt", context=2), share=(2, 3))
    mine = [place for place in range(len(LINES)) if place // 4 % 3 == 1]
    assert seen == [" ".join(LINES[place - 2 : place]) for place in mine]


def test_json_lines_have_their_sources(weft: tiny.Shell, reverse_run: Path, text: Path, tmp_path: Path) -> None:
    common = ("translate", reverse_run, text, "--json", "--beam", "2", "--device", "cpu")
    weft(*common, "-o", tmp_path / "whole.jsonl")
    weft(*common, "-o", tmp_path / "out.jsonl", "--shard", "1/1")
    out, whole = ([json.loads(line) for line in (tmp_path / name).open()] for name in ("out.jsonl", "whole.jsonl"))
    assert [(each["source"], each["text"], each["tokens"]) for each in out] == [
        (each["source"], each["text"], each["tokens"]) for each in whole
    ]
    assert [each["score"] for each in out] == pytest.approx([each["score"] for each in whole], abs=1e-5)
    assert [each["source"] for each in out] == LINES


def test_samples_depend_on_the_line_not_on_the_shard(reverse_run: Path, text: Path, tmp_path: Path) -> None:
    predict_corpus(work(reverse_run, text, tmp_path / "small.txt", search="sample"))
    sharded_prediction.SHARD = 1000
    predict_corpus(work(reverse_run, text, tmp_path / "large.txt", search="sample"))
    assert (tmp_path / "small.txt").read_bytes() == (tmp_path / "large.txt").read_bytes()


def test_finished_shards_are_kept_and_half_a_shard_is_not(reverse_run: Path, text: Path, wanted: bytes, tmp_path: Path) -> None:
    task, told = work(reverse_run, text, tmp_path / "out.txt"), list[str]()
    assert not predict_corpus(task, share=(2, 2))
    folder = ShardFolder(task)
    kept = folder.file(1).stat().st_mtime_ns
    (folder.path / "0.part").write_bytes(b"half a li")  # a process was killed while it wrote
    os.utime(folder.file(3), ns=(1, 1))
    assert folder.file(1).stat().st_mtime_ns == kept
    done, expected = list[int](), list[int]()
    assert predict_corpus(task, advance=lambda: done.append(1), expect=expected.append, report=told.append)
    assert expected == [len(done)] == [len(LINES) - 4 * 4 + 2], "shards 1, 3, 5 and the short one 7 were finished"
    assert "continuing after 14 of 30 lines" in told[0]
    assert (tmp_path / "out.txt").read_bytes() == wanted


def test_other_work_starts_again_alone_but_is_refused_among_shares(
    reverse_run: Path, text: Path, wanted: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    predict_corpus(work(reverse_run, text, out, beam=3), share=(1, 2))
    with pytest.raises(DataError, match=r"out\.txt\.shards has shards of other work"):
        predict_corpus(work(reverse_run, text, out), share=(2, 2))
    assert predict_corpus(work(reverse_run, text, out))
    assert out.read_bytes() == wanted


def test_a_shard_that_another_process_writes_is_left_to_it(reverse_run: Path, text: Path, tmp_path: Path) -> None:
    task = work(reverse_run, text, tmp_path / "out.txt")
    predict_corpus(task, share=(1, 100))
    folder, found = ShardFolder(task), list[bool]()
    folder.open(False, print)
    with open(folder.path / "1.part", "a+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.append(predict_corpus(task)))
        thread.start()
        while set(folder.missing() if folder.plan.exists() else [0]) - {1}:
            assert thread.is_alive()
        folder.path.joinpath("1.part").write_text("other\n" * 4)
        os.replace(folder.path / "1.part", folder.path / "000001")
        folder.path.joinpath("1.part").write_text("")
        with folder.writing(1, wait=False) as nothing:
            assert nothing is None and not folder.path.joinpath("1.part").exists(), "a finished shard is not written again"
    thread.join(60)
    assert found == [True] and (tmp_path / "out.txt").read_text().splitlines()[4:8] == ["other"] * 4


def test_a_killed_process_loses_nothing(reverse_run: Path, text: Path, wanted: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from weft.runs import prediction_work as w, sharded_prediction as s; s.SHARD = 4\n"
        "run, text, out = map(Path, sys.argv[1:]); done = []\n"
        "def advance():\n"
        "    done.append(1)\n"
        f"    if len(done) == 10: os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        "s.predict_corpus(w.PredictionWork([run], w.InputFile(text, run), out, 'cpu'), advance=advance)"
    )
    ended = subprocess.run([sys.executable, "-c", program, reverse_run, text, out], timeout=120)
    assert ended.returncode == -signal.SIGKILL and not out.exists()
    assert ShardFolder(work(reverse_run, text, out)).file(1).exists()
    assert predict_corpus(work(reverse_run, text, out))
    assert out.read_bytes() == wanted and not out.with_name("out.txt.shards").exists()


def test_what_cannot_be_divided_is_refused(weft: tiny.Shell, reverse_run: Path, text: Path, tmp_path: Path) -> None:
    common = ("translate", reverse_run, text)
    weft.fails(*common, "--shard", "1/2", says=["--shard", "write one"])
    weft.fails(*common, "-o", tmp_path / "x", "--shard", "3/2", says=["--shard 3/2", "K/N"])
    weft.fails(*common, "-o", tmp_path / "x", "--engine", "spark", says=["--engine spark", "ray"])
    weft.fails(*common, "-o", tmp_path / "x", "--actors", "2", says=["--engine ray"])
    weft.fails(*common, "-o", tmp_path / "x.gz", "--shard", "1/2", says=["without .gz"])
    page = tmp_path / "page.html"
    page.write_text("<p>a b</p>")
    weft.fails("translate", reverse_run, page, "-o", tmp_path / "x", "--shard", "1/2", says=["page.html", "not documents"])
