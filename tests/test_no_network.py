"""Commands need no network: they connect to nothing but this machine, and resolve no names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from tests.helpers.serving import running, two_models

LOCAL = ("127.0.0.1", "::1", "localhost", "")


class Tried(list[str]):
    """The hosts that something tried to reach."""


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tried]:
    """Refuses connections to other machines and questions to name servers; nothing may have tried."""
    found = Tried()

    def refused(name: str, real: Any, place: int) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            target = given[place] if len(given) > place else options.get("host", "")
            host = target[0] if isinstance(target, tuple) else target
            if isinstance(host, str) and host not in LOCAL and not host.startswith(("/", "\0")):
                found.append(f"{name} {host}")
                raise OSError(f"there is no network ({host})")
            return real(*given, **options)

        return call

    calls = [(socket.socket, "connect", 1), (socket.socket, "connect_ex", 1), (socket, "getaddrinfo", 0)]
    for owner, name, place in [*calls, (socket, "gethostbyname", 0)]:
        monkeypatch.setattr(owner, name, refused(name, getattr(owner, name), place))
    yield found
    assert not found


def test_what_connects_is_noticed(tried: Tried) -> None:
    with socket.socket() as one, pytest.raises(OSError, match="there is no network"):
        one.connect(("192.0.2.1", 9))
    with pytest.raises(OSError, match="there is no network"):
        socket.create_connection(("weft.example", 443), 1)
    assert tried == ["connect 192.0.2.1", "getaddrinfo weft.example"]
    tried.clear()


def test_commands_need_no_network(weft: tiny.Shell, reverse_run: Path, tmp_path: Path, tried: Tried) -> None:
    (tmp_path / "in.txt").write_text("a b c\nd e\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"a b {n}\t{n} b a\n" for n in range(60)))
    small = tiny.sets({"train.steps": 2, "train.save_every": 1})
    weft("train", "transformer-tiny", "--data", tmp_path / "pairs.tsv", "--out", tmp_path / "run", *small)
    weft("translate", reverse_run, tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    weft("evaluate", reverse_run, "--data", tiny.generated("reverse", 20, "valid"))
    weft("average", tmp_path / "run", "--last", "2")
    weft("data", "check", tmp_path / "pairs.tsv")
    weft("data", "clean", tmp_path / "pairs.tsv", "-o", tmp_path / "clean.tsv")
    weft("list", "recipes")
    weft("new", tmp_path / "config.yaml")
    weft("explain", reverse_run, "a b c", "-o", tmp_path / "a.html")
    weft("pack", reverse_run, "-o", tmp_path / "a.weft")
    weft("translate", tmp_path / "a.weft", stdin="a b\n")
    assert (tmp_path / "out.txt").read_text().splitlines() == ["c b a", "e d"]


def test_a_server_needs_no_network(reverse_run: Path, other_run: Path, tried: Tried) -> None:
    with running(two_models(reverse_run, other_run)) as shown:
        assert shown.translate("a b c", source="en", target="de")[0]["text"] == "c b a"
        assert shown.client.get("/metrics").status_code == 200 and shown.client.get("/").status_code == 200
