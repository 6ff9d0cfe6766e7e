"""The tokenised corpus on disk: what is in it, what was left out, and what a crash or a full disk leaves behind."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.data import corpus as corpora
from weft.data.batch import EOS
from weft.data.corpus import Corpus, cache_folder
from weft.data.formats import open_pairs
from weft.data.sentence_pairs import prepare_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer, CharacterTokenizer, WordTokenizer
from weft.errors import DataError
from weft.file_access import unfinished

Texts = list[tuple[str, str]]
BYTES = ByteTokenizer()


def table(folder: Path, pairs: Texts, name: str = "pairs.tsv") -> str:
    path = folder / name
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return str(path)


def built(folder: Path, pairs: Texts, **options: Any) -> Corpus:
    options = {"max_length": 50, **options}
    return prepare_pairs([open_pairs(table(folder, pairs))], BYTES, BYTES, folder=folder / "cache", **options)


def texts(corpus: Corpus) -> Texts:
    columns = [[BYTES.decode(corpus.row(side, row).tolist()) for row in range(len(corpus))] for side in ("source", "target")]
    return list(zip(*columns, strict=True))


def test_pairs_come_back_in_order_with_eos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CHUNK", 3)
    pairs = [(f"source {i}" * (i % 3 + 1), f"Ziel {i}") for i in range(20)]
    corpus = built(tmp_path, pairs)
    assert len(corpus) == 20
    assert texts(corpus) == pairs
    for row in range(20):
        assert corpus.row("source", row)[-1] == corpus.row("target", row)[-1] == EOS
        assert corpus.lengths[row].tolist() == [len(pairs[row][0]) + 1, len(pairs[row][1]) + 1]
    assert corpus.report.describe() == "20 pairs read, 20 kept."
    assert isinstance(corpus.values["source"], np.memmap)
    assert corpus.values["source"].dtype == np.uint16


def test_several_files_follow_each_other(tmp_path: Path) -> None:
    first = open_pairs(table(tmp_path, [("a", "b")]))
    second = open_pairs(table(tmp_path, [("c", "d")], "more.tsv"))
    both = prepare_pairs([first, second], BYTES, BYTES, folder=tmp_path / "cache", max_length=50)
    assert texts(both) == [("a", "b"), ("c", "d")]
    other_way = prepare_pairs([second, first], BYTES, BYTES, folder=tmp_path / "cache", max_length=50)
    assert texts(other_way) == [("c", "d"), ("a", "b")]


def test_large_vocabularies_and_lengths_are_stored_whole(tmp_path: Path) -> None:
    tokenizer = WordTokenizer()
    words = [f"w{i:05}" for i in range(70_000)]
    tokenizer.train(words, 80_000)
    pairs = open_pairs(table(tmp_path, [(" ".join(words), words[-1])]))
    corpus = prepare_pairs([pairs], tokenizer, BYTES, folder=tmp_path / "cache", max_length=100_000)
    assert corpus.row("source", 0).tolist() == [*tokenizer.encode(" ".join(words)), EOS]
    assert corpus.row("source", 0).max() > 1 << 16
    assert corpus.lengths[0].tolist() == [70_001, 7]


def test_what_is_left_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CHUNK", 4)
    good = [("abc", "abd"), ("x" * 50, "y" * 50), ("aaaa", "bb")]
    bad = [("", "a"), ("a", "  "), ("x" * 51, "y" * 40), ("x" * 40, "y" * 51), ("aaaaa", "bb"), good[0], good[0], good[2]]
    corpus = built(tmp_path, good + bad, max_ratio=2.0, drop_duplicates=True)
    assert texts(corpus) == good
    report = corpus.report
    assert (report.read, report.kept, *report.left_out.values()) == (11, 3, 2, 2, 1, 3)
    said = report.describe()
    assert said == (
        "11 pairs read, 3 kept; left out: 2 with an empty side, 2 too long, 1 with lengths too different, 3 seen before."
    )
    assert built(tmp_path, good + bad, max_ratio=2.0, drop_duplicates=True).report == report
    everything = built(tmp_path, good + bad)
    assert everything.report.kept == 7


def test_a_line_of_many_words_is_only_counted(tmp_path: Path) -> None:
    corpus = built(tmp_path, [("a", "b"), ("word " * 100_000, "short"), ("c", "d")])
    assert texts(corpus) == [("a", "b"), ("c", "d")]
    assert corpus.report.left_out["too long"] == 1


def test_duplicates_are_found_however_far_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CHUNK", 64)
    numbers = np.random.default_rng(0).integers(0, 1500, 4000).tolist()
    pairs = [(f"s{n}", f"t{n % 7}") for n in numbers]
    corpus = built(tmp_path, pairs, drop_duplicates=True)
    assert texts(corpus) == list(dict.fromkeys(pairs))
    assert built(tmp_path, [("ab", "c"), ("a", "bc")], drop_duplicates=True).report.left_out["seen before"] == 0


def test_nothing_left_is_an_error_and_no_cache(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no pair is left"):
        built(tmp_path, [("x" * 60, "y")])
    assert list((tmp_path / "cache").iterdir()) == []


def test_built_once_and_found_again(tmp_path: Path) -> None:
    pairs = [("a", "b")] * 10
    told: list[int] = []
    first = built(tmp_path, pairs, progress=told.append)
    assert told == [10]
    again = built(tmp_path, pairs, progress=told.append)
    assert told == [10]
    assert again.folder == first.folder
    assert gc.isenabled()


def test_the_key_follows_everything_that_matters(tmp_path: Path) -> None:
    pairs = [("ab", "b"), ("c", "d")]
    characters = CharacterTokenizer()
    characters.train(["abcd"], 300)
    spec = open_pairs(table(tmp_path, pairs))
    folder = tmp_path / "cache"
    places = [
        built(tmp_path, pairs).folder,
        built(tmp_path, pairs, max_length=51).folder,
        built(tmp_path, pairs, max_ratio=3.0).folder,
        built(tmp_path, pairs, drop_duplicates=True).folder,
        prepare_pairs([spec], characters, BYTES, folder=folder, max_length=50).folder,
        prepare_pairs([spec], BYTES, characters, folder=folder, max_length=50).folder,
        built(tmp_path, [*pairs, ("e", "f")]).folder,
    ]
    assert len(set(places)) == len(places)


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_bytes(b"a\tb\n" * 10 + b"\xff\tb\n")
    with pytest.raises(DataError, match="line 11"):
        prepare_pairs([open_pairs(str(path))], BYTES, BYTES, folder=tmp_path / "cache", max_length=50)
    assert list((tmp_path / "cache").iterdir()) == []
    assert gc.isenabled()


KILLED = """
import os, sys
from pathlib import Path
from weft.data.sentence_pairs import prepare_pairs
from weft.data.formats import open_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer
prepare_pairs([open_pairs(sys.argv[1])], ByteTokenizer(), ByteTokenizer(), folder=Path(sys.argv[2]), max_length=50,
        progress=lambda read: os._exit(9))
"""


def test_a_killed_build_is_never_used(tmp_path: Path) -> None:
    pairs = [("a", "b")] * 10
    spec = table(tmp_path, pairs)
    done = subprocess.run([sys.executable, "-c", KILLED, spec, str(tmp_path / "cache")], check=False)
    assert done.returncode == 9
    left = list((tmp_path / "cache").iterdir())
    assert [path.name[:5] for path in left] == [".tmp-"]
    with unfinished(tmp_path / "cache" / "another"):  # another process might be at work in it
        assert texts(built(tmp_path, pairs)) == pairs
        assert left[0].exists()
    built(tmp_path, pairs, max_length=49)
    assert not left[0].exists()


def test_everything_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut, a folder with the right name may otherwise hold files that were never written."""
    synced: list[str] = []
    fsync, rename = os.fsync, os.rename

    def renamed(old: Path, new: Path) -> None:
        synced.append("renamed")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle)))
    monkeypatch.setattr(os, "rename", renamed)
    place = built(tmp_path, [("a", "b")] * 10).folder
    before = {Path(name).name for name in synced[: synced.index("renamed")]}
    assert {path.name for path in place.iterdir()} <= before
    assert synced[synced.index("renamed") :] == ["renamed", str(tmp_path / "cache")]


FULL = """
import resource, sys
from pathlib import Path
from weft.data.sentence_pairs import prepare_pairs
from weft.data.formats import open_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.errors import DataError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    prepare_pairs([open_pairs(sys.argv[1])], ByteTokenizer(), ByteTokenizer(), folder=Path(sys.argv[2]), max_length=50)
except DataError as error:
    print(error)
    sys.exit(3)
"""


def test_a_full_disk_is_said_and_the_part_removed(tmp_path: Path) -> None:
    spec = table(tmp_path, [("abcdefgh", "abcdefgh")] * 5000)
    place = tmp_path / "cache"
    done = subprocess.run([sys.executable, "-c", FULL, spec, str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert str(place) in done.stdout
    assert "data.cache" in done.stdout
    assert list(place.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(DataError, match=r"data\.cache"):
        built(tmp_path, [("a", "b")])


@pytest.mark.parametrize("name", ["source", "target", "lengths", "source.offsets", "target.offsets", "about.json"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_damaged_cache_is_built_again(tmp_path: Path, name: str, how: str) -> None:
    pairs = [(f"source {i}", f"target {i}") for i in range(10)]
    path = built(tmp_path, pairs).folder / name
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-4])
    else:
        path.unlink()
    assert texts(built(tmp_path, pairs)) == pairs


def _race(spec: str, folder: Path, barrier: Any, results: Any) -> None:
    barrier.wait()
    corpus = prepare_pairs([open_pairs(spec)], BYTES, BYTES, folder=folder, max_length=50)
    results.put((len(corpus), int(corpus.values["source"].astype(np.int64).sum()), str(corpus.folder)))


def test_processes_that_build_the_same_cache_agree(tmp_path: Path) -> None:
    spec = table(tmp_path, [(f"source {i}", f"target {i}") for i in range(3000)])
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_race, args=(spec, tmp_path / "cache", barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert len(set(found)) == 1
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == [found[0][2]]


def test_the_default_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "weft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "weft"


def test_about_is_readable_by_people(tmp_path: Path) -> None:
    about = json.loads((built(tmp_path, [("a", "b")]).folder / "about.json").read_text())
    assert about["report"]["kept"] == 1
