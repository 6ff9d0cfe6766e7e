"""Passwords, tokens and API keys appear in no message, no log, no metric and no file of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import tiny
from tests.helpers.serving import running, two_models
from weft.data.formats import open_pairs
from weft.errors import DataError, RunError, without_secrets
from weft.runs import hub

SECRET = "s3cr3t-of-a-user"

ADDRESSES = [
    f"https://ann:{SECRET}@data.example/a.tsv",
    f"https://{SECRET}@data.example/a.tsv.gz",
    f"s3://ann:{SECRET}@bucket/a.tsv",
    f"https://data.example/a.tsv?X-Amz-Signature={SECRET}",
    f"https://data.example/a.tsv?x=1&access_token={SECRET}",
    f"https://data.example/a.tsv?sig={SECRET}&e=1",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_secret_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(DataError, match="password or a token") as caught:
        open_pairs(f"{address}#1,2")
    assert SECRET not in str(caught.value) and SECRET not in repr(caught.value)


@pytest.mark.parametrize(
    "address", ["https://a.example/token.tsv?version=1", "github://owner:repo@main/a.tsv", "memory://x/a@b.tsv"]
)
def test_other_addresses_are_not_taken_for_secret(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec.core")

    def refuse(given: str) -> None:
        raise OSError("no connection")

    monkeypatch.setattr(fsspec, "url_to_fs", refuse)
    with pytest.raises(DataError, match="cannot be fetched: no connection"):
        open_pairs(address)


def test_a_training_on_such_an_address_leaves_no_trace(weft: tiny.Shell, tmp_path: Path) -> None:
    for address in (ADDRESSES[0], ADDRESSES[3]):
        weft("train", "transformer-tiny", "--data", address, "--out", tmp_path / "run", *tiny.sets(), status=1)
        assert SECRET not in weft.err + weft.out and "password or a token" in weft.err
        assert not any(SECRET.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_messages_hide_credentials_and_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("WEFT_API_KEYS", "first-key, second-key")
    monkeypatch.setenv("WEFT_SHORT_TOKEN", "a")
    said = f"GET https://ann:pass@a.example/b failed ({SECRET}, second-key); write to ann@a.example"
    shown = "GET https://***@a.example/b failed (***, ***); write to ann@a.example"
    assert without_secrets(said) == str(RunError(said)) == shown


def test_an_error_of_the_hub_does_not_show_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def snapshot_download(self, name: str, **options: object) -> str:
            raise ValueError(f"401 for https://user:{SECRET}@hub.example: bad token {SECRET}")

    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(hub, "_api", Api)
    with pytest.raises(RunError, match="cannot be downloaded: 401") as caught:
        hub.hub_folder("hf:user/name")
    assert SECRET not in str(caught.value)


def test_a_tracker_that_fails_does_not_show_its_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft.training.trackers.base import Tracker

    class Failing(Tracker):
        package = module = "json"

        def __init__(self) -> None:
            self.works = True

        open = send = end = None

    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    Failing.__abstractmethods__ = frozenset()
    Failing()._give_up(RuntimeError(f"the key {SECRET} is wrong"))
    assert capsys.readouterr().err == "warning: json receives nothing more of this run: the key *** is wrong\n"


def test_no_answer_log_or_metric_of_a_server_shows_a_key(
    reverse_run: Path, other_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, guessed, admin, listed = f"{SECRET}-1", f"{SECRET}-2", f"{SECRET}-3", f"{SECRET}-4"
    (tmp_path / "keys.txt").write_text(f"{listed} name=office rate=100\n")
    settings = {
        "keys": frozenset([kept]), "admin_keys": frozenset([admin]), "key_file": str(tmp_path / "keys.txt"), "log_text": True
    }  # fmt: skip
    answers = []
    with running(two_models(reverse_run, other_run), **settings) as shown:
        for key in (kept, guessed, admin, listed):
            headers = {"authorization": f"Bearer {key}"}
            for path in ("/metrics", "/health", "/v1/models", "/nothing", f"/translate?api_key={key}"):
                answers.append(shown.client.get(path, headers=headers))
            body = {"q": "a b", "source": "en", "target": "de", "api_key": key}
            answers.append(shown.client.post("/translate", json=body))
            answers.append(shown.client.post("/translate", json={**body, "q": {}, "alternatives": "x"}))
            answers.append(shown.client.post("/translate", data=body))
            answers.append(shown.client.post("/translate", content=f'{{"api_key": "{key}", '.encode()))
            answers.append(shown.client.post("/v1/translate", json={"text": 5}, headers=headers))
            answers.append(shown.client.post("/reload", headers=headers))
        log = json.dumps(shown.lines)
    assert {answer.status_code for answer in answers} >= {200, 400, 404}
    assert {answer.status_code for answer in answers} & {401, 403}
    written = capsys.readouterr()
    for text in (log, written.out, written.err, *(f"{answer.headers}{answer.text}" for answer in answers)):
        assert SECRET not in text
    assert len(shown.lines) > 20


def test_a_key_file_with_an_error_does_not_show_the_key(tmp_path: Path) -> None:
    from weft.errors import ConfigError
    from weft.serve.access_control import read_keys

    for line in (f"{SECRET} what=1", f"{SECRET} rate=x"):
        (tmp_path / "keys.txt").write_text(line)
        with pytest.raises(ConfigError, match="line 1") as caught:
            read_keys([], str(tmp_path / "keys.txt"))
        assert SECRET not in str(caught.value)
