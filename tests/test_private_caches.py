"""Nothing is read from a cache that somebody else could have written, and no file is written under a name that others guess."""

from __future__ import annotations

import ast
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from weft import file_access
from weft.cli.input_and_output import opened
from weft.data import corpus as corpora
from weft.data.corpus import Corpus, cache_folder
from weft.data.formats import open_pairs
from weft.data.sentence_pairs import prepare_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.decoding.shortlist import Shortlist, cached_file
from weft.errors import DataError, RunError
from weft.file_access import claim, close_to_others, why_untrusted
from weft.runs.packed_run import unpacked
from weft.runs.prediction_work import InputTexts, PredictionWork
from weft.runs.sharded_prediction import ShardFolder
from weft.runs.weight_files import replacing

ROOT = Path(__file__).parent.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


@pytest.fixture(autouse=True)
def _shared_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups have several members, whoever runs the tests."""
    monkeypatch.setattr(file_access, "_own_group", lambda number: False)


def prepared(folder: Path, cache: Path) -> Corpus:
    (folder / "a.tsv").write_text("a\tb\nc\td\n")
    return prepare_pairs([open_pairs(str(folder / "a.tsv"))], ByteTokenizer(), ByteTokenizer(), folder=cache, max_length=9)


def test_owner_and_mode_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = tmp_path / "entry", tmp_path / "entry" / "file"
    folder.mkdir(mode=0o755)
    file.touch(0o644)
    for path in (folder, file):
        path.chmod(path.stat().st_mode & ~0o022)
    assert why_untrusted(folder) is None
    for path, mode in ((folder, 0o775), (folder, 0o757), (file, 0o664), (file, 0o646)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert "others may write to" in (why_untrusted(folder) or "")
        assert (why_untrusted(folder, chosen=True) is None) == (mode in (0o775, 0o664))
        close_to_others(folder)
        assert why_untrusted(folder) is None
        path.chmod(before)
    folder.chmod(0o775)
    monkeypatch.setattr(file_access, "_own_group", lambda number: True)
    assert why_untrusted(folder) is None, "a group of this user alone"
    folder.chmod(0o755)
    (folder / "link").symlink_to(file)
    assert "is a link" in (why_untrusted(folder) or "") and why_untrusted(folder, inside=False) is None
    (folder / "link").unlink()
    monkeypatch.setattr(file_access, "ROOT", -2)
    monkeypatch.setattr(file_access.os, "geteuid", lambda: 4321)
    assert "belongs to" in (why_untrusted(folder) or "") and why_untrusted(folder, chosen=True) is None


def test_prepared_data_that_others_could_have_written_is_made_again(tmp_path: Path, cache: Path) -> None:
    before = os.umask(0o002)  # as where every user has a group of their own
    try:
        first = prepared(tmp_path, cache)
    finally:
        os.umask(before)
    assert why_untrusted(first.folder) is None
    written = np.fromfile(first.folder / "source", np.uint16)
    (first.folder / "source").chmod(0o666)
    np.full_like(written, 7).tofile(first.folder / "source")
    with pytest.warns(UserWarning, match="others may write to .*made again"):
        again = prepared(tmp_path, cache)
    assert again.row("source", 0).tolist() == written[:2].tolist() and again.identity == first.identity


def test_an_entry_of_somebody_else_is_left_alone_and_not_used(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(tmp_path, cache)
    theirs = first.folder.lstat().st_ino

    def untrusted(path: Path, **options: bool) -> str | None:
        return f"{path} belongs to somebody" if path.lstat().st_ino == theirs else None

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(1, "not permitted", str(path))

    monkeypatch.setattr(corpora, "why_untrusted", untrusted)
    monkeypatch.setattr(corpora.shutil, "rmtree", refuse)
    with pytest.warns(UserWarning, match="belongs to somebody"):
        own = prepared(tmp_path, cache)
    assert own.folder == first.folder.with_name(f"{first.folder.name}.{os.geteuid()}") and first.folder.exists()
    assert own.identity == first.identity
    monkeypatch.setattr(corpora, "why_untrusted", lambda path, **options: f"{path} belongs to somebody")
    with pytest.warns(UserWarning, match="belongs to somebody"), pytest.raises(DataError, match="nothing is read from there"):
        prepared(tmp_path, cache)


def test_a_planted_packed_run_is_not_opened(tmp_path: Path, cache: Path) -> None:
    packed = tmp_path / "a.weft"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("config.yaml", "model: {}\n")
        archive.writestr("model.safetensors", b"")
    folder = unpacked(packed)
    assert (folder / "config.yaml").read_text() == "model: {}\n" and why_untrusted(folder) is None
    (folder / "config.yaml").write_text("model: {kind: planted}\n")
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to"):
        assert (unpacked(packed) / "config.yaml").read_text() == "model: {}\n"


def test_a_planted_shortlist_is_not_read(tmp_path: Path, cache: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    file = cached_file(run)
    planted = Shortlist(np.zeros((3, 1), np.int64), np.zeros(1, np.int64), False)
    planted.write(file).chmod(0o644)
    assert Shortlist.read(run, 3, 3, False).likely.shape == (3, 1)
    file.chmod(0o666)
    with pytest.warns(UserWarning, match="others may write to"), pytest.raises(RunError, match="no such file"):
        Shortlist.read(run, 3, 3, False)


def test_a_link_under_the_name_of_an_unfinished_output_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "out.txt.part").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"), opened(tmp_path / "out.txt") as file:
        file.write("lost")
    assert precious.read_text() == "keep" and not (tmp_path / "out.txt").exists()


def test_a_file_of_somebody_else_is_not_written_where_everybody_can_put_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert claim(tmp_path / "own").exists() and claim(tmp_path / "own")
    monkeypatch.setattr(file_access.os, "geteuid", lambda: 4321)
    claim(tmp_path / "own")  # on some disks all files belong to one user
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="somebody else"):
        claim(tmp_path / "own")
    (tmp_path / "out.txt.shards").mkdir()
    work = PredictionWork([], InputTexts([]), tmp_path / "out.txt")
    with pytest.raises(DataError, match="somebody else has created this folder"):
        ShardFolder(work).open(False, print)


def test_temporary_names_differ_from_call_to_call(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "a") as aside:
            names.add(aside.name)
            aside.write_text("x")
    assert len(names) == 3 and all(name.startswith(file_access.ASIDE) for name in names)


def sources() -> Iterator[tuple[Path, ast.AST]]:
    for folder in ("weft", "weft_studies", "deploy", "docs"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "_build" not in file.parts:
                yield file, ast.parse(file.read_text("utf-8"))


def test_no_source_names_a_file_in_a_folder_that_all_users_share() -> None:
    wrong = []
    for file, tree in sources():
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            name = node.attr if isinstance(node, ast.Attribute) else ""
            if text.startswith(("/tmp", "/var/tmp", "/dev/shm")) or name in ("mktemp", "gettempdir", "gettempprefix"):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {text or name}")
    assert not wrong, "use tempfile.mkstemp, mkdtemp, TemporaryDirectory, or weft.file_access.replacing_file"
