"""Random parallel text with lengths as in news, and the shape of Transformer-base, for benchmarks of speed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

VOCABULARY, DIM, HIDDEN, HEADS, LAYERS = 32_000, 512, 2048, 8, 6
SHAPE = {"dim": DIM, "feedforward": HIDDEN, "heads": HEADS, "encoder_layers": LAYERS, "decoder_layers": LAYERS}
STEPS, SOURCE = 32, 27


def lengths(count: int, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Pairs of lengths, log-normal around 27 tokens."""
    while count:
        source = int(draw.lognormvariate(3.2, 0.55))
        if 4 <= source <= 120:
            yield source, max(4, min(128, int(source * draw.uniform(0.85, 1.2))))
            count -= 1


def write_text(folder: Path, pairs: int, vocabulary: int = VOCABULARY) -> str:
    """Writes random sentences of words from a vocabulary of this size; returns the paths."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(vocabulary - 4)]
    every = iter(words)
    with (folder / "source.txt").open("w") as source, (folder / "target.txt").open("w") as target:
        for sizes in lengths(pairs, random.Random(0)):
            for file, size in zip((source, target), sizes, strict=True):
                # Each word occurs at least once, so that the vocabulary has its full size.
                sentence = [next(every, None) or draw.choice(words) for _ in range(size - 1)]
                file.write(" ".join(sentence) + "\n")
    return f"{folder}/source.txt,{folder}/target.txt"
