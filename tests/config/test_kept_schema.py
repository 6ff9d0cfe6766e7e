"""The schema is made once for each state of the sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from weft.config import kept_schema as kept

PARTS = [("full", "weft.attention.full:Full"), ("ntm", "weft_studies.bits:Turing")]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages, and an empty cache beside them."""
    for package in kept.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "part.py").write_text("old")
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def made(text: str) -> tuple[Callable[[], str], list[str]]:
    """A function that returns a text, and a list of its calls."""
    calls: list[str] = []
    return lambda: calls.append(text) or text, calls  # type: ignore[func-returns-value]


def test_it_is_made_once_for_each_state_of_the_sources(sources: Path) -> None:
    make, calls = made("{\n ü\n}\n")
    assert [kept.kept_schema(PARTS, make) for _ in range(2)] == ["{\n ü\n}\n"] * 2 and len(calls) == 1
    (sources / "weft_studies" / "part.py").write_text("changed")
    assert kept.kept_schema(PARTS, make) == "{\n ü\n}\n" and len(calls) == 2
    kept.kept_schema(PARTS[:1], make)
    assert len(calls) == 3, "other parts"
    assert len(list((sources / "cache" / "weft" / "schemas").iterdir())) == 1, "nothing piles up"


@pytest.mark.parametrize("damage", [lambda text: text[:-3], lambda text: b"", lambda text: text.replace(b"a", b"\xff")])
def test_a_damaged_one_is_made_anew(sources: Path, damage: Callable[[bytes], bytes]) -> None:
    make, calls = made("a b c")
    kept.kept_schema(PARTS, make)
    (file,) = (sources / "cache" / "weft" / "schemas").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert kept.kept_schema(PARTS, make) == kept.kept_schema(PARTS, make) == "a b c" and len(calls) == 2


def test_one_that_others_may_write_to_is_made_anew(sources: Path) -> None:
    make, calls = made("a b c")
    kept.kept_schema(PARTS, make)
    (file,) = (sources / "cache" / "weft" / "schemas").iterdir()
    file.chmod(0o666)
    assert kept.kept_schema(PARTS, make) == kept.kept_schema(PARTS, make) == "a b c" and len(calls) == 2


def test_without_a_cache_and_with_parts_of_others_it_is_made_each_time(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, calls = made("a")
    kept.kept_schema([*PARTS, ("cosine", "my_package.attention:Cosine")], make)
    assert len(calls) == 1 and not (sources / "cache").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources / "weft" / "part.py"))
    assert kept.kept_schema(PARTS, make) == "a" and len(calls) == 2
