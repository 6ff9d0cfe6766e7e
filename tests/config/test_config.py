"""Loading, changing, validating and saving configurations, with tables of small fake parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import ValidationError

from weft.config import sections as configuration
from weft.config.registry import Among
from weft.config.sections import (
    Config,
    DataSection,
    DecodeSection,
    TrainSection,
    commented_yaml,
    json_schema,
    load_config,
    recipes,
    save_config,
    save_schema,
    schema,
)
from weft.errors import ConfigError

ATTENTIONS = {"full": f"{__name__}:Full", "local": f"{__name__}:Local"}
ATTENTION = Annotated[dict[str, Any], Among(f"{__name__}:ATTENTIONS")]


class Full:
    """Every token sees every token."""

    def __init__(self, *, rotary: bool = False) -> None: ...


class Local:
    """A token sees its neighbours.

    window: how far it sees
    """

    def __init__(self, *, window: int = 64) -> None: ...


class Model:
    """A fake model."""

    def __init__(self, *, width: int = 256, dropout: float = 0.1, encoder_self: ATTENTION = {"kind": "full"}) -> None: ...  # noqa: B006


class Named:
    """A fake part that needs an option."""

    def __init__(self, *, path: str) -> None: ...


class Simple:
    """A fake part."""

    def __init__(self, *, rate: float = 1e-4, betas: tuple[float, float] = (0.9, 0.98)) -> None: ...


@pytest.fixture(autouse=True)
def fake_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    simple = f"{__name__}:Simple"
    monkeypatch.setattr("weft.models.MODELS", {"transformer": f"{__name__}:Model", "rnn": simple})
    monkeypatch.setattr("weft.tasks.TASKS", {"translation": simple})
    monkeypatch.setattr("weft.training.OPTIMIZERS", {"adamw": simple})
    monkeypatch.setattr("weft.training.SCHEDULES", {"inverse_sqrt": simple})
    monkeypatch.setattr("weft.data.TOKENIZERS", {"bpe": simple, "sentencepiece": f"{__name__}:Named"})


EXAMPLE = """\
# An example.
data:
  train: [a.en,a.de]
model:
  kind: transformer
  encoder_self:
    kind: local
    window: 16
train:
  steps: 500
"""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(EXAMPLE)
    return "my.yaml"


def write(text: str) -> str:
    Path("my.yaml").write_text(text)
    return "my.yaml"


def complaint(path: str, *sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, sets)
    return str(caught.value)


def test_reads_a_file_and_fills_the_defaults(example: str) -> None:
    config = load_config(example)
    assert config.train.steps == 500
    assert config.train.save_every == 500
    assert config.model == {
        "kind": "transformer",
        "width": 256,
        "dropout": 0.1,
        "encoder_self": {"kind": "local", "window": 16},
    }


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EXAMPLE.replace("steps", "step"), "my.yaml, line 10: train.step: there is no such option; did you mean 'steps'?"),
        (
            EXAMPLE.replace("window", "windw"),
            "my.yaml, line 8: model.encoder_self.windw: there is no such option; did you mean 'window'?",
        ),
        (
            EXAMPLE.replace("local", "lokal"),
            "my.yaml, line 7: model.encoder_self.kind: there is no 'lokal'; did you mean 'local'?",
        ),
        (EXAMPLE.replace("500", "-1"), "my.yaml, line 10: train.steps: input should be greater than 0 (given: -1)"),
        (EXAMPLE.replace("500", "many"), "my.yaml, line 10: train.steps: input should be a valid integer"),
        (
            EXAMPLE.replace("train:\n  steps", "trian:\n  steps"),
            "my.yaml, line 9: trian: there is no such option; did you mean 'train'?",
        ),
        (EXAMPLE.replace("[a.en,a.de]", "[1, 2]"), "my.yaml, line 3: data.train.0: input should be a valid string"),
        ("train: 7\n", "my.yaml, line 1: train: must be a mapping of options"),
        ("data: {tokenizer: sentencepiece}", "my.yaml, line 1: data.tokenizer.path: is required but missing"),
        (EXAMPLE + "  steps: 7\n", "my.yaml, line 11: train.steps occurs twice, first on line 10"),
        (EXAMPLE + "model: transformer\n", "my.yaml, line 11: model occurs twice, first on line 4"),
        ("", "my.yaml: the file is empty"),
        ("# only words\n", "my.yaml: the file is empty"),
        ("\n- data\n- model\n", "my.yaml, line 2: expected sections such as `data:`"),
        ("just words", "my.yaml, line 1: expected sections"),
        ("train:\n  steps: [1\nmodel: x\n", "my.yaml, line 3: not valid YAML"),
        ("train:\n\tsteps: 1\n", "my.yaml, line 2: not valid YAML"),
        ("train:\n  device: !!python/object:os.system x\n", "my.yaml, line 2: this value is not supported"),
        ("train: &a\n  steps: 1\ndecode: *a\n", "my.yaml, line 3: not valid YAML: an alias (*name) is not supported"),
        ("? [a, b]\n: 1\n", "my.yaml, line 1: a key must be a plain scalar"),
        ("train:\n  steps: \x07\n", "my.yaml: not valid YAML"),
    ],
)
def test_errors_name_file_and_line(text: str, message: str) -> None:
    assert complaint(write(text)).startswith(message)


def test_all_problems_are_reported_at_once(example: str) -> None:
    found = complaint(write("train:\n  step: 1\ndecode:\n  baem: 3\n"), "model.widht=3").split("\n")
    assert found == [
        "--set model.widht=3: there is no such option; did you mean 'width'?",
        "my.yaml, line 2: train.step: there is no such option; did you mean 'steps'?",
        "my.yaml, line 4: decode.baem: there is no such option; did you mean 'beam'?",
    ]


def test_a_missing_file_names_the_nearest_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(configuration, "recipes", lambda: {"transformer-small": tmp_path / "transformer-small.yaml"})
    assert (
        complaint("transformer-smal") == "transformer-smal: there is no such file or recipe; did you mean 'transformer-small'?"
    )


def test_a_folder_and_a_file_that_is_not_utf8_are_refused(example: str, tmp_path: Path) -> None:
    assert "cannot be read" in complaint(str(tmp_path))
    Path("latin.yaml").write_bytes(b"data:\n  cache: \xe4\n")
    assert complaint("latin.yaml") == "latin.yaml: byte 15 is not UTF-8; save the file as UTF-8"


def test_a_byte_order_mark_is_allowed(example: str) -> None:
    Path("bom.yaml").write_bytes(b"\xef\xbb\xbf" + EXAMPLE.encode())
    assert load_config("bom.yaml") == load_config(example)


def test_a_recipe_is_loaded_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(EXAMPLE)
    monkeypatch.setattr(configuration, "recipes", lambda: {"small": tmp_path / "small.yaml"})
    assert load_config("small").train.steps == 500
    assert configuration.recipe_summary(tmp_path / "small.yaml") == "An example."


def test_recipes_are_yaml_files_of_the_package() -> None:
    for name, path in recipes().items():
        assert path.is_file()
        assert path.name == f"{name}.yaml"


def test_values_are_read_as_yaml_1_2(example: str) -> None:
    train = "{optimizer: {kind: adamw, rate: 3e-5}, steps: 1e3, compile: true, device: on}"
    write(f"train: {train}\ndata: {{cache: no, train: [2026-01-31]}}\n")
    config = load_config(example)
    assert config.train.optimizer["rate"] == 3e-5
    assert (config.train.steps, config.train.compile, config.train.device) == (1000, True, "on")
    assert (config.data.cache, config.data.train) == ("no", ["2026-01-31"])


def test_a_section_with_nothing_in_it_is_all_defaults(example: str) -> None:
    assert load_config(write("train:\n# nothing here\ndecode:\n  beam: 2\n")).train.steps == 10_000


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["model.encoder_self=full"], {"kind": "full", "rotary": False}),
        (["model.encoder_self.kind=full"], {"kind": "full", "rotary": False}),
        (["model.encoder_self=local"], {"kind": "local", "window": 16}),
        (["model.encoder_self.window=8"], {"kind": "local", "window": 8}),
        (["model.encoder_self=full", "model.encoder_self.rotary=true"], {"kind": "full", "rotary": True}),
        (["model.encoder_self.rotary=true", "model.encoder_self=full"], {"kind": "full", "rotary": True}),
        (["model.encoder_self={kind: local, window: 2}"], {"kind": "local", "window": 2}),
        (["model.encoder_self.window=8", "model.encoder_self.window=9"], {"kind": "local", "window": 9}),
    ],
)
def test_set_reaches_into_parts(example: str, sets: list[str], expected: dict[str, Any]) -> None:
    assert load_config(example, sets).model["encoder_self"] == expected


def test_set_changes_defaults_that_are_not_written(example: str) -> None:
    write("decode: {beam: 2}\n")
    config = load_config(
        example, ["train.steps=7", "model.dropout=0.3", "model.encoder_self.rotary=true", "train.optimizer.rate=1e-3"]
    )
    assert (config.train.steps, config.model["dropout"], config.decode.search["width"]) == (7, 0.3, 2)
    assert config.model["encoder_self"] == {"kind": "full", "rotary": True}
    assert config.train.optimizer == {"kind": "adamw", "rate": 1e-3, "betas": (0.9, 0.98)}


def test_set_to_the_kind_it_has_keeps_the_options(example: str) -> None:
    assert load_config(write("model: {width: 3}"), ["model=transformer"]).model["width"] == 3
    assert load_config(write("model: {width: 3}"), ["model=rnn"]).model["kind"] == "rnn"


def test_a_problem_in_the_file_is_not_blamed_on_set(example: str) -> None:
    write(EXAMPLE.replace("window", "windw"))
    assert complaint(example, "model.encoder_self=local").startswith("my.yaml, line 8: model.encoder_self.windw")
    assert complaint(example, "model.encoder_self.kind=local").startswith("my.yaml, line 8: model.encoder_self.windw")


def test_set_completes_what_the_file_leaves_open(example: str) -> None:
    write("data: {tokenizer: sentencepiece}\n")
    assert load_config(example, ["data.tokenizer.path=x.model"]).data.tokenizer == {"kind": "sentencepiece", "path": "x.model"}


def test_set_takes_lists_null_and_text_with_equals(example: str) -> None:
    config = load_config(example, ["data.valid=['v.en,v.de']", "data.max_ratio=null", "data.cache=a=b"])
    assert (config.data.valid, config.data.max_ratio, config.data.cache) == (["v.en,v.de"], None, "a=b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.step=5", "--set train.step=5: there is no such option; did you mean 'steps'?"),
        ("train.steps=0", "--set train.steps=0: input should be greater than 0 (given: 0)"),
        ("train.steps=true", "--set train.steps=true: must be a number"),
        (
            "model.encoder_self=lokal",
            "--set model.encoder_self=lokal: model.encoder_self.kind: there is no 'lokal'; did you mean 'local'?",
        ),
        ("model.encoder_self.kind=lokal", "--set model.encoder_self.kind=lokal: model.encoder_self.kind: there is no 'lokal'"),
        ("nothing.here=1", "--set nothing.here=1: there is no such option"),
        ("train.steps.more=1", "--set train.steps.more=1: train.steps is 500, which has no options"),
        ("train.steps", "--set train.steps: expected section.key=value"),
        ("=5", "--set =5: expected section.key=value"),
        ("train..steps=5", "--set train..steps=5: expected section.key=value"),
        ("train.steps=[1", "--set train.steps=[1: the value is not valid YAML"),
        ("train=fast", "--set train=fast: must be a mapping of options"),
    ],
)
def test_a_problem_in_set_names_set(example: str, change: str, message: str) -> None:
    assert complaint(example, change).startswith(message)


def test_saving_and_loading_is_a_round_trip(example: str, tmp_path: Path) -> None:
    odd = [
        "data.cache='no'",
        "data.train=['a: b', '- c', '1e-4', '#x', 'ü,字', '']",
        "train.optimizer.rate=1e-7",
        "train.device='1:0'",
    ]
    config = load_config(example, odd)
    assert config.data.train == ["a: b", "- c", "1e-4", "#x", "ü,字", ""]
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config
    assert "ü,字" in (tmp_path / "saved.yaml").read_text("utf-8")
    Path("commented.yaml").write_text(commented_yaml(config))
    assert load_config("commented.yaml") == config


def test_a_saved_file_has_every_default_in_order(example: str, tmp_path: Path) -> None:
    save_config(Config(), tmp_path / "saved.yaml")
    lines = (tmp_path / "saved.yaml").read_text().split("\n")
    assert lines[0].startswith("# written by weft ")
    assert [line for line in lines if line and line[0] not in " #"] == [
        "data:",
        "start:",
        "model:",
        "task:",
        "train:",
        "decode:",
    ]
    written = {line.split(":")[0].strip() for line in lines}
    assert {name for section in (DataSection, TrainSection, DecodeSection) for name in section.model_fields} <= written


def test_a_saved_file_refers_to_a_schema_beside_it(example: str, tmp_path: Path) -> None:
    save_config(Config(), tmp_path / "without.yaml")
    path = save_schema(tmp_path)
    save_config(Config(), tmp_path / "with.yaml")
    assert json.loads(path.read_text()) == json_schema()
    line = f"# yaml-language-server: $schema={path.name}\n"
    assert line in (tmp_path / "with.yaml").read_text()
    assert line not in (tmp_path / "without.yaml").read_text()


def test_a_commented_file_says_what_each_key_does() -> None:
    text = commented_yaml(Config(model={"kind": "transformer", "encoder_self": "local"}))
    assert "  steps: 10000  # number of optimiser steps\n" in text
    assert "\n# Optimisation, validation and checkpoints.\ntrain:\n" in text
    assert "; one of float32, bf16\n" in text
    assert "    kind: local  # or full\n    window: 64  # how far it sees\n" in text


def test_every_key_has_a_type_in_words_and_a_description() -> None:
    fields = DataSection.model_fields | TrainSection.model_fields
    names = {key: schema.type_name(field.annotation, field.metadata) for key, field in fields.items()}
    assert names["steps"] == "integer > 0" and names["ema"] == "number ≥ 0 < 1"
    assert names["max_ratio"] == "number > 0 or null" and names["train"] == "list of text or options"
    assert names["precision"] == "one of float32, bf16" and names["packed"] == "true or false or one of auto"
    assert all(field.description for field in (fields | DecodeSection.model_fields).values())


@pytest.mark.usefixtures("example")
def test_the_json_schema_accepts_what_loads_and_refuses_what_does_not() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(json_schema())
    check.check_schema(json_schema())
    for good in (
        {"model": "transformer", "train": {"steps": 5}},
        {"model": {"kind": "transformer", "encoder_self": {"kind": "local", "window": 3}}},
        {"model": {"kind": "transformer", "encoder_self": "local"}},
        {"data": {"tokenizer": {"kind": "sentencepiece", "path": "x"}}},
        json.loads(Config().model_dump_json()),
    ):
        assert check.is_valid(good), good
        Config.model_validate(good)
    for bad in (
        {"train": {"step": 5}},
        {"model": {"kind": "transformer", "encoder_self": {"kind": "local", "rotary": True}}},
        {"data": {"tokenizer": "sentencepiece"}},
        {"model": "transfomer"},
        {"train": {"precision": "bf15"}},
    ):
        assert not check.is_valid(bad), bad
        with pytest.raises(ValidationError):
            Config.model_validate(bad)


def test_python_code_may_use_the_shorthand_and_replace_values() -> None:
    config = Config(model="rnn")
    changed = config.replaced({"train.steps": 3, "model": "transformer"})
    assert (changed.train.steps, changed.model["width"], config.train.steps) == (3, 256, 10_000)
    with pytest.raises(ConfigError, match=r"train.steps: input should be greater than 0"):
        config.replaced({"train.steps": 0})
    with pytest.raises(ValidationError, match="frozen"):
        config.train.steps = 3
