"""Runs on the hub: there and back with the same translations, nothing of this machine, nothing executed, and offline."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import weft as library
from tests.helpers import tiny
from tests.helpers.hub import Hub, hub
from weft.errors import ConfigError, RunError
from weft.runs.hub import hub_folder, pull_run, push_run

pytest.importorskip("huggingface_hub")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        for name, value in (("ENDPOINT", ""), ("HUGGINGFACE_CO_URL_TEMPLATE", "/{repo_id}/resolve/{revision}/{filename}")):
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", found.url + value)  # read when it was imported
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield found


TEXTS = ["a b c", "c a"]


def translations(run: Path | str) -> list[str]:
    return [each.text for each in library.load(run).translate(TEXTS)]


def test_a_run_travels_there_and_back(server: Hub, reverse_run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    said = weft("push", reverse_run, "me/reverse", "--private")
    assert f"{server.url}/me/reverse" in said and server.private == {"me/reverse": True}
    files = server.files["me/reverse"]
    assert {"README.md", "config.yaml", "model.safetensors", "tokenizer.json"} <= set(files)
    for name, content in files.items():
        assert str(reverse_run).encode() not in content and b"generated:" not in content.replace(files["README.md"], b""), name
    assert yaml.safe_load(files["README.md"].decode().split("---")[1])["library_name"] == "weft"
    weft("pull", "me/reverse", "--out", tmp_path / "mine")
    expected = translations(reverse_run)
    assert translations(tmp_path / "mine") == expected == translations("hf:me/reverse")
    assert weft("translate", "hf:me/reverse", "a b c").strip() == expected[0]
    weft.fails("pull", "me/reverse", "--out", tmp_path / "mine", says=["does not overwrite"])


def test_a_second_upload_replaces_the_files_of_the_first(server: Hub, reverse_run: Path) -> None:
    push_run(reverse_run, "me/reverse")
    server.files["me/reverse"] |= {"marks.json": b"{}", "notes.txt": b"mine"}
    push_run(reverse_run, "me/reverse")
    assert "marks.json" not in server.files["me/reverse"], "it belonged to an earlier run"
    assert "notes.txt" in server.files["me/reverse"]


def test_without_a_connection_the_last_download_is_used(
    server: Hub, reverse_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_run(reverse_run, "me/reverse")
    first = hub_folder("hf:me/reverse")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert hub_folder("hf:me/reverse") == first
    with pytest.raises(RunError, match="hf:me/other: the run cannot be downloaded"):
        hub_folder("hf:me/other")


def test_other_files_are_not_taken_along_and_nothing_is_executed(server: Hub, reverse_run: Path, tmp_path: Path) -> None:
    push_run(reverse_run, "me/reverse")
    marker = tmp_path / "executed"
    code = f"open({str(marker)!r}, 'w')".encode()
    evil = {"weft_plugin.py": code, "setup.py": code, "model.pkl": b"cos\nsystem\n.", "sub/config.yaml": b"x"}
    server.files["me/reverse"] |= evil
    server.files["me/reverse"]["../up.json"] = b"x"
    with pytest.raises(RunError, match="cannot be downloaded"):
        pull_run("me/reverse", tmp_path / "mine")
    del server.files["me/reverse"]["../up.json"]
    pull_run("me/reverse", tmp_path / "mine")
    assert not {file.name for file in (tmp_path / "mine").iterdir()} & {
        Path(name).name for name in evil if name != "sub/config.yaml"
    }
    translations(tmp_path / "mine")
    assert not marker.exists() and "weft_plugin" not in sys.modules
    config = server.files["me/reverse"]["config.yaml"]
    server.files["me/reverse"]["config.yaml"] = config + b"evil: !!python/object/apply:os.system ['true']\n"
    with pytest.raises(ConfigError):
        translations("hf:me/reverse")


def test_what_is_no_run_is_refused(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="hf:me/none: the run cannot be downloaded"):
        library.load("hf:me/none")
    server.files["me/empty"], server.private["me/empty"] = {"README.md": b"x"}, False
    with pytest.raises(RunError, match=r"not a run of weft: it has no config\.yaml and no model"):
        pull_run("me/empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for wrong in ("", "a/b/c", "../x", "a b", "me/x@"):
        with pytest.raises(ConfigError, match="name a repository"):
            hub_folder(wrong)


def test_without_the_package_the_extra_is_named(reverse_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'weft-seq2seq\[hub\]'"):
        push_run(reverse_run, "me/reverse")
