"""The format of runs, and each migration of what an earlier weft wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import weft as package
from tests.helpers import tiny
from weft.config.sections import load_config
from weft.errors import RunError
from weft.runs.migrations import (
    FORMAT,
    MIGRATIONS,
    check_format,
    find_file,
    migrate_config,
    migrate_metadata,
    migrate_weights,
    read_request,
)
from weft.runs.open_run import open_run
from weft.runs.weight_files import read_tensors
from weft.tasks.run_tokenizers import tokenizers_of
from weft.training.checkpoint import published, published_by_command
from weft.training.resumption import trained_config
from weft.version import VERSION

OLD = Path(__file__).parents[1] / "fixtures" / "old_runs"


def test_a_new_run_says_its_format(reverse_run: Path) -> None:
    written = json.loads((reverse_run / "run.json").read_text())
    assert written == {"format": FORMAT, "weft": VERSION, "request": read_request(reverse_run)}
    assert check_format(reverse_run) == FORMAT == MIGRATIONS[-1].format
    assert check_format(OLD / "transformer") == 1


def test_runs_that_commands_write_say_their_format(weft: tiny.Shell, tmp_path: Path) -> None:
    weft("average", shutil.copytree(OLD / "transformer", tmp_path / "run"), "--out", tmp_path / "averaged")
    assert check_format(tmp_path / "averaged") == FORMAT
    assert "search" in (tmp_path / "averaged" / "config.yaml").read_text()
    tensors = read_tensors(tmp_path / "averaged" / "model.safetensors")
    assert tensors.keys() == read_tensors(OLD / "transformer" / "model.safetensors").keys()
    open_run(tmp_path / "averaged")


@pytest.mark.parametrize("command", ["translate", "evaluate", "train --resume", "train --from", "average", "merge", "explain"])
def test_a_run_of_a_newer_format_is_refused(command: str, weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(reverse_run, tmp_path / "run"))
    (run / "run.json").write_text('{"format": 99, "weft": "9.0"}\n')
    more = {"translate": ["a b"], "evaluate": ["--data", tiny.generated("reverse", 5)], "merge": ["--out", tmp_path / "out"]}
    says = [f"{run}: the run has format 99, of weft 9.0", f"reads formats up to {FORMAT}; update it: pip install --upgrade"]
    weft.fails(*command.split(), run, *more.get(command, ["a b"] if command == "explain" else []), says=says)


def test_tokenizers_of_a_newer_run_are_refused(reverse_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(reverse_run, tmp_path / "run"))
    (run / "run.json").write_text('{"format": 3}')
    with pytest.raises(RunError, match="the run has format 3"):
        tokenizers_of(load_config("lm-tiny").replaced({"data.tokenizer_of": str(run)}))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "new"}', '{"format": null}'])
def test_a_damaged_format_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError, match=r"run\.json: the format of the run cannot be read"):
        check_format(tmp_path)


def test_versions_ascend() -> None:
    formats = [migration.format for migration in MIGRATIONS]
    assert formats == sorted(formats) and all(migration.change for migration in MIGRATIONS)


FLAT = {"beam": 7, "length_penalty": 0.6, "stop": "first", "sample": False}
FLAT |= {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 4, "max_length": 9}


@pytest.mark.parametrize(
    ("sample", "search"),
    [
        (False, {"kind": "beam", "width": 7, "length_penalty": 0.6, "stop": "first"}),
        (True, {"kind": "sample", "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 4}),
    ],
)
def test_options_beside_each_other_become_a_search(sample: bool, search: dict[str, Any]) -> None:
    migrated = migrate_config({"decode": {**FLAT, "sample": sample}})
    assert migrated == {"decode": {"search": search, "max_length": 9}}
    assert migrate_config(migrated) == migrated
    assert load_config(OLD / "transformer" / "config.yaml").decode.search["width"] == 1


@pytest.mark.parametrize("config", [{}, {"decode": None}, {"decode": {"beam": 2}}, {"decode": 3, "model": 4, "start": 5}])
def test_what_a_user_wrote_stays(config: dict[str, Any]) -> None:
    assert migrate_config(config) == config


def test_weights_of_embeddings_belong_to_the_frontend() -> None:
    old = {"encoder.embedding.table.x": 1, "encoder.base.embedding.position.x": 2, "decoder.embedding.table.x": 3}
    new = {"encoder.front.table.x": 1, "encoder.base.position.x": 2, "decoder.embedding.table.x": 3}
    assert migrate_weights(old) == new == migrate_weights(new)
    optimizer = {"model/encoder.embedding.ngrams.weight/exp_avg": 1}
    assert migrate_weights(optimizer) == {"model/encoder.front.ngrams.weight/exp_avg": 1}
    inner = {"encoder.front.table.weight": 1, "encoder.embedding.table.weight": 2}  # a frontend, and a part that is called so
    assert migrate_weights(inner) == inner


def test_published_weights_name_their_command() -> None:
    assert migrate_metadata({}) == {}
    assert migrate_metadata({"step": "3"}) == {"by": "train", "step": "3"}
    assert migrate_metadata({"averaged": "1,2"})["by"] == "average"
    assert migrate_metadata({"averaged": "1,2", "by": "train"})["by"] == "train"
    assert not published_by_command(published(OLD / "transformer"))


def test_checkpoints_without_settings_were_trained_with_those_of_the_run(reverse_run: Path) -> None:
    assert find_file(OLD / "rnn", "checkpoints/config.yaml") == OLD / "rnn" / "config.yaml"
    assert find_file(reverse_run, "checkpoints/config.yaml") == reverse_run / "checkpoints" / "config.yaml"
    assert find_file(OLD / "rnn", "labels.json") == OLD / "rnn" / "labels.json"
    assert trained_config(OLD / "rnn").train.steps == 400


def test_adapters_of_a_trained_run_have_no_rank_of_embeddings() -> None:
    trained = {"model": {"lora": {"rank": 4}}, "start": {"weights": "0123"}}
    assert migrate_config(trained)["model"]["lora"] == {"rank": 4, "embedding_rank": 0}
    recipe = {"model": {"lora": {"rank": 4}}, "start": {"run": "base"}}
    assert migrate_config(recipe) == recipe
    for lora in ({"rank": 4, "embedding_rank": 2}, None):
        assert migrate_config({**trained, "model": {"lora": lora}})["model"]["lora"] == lora


def test_an_old_run_that_is_resumed_stays_one_that_loads(tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLD / "rnn", tmp_path / "run"))
    package.train(out=run, resume=True, set={"train.steps": 401})
    assert check_format(run) == FORMAT and "search:" in (run / "config.yaml").read_text()
    open_run(run)
