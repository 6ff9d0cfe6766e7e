"""Data in several files, and at addresses."""

from __future__ import annotations

import bz2
import gzip
import lzma
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.config.corpus_entries import absolute, files_of
from weft.data.formats import open_pairs, swapped
from weft.errors import DataError


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number, text in enumerate(("a\tA\nb\tB\n", "c\tC\n"), start=1):
        (tmp_path / f"c-{number}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    for number, (source, target) in enumerate((("a\nb", "A\nB"), ("c", "C"))):
        (tmp_path / f"t{number}.en").write_text(f"{source}\n")
        (tmp_path / f"t{number}.de").write_text(f"{target}\n")
    return tmp_path


WANTED = [("a", "A"), ("b", "B"), ("c", "C")]


def test_a_pattern_reads_its_files_in_order(shards: Path) -> None:
    assert list(open_pairs(f"{shards}/c-*")) == WANTED
    assert list(open_pairs(f"{shards}/c-*.tsv.gz#2,1")) == [(target, source) for source, target in WANTED]
    assert list(open_pairs(f"{shards}/t?.en,{shards}/t?.de")) == WANTED
    assert list(open_pairs(swapped(f"{shards}/c-*.tsv.gz#1,2"))) == [("A", "a"), ("B", "b"), ("C", "c")]


def test_the_digest_is_that_of_all_files(shards: Path) -> None:
    before = open_pairs(f"{shards}/c-*").digest()
    assert before == open_pairs(f"{shards}/c-[12]*").digest()
    (shards / "c-3.tsv").write_text("d\tD\n")
    assert open_pairs(f"{shards}/c-*").digest() != before


def test_wrong_patterns_are_errors(shards: Path) -> None:
    with pytest.raises(DataError, match=r"x-\*\.tsv: no file has such a name \(looked in "):
        open_pairs(f"{shards}/x-*.tsv")
    (shards / "t9.de").touch()
    with pytest.raises(DataError, match=r"2 files match .*en and 3 files match .*de; both sides need as many"):
        open_pairs(f"{shards}/t?.en,{shards}/t?.de")


def test_a_file_with_such_a_name_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].tsv").write_text("x\ty\n")
    assert list(open_pairs(f"{tmp_path}/a[1].tsv")) == [("x", "y")]


def test_configurations_know_the_files(shards: Path) -> None:
    assert [Path(file).name for file in files_of(f"{shards}/c-*.tsv.gz#2,1")] == ["c-1.tsv.gz", "c-2.tsv.gz"]
    assert absolute("c-*.tsv#2,1", shards) == f"{shards}/c-*.tsv#2,1"


@pytest.fixture
def server(shards: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *given: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(shards))) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


@pytest.fixture
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_fresh_cache")
def test_remote_files_are_copied_once_and_again_when_they_change(shards: Path, server: str) -> None:
    pytest.importorskip("aiohttp")
    assert list(open_pairs(f"{server}/c-1.tsv.gz")) == WANTED[:2]
    assert list(open_pairs(f"{server}/t0.en,{server}/t0.de")) == WANTED[:2]
    copies = list((shards / "cache").rglob("*.gz"))
    assert len(copies) == 1
    copies[0].write_bytes(gzip.compress(b"the copy\tis read\n"))
    assert list(open_pairs(f"{server}/c-1.tsv.gz")) == [("the copy", "is read")]
    with gzip.open(shards / "c-1.tsv.gz", "wt") as file:
        file.write("new\tNEW\nmore\tMORE\nof it\tOF IT\n")
    assert next(iter(open_pairs(f"{server}/c-1.tsv.gz#2,1"))) == ("NEW", "new")


@pytest.mark.usefixtures("_fresh_cache")
def test_what_is_missing_is_named_and_an_earlier_copy_outlives_its_server(shards: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/data/m.tsv", b"m\tM\n")
    assert list(open_pairs("memory://data/m.tsv")) == [("m", "M")]
    with pytest.raises(DataError, match=r"memory://data/none\.tsv: the file cannot be fetched"):
        open_pairs("memory://data/none.tsv")
    with pytest.raises(DataError, match=r"nosuch://x/y\.tsv: the file cannot be fetched: Protocol not known"):
        open_pairs("nosuch://x/y.tsv")


def test_training_on_shards_of_which_one_goes_is_told(weft: tiny.Shell, shards: Path) -> None:
    sets = [f"{name}={value}" for name, value in tiny.SETTINGS.items() if not isinstance(value, dict)]
    common = ("train", "transformer-tiny", "--out", shards / "run", "--set", *sets, "train.steps=1")
    weft(*common, "--data", f"{shards}/c-*")
    assert (shards / "run" / "model.safetensors").exists()
    for file in shards.glob("c-*"):
        file.unlink()
    weft.fails("train", "--resume", shards / "run", "--set", "train.steps=2", says=["c-*", "no such file"])


@pytest.mark.usefixtures("_fresh_cache")
def test_a_remote_pattern_reads_its_files_in_order_and_follows_changes() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, text in (("c-2.tsv", b"c\tC\n"), ("c-1.tsv.gz", gzip.compress(b"a\tA\nb\tB\n")), ("other.tsv", b"x\tX\n")):
        memory.pipe(f"/some/{name}", text)
    assert list(open_pairs("memory://some/c-*")) == WANTED
    assert list(open_pairs("memory://some/c-?.tsv#2,1")) == [("C", "c")]
    memory.pipe("/some/c-3.tsv", b"d\tD\n")
    assert list(open_pairs("memory://some/c-*")) == [*WANTED, ("d", "D")]
    with pytest.raises(DataError, match=r"memory://some/d-\*: the file cannot be fetched: no file has such a name"):
        open_pairs("memory://some/d-*")


def test_a_lone_scheme_is_no_address() -> None:
    with pytest.raises(DataError, match=r"https://: this is no address of a file; write one such as"):
        open_pairs("https://")


@pytest.mark.parametrize("kind", ["xz", "bz2", "zst"])
def test_a_second_stream_that_is_damaged_is_an_error_and_zeros_are_none(kind: str, tmp_path: Path) -> None:
    """Such files are made by `cat`, and by programs that compress with several threads."""
    compress = {"xz": lzma.compress, "bz2": bz2.compress}.get(kind) or pytest.importorskip("zstandard").compress
    file, part = tmp_path / f"x.tsv.{kind}", compress(b"a\tA\n")
    file.write_bytes(part + part)
    assert list(open_pairs(str(file))) == [("a", "A")] * 2
    file.write_bytes(part + bytes(8) + part + bytes(1000))
    assert list(open_pairs(str(file))) == [("a", "A")] * 2
    for damaged in (part + b"?" + part[1:], part + part[:-1], part + b"more"):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"x\.tsv\.{kind}: the file cannot be read past line [12]: "):
            list(open_pairs(str(file)))
