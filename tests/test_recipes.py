"""Every recipe loads, says what it is for, builds its model and trains for a step. A score or a time in it is a figure."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator

import weft
from tests.helpers import labelled_translations, shapes, tones
from weft.config import yaml_document
from weft.config.sections import json_schema, load_config, recipe_summary, recipes, save_config
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.training.result_files import read_samples

RECIPES = sorted(recipes())
LARGE = {
    name: {"model.encoder_layers": 1, "model.decoder_layers": 1}
    for name in ("transformer-base", "transformer-big", "transformer-2017-base")
}
"""Settings for recipes whose models would take long to train and to save."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def header(recipe: str) -> list[str]:
    """The comment block at the top of a recipe."""
    lines = recipes()[recipe].read_text("utf-8").split("\n")
    return lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_what_it_is(recipe: str) -> None:
    summary = recipe_summary(recipes()[recipe])
    assert 10 < len(summary) <= 120
    assert summary[-1] != ":"
    text = " ".join(line.removeprefix("#").strip() for line in header(recipe))
    assert re.search(r"\bData: \w", text), "the header does not say `Data: …`"
    for word, said in re.findall(r"\b(Score|Time): (.*?)(?:\. |\.$)", text):
        assert re.search(r"\d|see docs/|few minutes|--time", said), f"`{word}: {said}` is not a figure"


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_recipe_promises_a_measurement(recipe: str) -> None:
    text = " ".join(header(recipe)).lower()
    assert not [word for word in ("not measured", "unmeasured", "not yet", "to be", "todo", "tbd", "unknown") if word in text]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(json_schema())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_survives_saving_and_fits_the_schema(recipe: str, schema: Draft202012Validator, tmp_path: Path) -> None:
    config = load_config(recipe)
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    for path in (recipes()[recipe], tmp_path / "config.yaml"):
        schema.validate(yaml_document.read(path.read_text("utf-8"), recipe).data)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 pairs of made-up words and their reversal, as the two text files of `--data`."""
    rng = random.Random(1)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 7))) for _ in range(400)]
    lines = [rng.choices(words, k=rng.randint(2, 8)) for _ in range(300)]
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "source.txt").write_text("".join(f"{' '.join(line)}\n" for line in lines))
    (folder / "target.txt").write_text("".join(f"{' '.join(reversed(line))}\n" for line in lines))
    for side in ("source", "target"):
        few = (folder / f"{side}.txt").read_text().splitlines(keepends=True)[:6]
        (folder / f"few.{side}.txt").write_text("".join(few))
    return f"{folder / 'source.txt'},{folder / 'target.txt'}"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_takes_a_training_step(recipe: str, pairs: str, tmp_path: Path) -> None:
    small = {
        "data.vocabulary": 400,
        "data.cache": str(tmp_path / "cache"),
        "train.steps": 1,
        "train.batch_tokens": 256,
        "train.accumulate": 1,
        "train.device": "cpu",
        "train.threads": 1,
        "train.compile": False,
        "train.validate_every": 0,
        "train.validate_sentences": 2,
        "decode.max_length": 8,
        **LARGE.get(recipe, {}),
    }
    data: str | list[str] = pairs
    valid: str | list[str] = re.sub(r"(source|target)\.txt", r"few.\1.txt", pairs)
    if load_config(recipe).task["kind"] == "language_model":
        data, valid = pairs.split(",")[0], str(tmp_path / "valid.txt")
        Path(valid).write_text("a line of text\n" * 20)
    if load_config(recipe).task["kind"] == "captioning":
        data = valid = str(shapes.write(tmp_path / "shapes", 12))
    if load_config(recipe).task["kind"] == "tagging":
        data = valid = str(tmp_path / "tags.tsv")
        Path(data).write_text("a\tO\nplace\tB-LOC\nof\tI-LOC\nhers\tI-LOC\n\nshe\tB-PER\nsat\tO\n\n" * 40)
    if load_config(recipe).task["kind"] == "pairs":
        data = valid = str(tmp_path / "pairs.tsv")
        Path(data).write_text("a dog\tan animal\tyes\na dog\ta cat\tno\n" * 20)
    if load_config(recipe).task["kind"] == "quality":
        data = valid = labelled_translations.write(tmp_path / "quality.jsonl", 20)
    if load_config(recipe).task["kind"] == "reading":
        data = valid = "generated:passages?count=20"
    if load_config(recipe).task["kind"] == "bits":
        data = valid = "generated:bits_copy?count=20"
    if load_config(recipe).task["kind"] == "transcription":
        data = valid = str(tones.recordings(tmp_path / "tones", 5))
    if load_config(recipe).task["kind"] == "synthesis":
        data = valid = f"{tones.recordings(tmp_path / 'tones', 5)}#2,1"
    if load_config(recipe).task["kind"] == "deciphering":
        data = valid = pairs.split(",")[0]
    if load_config(recipe).task["kind"] == "unsupervised":
        halves = [tmp_path / name for name in ("en.txt", "xx.txt")]  # without a sentence and its translation
        for number, (half, file) in enumerate(zip(halves, pairs.split(","), strict=True)):
            half.write_text("".join(Path(file).read_text().splitlines(keepends=True)[number::2]))
        data, valid, small["data.hold_out"] = [f"en={halves[0]}", f"xx={halves[1]}"], [], 2
    result = weft.train(recipe, data=data, valid=valid, out=tmp_path / "run", set=small)
    assert result.update == 1
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert len(read_samples(tmp_path / "run")[0][1]) > 0
    if recipe != "auto":  # which chooses its model
        sets = [f"{key}={value}" for key, value in LARGE.get(recipe, {}).items()]
        assert load_config(tmp_path / "run" / "config.yaml").model == load_config(recipe, sets).model


def test_the_transformer_of_2017_is_as_published() -> None:
    """Vaswani et al. 2017, sections 3 and 5, and table 3."""
    for name, dim, heads, inner, layers, dropout in (
        ("transformer-2017", 256, 4, 1024, 4, 0.3),
        ("transformer-2017-base", 512, 8, 2048, 6, 0.1),
    ):
        config = load_config(name)
        model, train = config.model, config.train
        sizes = (model["dim"], model["heads"], model["feedforward"], model["encoder_layers"], model["decoder_layers"])
        assert sizes == (dim, heads, inner, layers, layers) and model["dropout"] == dropout
        assert (model["norm"], model["position"], model["activation"]) == ("post", "sinusoidal", "relu")
        assert model["share_embeddings"] == "all" and config.data.shared_vocabulary
        assert all(model[slot]["position"] == "none" for slot in ("encoder_self", "decoder_self"))
        assert (model["attention_dropout"], model["feedforward_dropout"]) == (0, 0)
        assert config.task["label_smoothing"] == 0.1
        wanted = {"kind": "adam", "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.0, "factor": 1.0}
        assert {**train.optimizer, "betas": tuple(train.optimizer["betas"])} == wanted
        assert train.schedule["kind"] == "noam" and train.schedule["scale"] == 1
        assert (train.clip, train.ema, train.average_last) == (0, 0, 5)
        search = config.decode.search
        assert (search["kind"], search["width"], search["length_penalty"]) == ("beam", 4, 0.6)
    assert train.schedule["warmup"] == 4000 and config.data.vocabulary == 37000 and train.steps == 100_000


PUBLISHED = (
    (Path(__file__).parent.parent / "docs" / "recipes.md")
    .read_text("utf-8")
    .split("## Models as published")[1]
    .split("\n## ")[0]
)


def test_the_settings_of_published_models_give_the_sizes_of_the_page() -> None:
    """In millions of parameters, in the order of the table, which begins with the recipe of the base model."""
    commands = ["weft train transformer-2017-base", *re.findall(r"^weft train .*$", PUBLISHED, re.MULTILINE)]
    said = [int(each) for each in re.findall(r"\| (\d+)M \|", PUBLISHED)]
    counts = []
    for command in commands:
        recipe, _, sets = command.removeprefix("weft train ").partition(" --data train.tsv --set ")
        config = load_config(recipe, sets.split())
        size = config.data.vocabulary
        with torch.device("meta"):
            model = build_model(config.model, Sizes(size, size, config.data.shared_vocabulary))
        counts.append(round(model.count_parameters() / 1e6))
    assert counts == said and len(counts) == 8
