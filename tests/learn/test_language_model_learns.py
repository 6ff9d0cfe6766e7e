"""Language models learn a text that repeats itself, and a longer memory shows what lies further back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import weft

SETTINGS: dict[str, Any] = {
    "data.tokenizer": {"kind": "characters", "byte_fallback": False},
    "model.dim": 32,
    "model.heads": 2,
    "model.feedforward": 64,
    "model.decoder_layers": 1,
    "model.dropout": 0.0,
    "train.batch_tokens": 512,
    "train.validate_every": 0,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}

KINDS: dict[str, dict[str, Any]] = {
    "transformer": {"model.position": "sinusoidal", "model.decoder_self": "full", "task.carry": "nothing"},
    "xl": {"task.memory": 32, "model.decoder_layers": 2},
    "recurrent": {"model.decoder_self": "recurrent", "task.carry": "state"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_repeats_itself_is_learnt(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 600)
    settings = {"train.steps": 200, "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 15}, "task.segment": 32}
    text = str(tmp_path / "text.txt")
    result = weft.train("lm-tiny", data=text, valid=text, out=tmp_path / "run", set={**SETTINGS, **settings, **KINDS[kind]})
    assert result.scores["bits_per_character"] < 0.25
    found = weft.load_generator(tmp_path / "run", device="cpu").generate("the qu", tokens=100, beam=1)[0]
    assert found.text == ("ick brown fox\n" + "the quick brown fox\n" * 5)[:100]


def blocks(count: int, seed: int, size: int = 24, times: int = 4) -> str:
    """Blocks of `size` random letters, each written several times, so that most letters stand `size` letters before."""
    draw = random.Random(seed)
    return "".join("".join(draw.choices("abcd", k=size)) * times for _ in range(count))


def test_a_longer_memory_shows_what_lies_further_back(tmp_path: Path) -> None:
    """Segments are shorter than the distance: without memory there is nothing to see, and a fair guess costs 2 bits."""
    files = {name: tmp_path / f"{name}.txt" for name in ("train", "valid")}
    files["train"].write_text(blocks(200, seed=1))
    files["valid"].write_text(blocks(20, seed=2))
    settings = {
        "task.segment": 12,
        "task.memory": 24,
        "task.evaluation_streams": 1,
        "train.steps": 300,
        "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 30},
    }
    run, valid = tmp_path / "run", str(files["valid"])
    weft.train("lm-tiny", data=str(files["train"]), out=run, set={**SETTINGS, **settings})
    bits = {
        memory: weft.load_generator(run, device="cpu", set=[f"task.evaluation_memory={memory}"]).score(valid)
        for memory in (0, 12, 24, 48)
    }
    scores = {memory: found["bits_per_character"] for memory, found in bits.items()}
    assert scores[0] > 1.9
    assert scores[24] < 1.2 < 1.8 < scores[12]
    assert scores[48] < 1.2
