"""Every size of a recipe is a wish: what the data or the steps do not allow is lowered, said once, and saved."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers import tiny
from weft.config import registry
from weft.config.sections import load_config
from weft.data import TOKENIZERS
from weft.data.tokenizers import Tokenizer
from weft.training.prepare_run import lower_to_steps

LEARNING = [kind for kind in TOKENIZERS if registry.load(TOKENIZERS, kind).learns]
SMALL: dict[str, Any] = {
    **tiny.SETTINGS,
    "train.steps": 2,
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 1},
    "train.batch_tokens": 200,
    "train.validate_sentences": 500,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """200 pairs of made-up words and their reversal."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(60)]
    file = tmp_path_factory.mktemp("limits") / "pairs.tsv"
    lines = [rng.choices(words, k=rng.randint(2, 6)) for _ in range(200)]
    file.write_text("".join(f"{' '.join(line)}\t{' '.join(reversed(line))}\n" for line in lines))
    return str(file)


@pytest.mark.parametrize("kind", LEARNING)
def test_a_vocabulary_larger_than_the_data_allows_is_lowered_said_once_and_saved(kind: str, pairs: str, tmp_path: Path) -> None:
    said: list[str] = []
    run = tmp_path / "run"
    weft.train(
        "transformer-tiny",
        data=pairs,
        out=run,
        set={**SMALL, "data.tokenizer": kind, "data.vocabulary": 10_000},
        tell=said.append,
    )
    saved = load_config(run / "config.yaml").data
    file = run / f"tokenizer{registry.load(TOKENIZERS, kind).suffix}"
    tokenizer = registry.load(TOKENIZERS, kind).load(file, **{k: v for k, v in saved.tokenizer.items() if k != "kind"})
    assert saved.vocabulary == tokenizer.size < 10_000
    lowered = f"data.vocabulary: {tokenizer.size:,}, because this data does not allow 10,000"
    assert said.count(lowered) == 1
    before = file.read_bytes()
    weft.train(out=run, resume=True, set={"train.steps": 3}, tell=said.append)
    assert said.count(lowered) == 1 and file.read_bytes() == before
    assert load_config(run / "config.yaml").data == saved


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_smaller_wish_is_met(kind: str) -> None:
    def trained(size: int) -> Tokenizer:
        tokenizer: Tokenizer = registry.build("weft.data:TOKENIZERS", kind)
        tokenizer.train([f"{a}{b} {b}{a}ing" for a in ("walk", "talk", "sing") for b in ("er", "est", "ed")] * 3, size)
        return tokenizer

    largest = trained(30_000).size
    assert trained(largest).size == largest
    assert trained(largest - 5).size == largest - 5


def test_vocabularies_of_both_sides_are_lowered(pairs: str, tmp_path: Path) -> None:
    settings = {**SMALL, "data.tokenizer": "bpe", "data.vocabulary": 9_999, "data.shared_vocabulary": False}
    settings["model.share_embeddings"] = "output"
    weft.train("transformer-tiny", data=pairs, out=tmp_path / "run", set=settings)
    assert load_config(tmp_path / "run" / "config.yaml").data.vocabulary < 1_000


def test_a_batch_larger_than_the_data_is_lowered(pairs: str, tmp_path: Path) -> None:
    said: list[str] = []
    weft.train(
        "transformer-tiny", data=pairs, out=tmp_path / "run", set={**SMALL, "train.batch_tokens": 50_000}, tell=said.append
    )
    assert load_config(tmp_path / "run" / "config.yaml").train.batch_tokens == 200 * 7
    assert "train.batch_tokens: 1,400, because this data does not allow 50,000" in said


def test_a_batch_longer_than_a_text_is_lowered(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a few words\n" * 50)
    sizes = {
        "model.dim": 16,
        "model.heads": 2,
        "model.feedforward": 32,
        "model.decoder_layers": 1,
        "task.segment": 8,
        "task.memory": 8,
    }
    settings = {**sizes, "train.steps": 1, "train.batch_tokens": 4096, "train.device": "cpu", "train.threads": 1}
    weft.train("lm-tiny", data=str(tmp_path / "text.txt"), out=tmp_path / "run", set=settings)
    assert load_config(tmp_path / "run" / "config.yaml").train.batch_tokens == 599 // 8 * 8


def test_a_warm_up_that_never_ends_and_a_long_average_are_shortened() -> None:
    said: list[str] = []
    sets = ["train.steps=100", "train.save_every=40", "train.validate_every=50", "train.average_last=9"]
    train = lower_to_steps(load_config("transformer-small", sets), said.append).train
    assert (train.schedule["warmup"], train.average_last) == (50, 3)
    assert said == [
        "train.schedule.warmup: 50, because train.steps is 100",
        "train.average_last: 3, because 100 steps give no more checkpoints",
    ]
    assert lower_to_steps(load_config("transformer-small"), said.append) == load_config("transformer-small")
    assert len(said) == 2


def test_a_recipe_trains_on_fewer_pairs_than_it_was_made_for(pairs: str, tmp_path: Path) -> None:
    """The sizes of transformer-small, except for those of the model, whose weights would take time."""
    kept = {key: value for key, value in SMALL.items() if not key.startswith("data.") and key != "train.batch_tokens"}
    result = weft.train("transformer-small", data=pairs, out=tmp_path / "run", set=kept)
    assert result.update == 2
