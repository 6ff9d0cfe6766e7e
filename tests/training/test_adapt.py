"""`weft adapt`: what it trains on, what it leaves behind, and the way from a correction to the answer of a server."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import weft as package
from tests.helpers.serving import running, wait_for
from tests.helpers.tiny import Shell
from weft.data.formats import open_pairs
from weft.errors import ConfigError, DataError
from weft.runs.adapted_runs import model_version, newest_adapted
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.training.adapt import adapt


def corrections(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Reversed sequences with h for a: what the run has learnt, but for one word."""
    chance = random.Random(seed)
    texts = {" ".join(chance.choices("abcdefgh", k=chance.randint(2, 5))) for _ in range(2 * count)}
    return [(text, text[::-1].replace("a", "h")) for text in sorted(texts)[:count]]


@pytest.fixture
def run(reverse_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(reverse_run, tmp_path / "run")


def write(file: Path, pairs: list[tuple[str, str]]) -> str:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(file)


def test_from_a_suggestion_to_the_answers_of_a_running_server(run: Path, tmp_path: Path) -> None:
    memory, pairs = tmp_path / "corrections.tmx", corrections(60)
    location = ModelLocation((str(run),), ("en", "de"))
    with running(Models([location], device="cpu"), suggestions=str(memory)) as served:

        def answer(text: str) -> dict[str, Any]:
            return dict(served.post("/v1/translate", text=text))

        first = answer("c d a")
        assert first["translations"][0]["text"] == "a d c" and first["version"] == model_version([run])
        for source, target in pairs:
            served.post("/suggest", q=source, s=target, source="en", target="de")
        assert list(open_pairs(f"{memory}#en,de")) == pairs
        made = adapt(run, str(memory), old=[str(memory)], device="cpu", set={"train.steps": 100, "train.schedule.rate": 1e-2})
        wait_for(lambda: answer("b")["version"] == made.version)
        assert made.version.endswith(".adapted-1") and made.version != first["version"]
        assert answer("c d a")["translations"][0]["text"] == "h d c"  # a text that no correction has
        reply = served.client.post("/translate", json={"q": "c d a", "source": "en", "target": "de"})
        assert (reply.json()["translatedText"], reply.headers["Weft-Version"]) == ("h d c", made.version)
        shutil.rmtree(made.folder)
        wait_for(lambda: answer("b")["version"] == first["version"])
        assert answer("c d a") == first


def test_what_is_held_out_is_scored_and_not_learnt(run: Path, tmp_path: Path) -> None:
    pairs = corrections(100)
    file = write(tmp_path / "memory.tsv", [*pairs, (pairs[0][0], "b")])
    made = adapt(run, file, device="cpu", set={"train.steps": 2})
    data = run / "adapted" / "0001-data"
    training, held = (list(open_pairs(str(data / name))) for name in ("corrections.jsonl", "held-out.jsonl"))
    assert (len(training), len(held)) == (90, 10) == (made.corrections, len(set(held) - set(training)))
    assert {pair[0] for pair in (*training, *held)} == {source for source, _ in pairs}
    assert (pairs[0][0], "b") in [*training, *held] and pairs[0] not in [*training, *held]  # the last one counts
    assert set(made.scores) == {"held-out corrections", "old validation data"}
    facts = json.loads((made.folder / "adapted.json").read_text("utf-8"))
    assert facts["version"] == made.version and facts["scores"]["old validation data"][0] > 90
    assert not (made.folder / "checkpoints").exists() and package.load(made.folder).translate("a b").text


def test_a_second_adaptation_and_one_that_was_interrupted(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, quick = write(tmp_path / "memory.tsv", corrections(12)), {"train.steps": 1}
    assert newest_adapted(run) is None
    first = adapt(run, file, device="cpu", set=quick)
    with monkeypatch.context() as patched:
        patched.setattr("weft.training.adapt.complete_adapted", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adapt(run, file, device="cpu", set=quick)
    assert newest_adapted(run) == first.folder and (run / "adapted" / "0002").exists()
    second = adapt(run, file, device="cpu", set=quick)
    assert newest_adapted(run) == second.folder == run / "adapted" / "0002"


def test_old_data_that_is_gone_is_reported(run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    file = write(tmp_path / "memory.tsv", corrections(12))
    made = adapt(run, file, old=[str(tmp_path / "gone.tsv")], device="cpu", set={"train.steps": 1}, tell=told.append)
    assert made.old == 0 and any("gone.tsv" in line and "--old" in line for line in told)


def test_errors(weft: Shell, run: Path, tmp_path: Path) -> None:
    (tmp_path / "packed.weft").touch()
    with pytest.raises(ConfigError, match="weft unpack"):
        adapt(tmp_path / "packed.weft", "memory.tsv")
    with pytest.raises(DataError, match="is empty"):
        adapt(run, write(tmp_path / "empty.tsv", []), device="cpu")
    weft.fails("adapt", run, "--memory", tmp_path / "no.tmx", says=["no.tmx"])


def test_the_command_reports_scores(weft: Shell, run: Path, tmp_path: Path) -> None:
    memory = write(tmp_path / "memory.tsv", corrections(12))
    weft("adapt", run, "--memory", memory, "--device", "cpu", "--set", "train.steps=1")
    assert "BLEU of old validation data: 9" in weft.err and f"weft translate {run}/adapted/0001" in weft.err
