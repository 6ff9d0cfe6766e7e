"""Who may use the server: keys, other web sites, and names of the server."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from tests.helpers.serving import wait_for
from weft.errors import ConfigError
from weft.serve.access_control import ENVIRONMENT, check_site, find_key, read_keys
from weft.serve.settings import Settings

ASKED = {"q": "a b", "source": "en", "target": "de"}


def test_a_key_file_has_comments_names_rates_and_admins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# our keys\n\n  secret name=anna rate=5  # expires never\nroot admin\n")
    monkeypatch.setenv(ENVIRONMENT, "third, fourth")
    keys = read_keys(["first"], str(file))
    assert [(key.name, key.rate, key.admin) for key in keys] == [
        *((f"option {number}", None, False) for number in (1, 2, 3)),
        ("anna", 5, False),
        ("key 4", None, True),
    ]
    assert find_key(keys, "#") is None and find_key(keys, "# our keys") is None and find_key(keys, "") is None
    assert all(find_key(keys, secret) for secret in ("first", "third", "fourth", "secret", "root"))
    assert b"secret" not in repr(keys).encode()
    for text, says in (("a nme=b", "line 1: unknown word 'nme'"), ("a rate=x", "rate is a number"), ("# only\n", "no key")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            read_keys([], str(file))


def test_keys_are_read_again_at_reload_which_needs_an_admin_key(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old name=anna\nroot admin\n")
    shown = serve(key_file=str(file))
    shown.post("/translate", **ASKED, api_key="old")
    wait_for(lambda: "key" in shown.lines[-1])  # the line is written after the answer
    assert shown.lines[-1]["key"] == "anna" and shown.lines[-1]["client"] == "127.0.0.1"
    file.write_text("new\nroot admin\n")
    assert "admin" in shown.post("/v1/reload", status=403, headers={"Authorization": "Bearer old"})["error"]
    shown.post("/v1/reload", headers={"Authorization": "Bearer root"})
    shown.post("/translate", **ASKED, api_key="new")
    shown.post("/translate", status=403, **ASKED, api_key="old")


def test_keys_have_their_own_rates(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("slow rate=1\nfast\n")
    shown = serve(key_file=str(tmp_path / "keys"), rate=100)
    shown.post("/translate", **ASKED, api_key="slow")
    assert "at most 1 " in shown.post("/translate", status=429, **ASKED, api_key="slow")["error"]
    for _ in range(3):
        shown.post("/translate", **ASKED, api_key="fast")


def test_wrong_keys_are_limited_by_address(serve: Any) -> None:
    shown = serve(keys=frozenset({"right"}))
    shown.post("/translate", **ASKED, api_key="right")
    found = [shown.client.post("/translate", json={**ASKED, "api_key": f"guess {k}"}).status_code for k in range(12)]
    assert found == [403] * 10 + [429] * 2
    answer = shown.client.post("/translate", json={**ASKED, "api_key": "right"})
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1


def test_the_key_is_checked_before_the_body_and_accepted_in_every_place(serve: Any) -> None:
    shown = serve(keys=frozenset({"right"}))
    for path in ("/translate", "/detect", "/v1/translate", "/v1/explain"):
        for content in (b"{", b"{}", b"[1]", b'{"beam": 0}'):
            answer = shown.client.post(path, content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["error"]) == (400, "Please send an API key with your request")
    body = {"text": "a b", "model": "reverse"}
    for path in ("/v1/translate", "/v1/explain"):
        for how in (
            {"json": {**body, "api_key": "right"}},
            {"json": body, "params": {"api_key": "right"}},
            {"json": body, "headers": {"X-API-Key": "right"}},
            {"json": body, "headers": {"Authorization": "Bearer right"}},
        ):
            assert shown.client.post(path, **how).status_code == 200


def test_pages_of_other_sites_do_not_reach_the_model(served: Any, serve: Any) -> None:
    foreign = {"Origin": "https://evil.example"}
    assert "--cors" in served.post("/translate", status=403, **ASKED, headers=foreign)["error"]
    for origin in ("null", "http://127.0.0.1:1"):
        served.post("/translate", status=403, **ASKED, headers={"Origin": origin})
    served.post("/translate", **ASKED, headers={"Origin": served.url})
    assert "text/plain" in served.post("/translate", status=415, **ASKED, headers={"content-type": "text/plain"})["error"]
    served.post("/v1/translate", status=415, text="a", model="reverse", headers={"content-type": "text/plain"})
    allowed = serve(origins=("https://evil.example",))
    allowed.post("/translate", **ASKED, headers=foreign)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, {"translate.example", "evil.example"}),
        ({"host": "0.0.0.0"}, set()),
        ({"hosts": ("*",)}, set()),
        ({"hosts": ("translate.example",)}, {"evil.example"}),
        ({"host": "0.0.0.0", "hosts": ("translate.example",)}, {"evil.example"}),
    ],
)
def test_a_health_check_on_the_machine_itself_is_answered_under_every_name(settings: Any, refused: set[str]) -> None:
    for name in ("localhost:5000", "[::1]:5000", "translate.example", "evil.example"):
        with pytest.raises(HTTPException, match="--allowed-host") if name in refused else nullcontext():
            check_site(Settings(**settings), "GET", {b"host": name.encode()})


def test_a_proxy_may_have_its_own_name_and_path(served: Any, serve: Any) -> None:
    named = {"Host": "translate.example"}
    assert "--allowed-host translate.example" in served.client.get("/health", headers=named).json()["error"]
    shown = serve(hosts=("translate.example",), prefix="/weft")
    for path in ("/health", "/weft/health", "/weft/static/page.css", "/weft/"):
        assert shown.client.get(path, headers=named).status_code == 200
    assert shown.client.get("/weft").headers["location"] == "/weft/"
    assert shown.client.get("/weftx").status_code == 404
    shown.post("/weft/translate", **ASKED, headers={**named, "Origin": "https://translate.example"})
    assert not any(mark in shown.client.get("/weft/").text for mark in ('href="/', 'src="/', 'action="/'))
