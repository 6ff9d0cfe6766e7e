"""A large corpus is tokenised in shards, by several processes: the same bytes, and whoever was killed continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.config.sections import load_config
from weft.data import corpus as corpora
from weft.data.corpus import Columns, Corpus, Encoding
from weft.data.corpus_files import Block
from weft.data.formats import open_pairs
from weft.data.sentence_pairs import prepare_pairs
from weft.data.tokenizers import train_tokenizers
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.errors import DataError, WeftError
from weft.tasks.base import build_task
from weft.worker_processes import LINUX

BYTES = ByteTokenizer()
FULL = 3 * 7
"""Pairs of a shard in these tests."""

pytestmark = pytest.mark.skipif(not LINUX, reason="processes are forked on Linux alone")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CHUNK", 7)
    monkeypatch.setattr(corpora, "BLOCKS", 3)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """A table with 100 pairs: repeated ones near and far, empty ones, long ones."""
    texts = [(f"source {n % 60} " + "x" * (n % 6), f"Ziel ü {n % 60}") for n in range(100)]
    texts[5] = texts[93] = texts[6]
    texts[30], texts[31], texts[77] = (" ", "y"), ("long " * 30, "z"), ("abc", "d" * 40)
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in texts))
    return str(tmp_path / "pairs.tsv")


def built(spec: str, folder: Path, **options: Any) -> Corpus:
    options = {"max_length": 60, "max_ratio": 3.0, "drop_duplicates": True, **options}
    return prepare_pairs([open_pairs(spec)], BYTES, BYTES, folder=folder, **options)


def content(corpus: Corpus) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in corpus.folder.iterdir()}


@pytest.fixture
def whole(pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of the corpus that one process writes at once."""
    with monkeypatch.context() as usual:
        usual.setattr(corpora, "CHUNK", 1 << 14)
        corpus = built(pairs, tmp_path / "whole", processes=1)
    assert (corpus.report.read, corpus.report.left_out["seen before"]) == (100, 37)
    return content(corpus)


@pytest.mark.parametrize("processes", [1, 2, 3, "auto"])
def test_the_bytes_do_not_depend_on_processes_and_shards(
    processes: Any, pairs: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "cores", lambda: 2)
    read: list[int] = []
    corpus = built(pairs, tmp_path / "cache", processes=processes, progress=read.append)
    assert content(corpus) == whole
    assert list((tmp_path / "cache").iterdir()) == [corpus.folder]
    assert read == [*range(7, 100, 7), 100]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "sentencepiece"])
def test_other_tokenizers_give_the_same_in_processes(kind: str, pairs: str, tmp_path: Path) -> None:
    options = {"kind": kind, **({"byte_fallback": False} if kind in ("bpe", "unigram") else {})}
    source, target = train_tokenizers(options, [open_pairs(pairs)], size=60)
    one, two = (
        prepare_pairs([open_pairs(pairs)], source, target, folder=tmp_path / f"{count}", max_length=60, processes=count)
        for count in (1, 2)
    )
    assert content(one) == content(two)


def processes_of(chunks: int, processes: Any, folder: Path) -> set[int]:
    """The processes that encode a corpus."""

    class Numbers(list[int]):
        name = "numbers"

        def digest(self) -> str:
            return f"{processes}"

    def encode(numbers: list[int]) -> tuple[Columns, dict[str, int]]:
        return {"process": [[os.getpid()] for _ in numbers]}, {}

    corpus = Encoding("numbers", encode, {"process": "uint32"}, ["process"]).prepare(
        [Numbers(range(7 * chunks))], folder=folder, processes=processes
    )
    return set(corpus.values["process"].tolist())


def test_small_data_starts_no_process_and_large_data_one_per_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "cores", lambda: 2)
    assert processes_of(corpora.ALONE, "auto", tmp_path / "small") == {os.getpid()}
    large = processes_of(corpora.ALONE + 2, "auto", tmp_path / "large")
    assert os.getpid() in large and len(large) == 3
    assert processes_of(9, 1, tmp_path / "one") == {os.getpid()}
    three = processes_of(9, 3, tmp_path / "three")
    assert os.getpid() not in three and len(three) == 3


KILLED = """
import os, signal, sys
from tests.data import test_corpus_shards as tests
from weft.data import corpus
corpus.CHUNK, corpus.BLOCKS = 7, 3
tests.built(sys.argv[1], tests.Path(sys.argv[2]), processes=2,
    progress=lambda read: read > 2 * tests.FULL and os.kill(os.getpid(), signal.SIGKILL))
"""


def kill(spec: str, folder: Path) -> list[Path]:
    """The shards that a build leaves which is killed in its third one."""
    done = subprocess.run([sys.executable, "-c", KILLED, spec, str(folder)], check=False, stdout=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL  # its workers have ended too, or its output would still be open
    (shards,) = folder.glob("*.shards")
    assert [file.name for file in sorted(shards.iterdir())] == ["000000", "000001"]
    return sorted(shards.iterdir())


def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of examples that this process encodes from now on, chunk by chunk."""
    counts: list[int] = []
    encode = Encoding._encode

    def counted(self: Encoding, chunk: list[Any]) -> Block:
        counts.append(len(chunk))
        return encode(self, chunk)

    monkeypatch.setattr(Encoding, "_encode", counted)
    return counts


def test_after_a_kill_only_missing_shards_are_done(
    pairs: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = kill(pairs, tmp_path / "cache")
    long_ago = time.time() - 30 * 86_400
    os.utime(shards[0].parent, (long_ago, long_ago))
    counts = encoded(monkeypatch)
    corpus = built(pairs, tmp_path / "cache", processes=1)
    assert sum(counts) == 100 - 2 * FULL
    assert content(corpus) == whole
    assert not shards[0].parent.exists()


@pytest.mark.parametrize("file", ["source", "target.offsets", "lengths", "seen", "about.json"])
def test_a_damaged_shard_is_done_again(
    file: str, pairs: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        built(pairs, tmp_path / "cache", processes=1, progress=interrupt_after(3 * FULL))
    (shards,) = (tmp_path / "cache").glob("*.shards")
    damaged = shards / "000001" / file
    damaged.write_bytes(damaged.read_bytes()[:-3])
    counts = encoded(monkeypatch)
    assert content(built(pairs, tmp_path / "cache", processes=1)) == whole
    assert sum(counts) == 100 - FULL


def interrupt_after(read: int) -> Callable[[int], None]:
    def progress(now: int) -> None:
        if now > read:
            raise KeyboardInterrupt

    return progress


def test_shards_of_other_data_are_left_alone_and_removed_after_a_week(pairs: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        built(pairs, tmp_path / "cache", processes=1, progress=interrupt_after(FULL))
    (shards,) = (tmp_path / "cache").glob("*.shards")
    built(pairs, tmp_path / "cache", max_length=59)
    assert shards.exists()
    long_ago = time.time() - 8 * 86_400
    os.utime(shards, (long_ago, long_ago))
    built(pairs, tmp_path / "cache", max_length=58)
    assert not shards.exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_another_process_that_is_faster_does_no_harm(
    processes: int, pairs: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """It completes the same corpus, and removes the shards of both, while this one is at work."""
    others: list[Corpus] = []

    def progress(read: int) -> None:
        if read > FULL and not others:
            others.append(built(pairs, tmp_path / "cache", processes=1))

    corpus = built(pairs, tmp_path / "cache", processes=processes, progress=progress)
    assert corpus.folder == others[0].folder and content(corpus) == whole
    assert list((tmp_path / "cache").iterdir()) == [corpus.folder]


def test_a_killed_worker_is_an_error_that_says_how_to_continue(
    pairs: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, encode = os.getpid(), Encoding._encode

    def dies(self: Encoding, chunk: list[Any]) -> Any:
        if os.getpid() != here and any(source.startswith("source 50") for source, _ in chunk):
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(self, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(Encoding, "_encode", dies)
        with pytest.raises(WeftError, match=r"killed.*continues after the last finished shard.*data\.processes"):
            built(pairs, tmp_path / "cache", processes=2)
    counts = encoded(monkeypatch)
    assert content(built(pairs, tmp_path / "cache", processes=1)) == whole
    assert sum(counts) == 100 - 2 * FULL


def test_a_wrong_line_is_the_same_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_bytes(b"".join(b"%d\tb\n" % number for number in range(80)) + b"\xff\tb\n")
    for processes in (1, 2):
        with pytest.raises(DataError, match="line 81"):
            built(str(path), tmp_path / "cache", processes=processes)
        assert list((tmp_path / "cache").iterdir()) == []


def test_a_full_disk_keeps_finished_shards(
    pairs: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(corpora, "join_shards", full)
        with pytest.raises(DataError, match=r"No space left.*Finished shards were kept"):
            built(pairs, tmp_path / "cache", processes=1)
    counts = encoded(monkeypatch)
    assert content(built(pairs, tmp_path / "cache", processes=1)) == whole
    assert counts == []


def test_shards_in_which_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(" \tx\n" * 50 + "a\tb\n" + " \tx\n" * 50)
    corpus = built(str(tmp_path / "a.tsv"), tmp_path / "cache", processes=2)
    assert len(corpus) == 1 and corpus.report.read == 101
    assert BYTES.decode(corpus.row("source", 0).tolist()) == "a"


def test_progress_has_a_total_and_the_option_its_way(pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "PAUSE", -1.0)
    seen: list[Any] = []
    prepare = Encoding.prepare

    def prepared(self: Encoding, *given: Any, processes: Any, **options: Any) -> Corpus:
        seen.append(processes)
        return prepare(self, *given, processes=processes, **options)

    monkeypatch.setattr(Encoding, "prepare", prepared)
    config = load_config(
        "transformer-tiny",
        ["data.tokenizer=bytes", f"data.train=[{pairs}]", f"data.cache={tmp_path / 'cache'}", "data.processes=2"],
    )
    (tmp_path / "run").mkdir()
    messages: list[str] = []
    build_task(config, tmp_path / "run", messages.append).prepare()
    assert seen == [2]
    assert "tokenising training data: 35 of 100 lines" in messages
