"""Pictures of coloured shapes with captions, made without any file of data."""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image, ImageDraw

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 230), "yellow": (230, 220, 40)}
SHAPES = ("square", "bar")
SIZE = 16


def draw(colour: str, shape: str, left: bool, seed: int) -> Image.Image:
    """A shape on a dark ground, in the left or the right half."""
    chance = random.Random(seed)
    picture = Image.new("RGB", (SIZE, SIZE), tuple(chance.randrange(40) for _ in range(3)))
    x, y = (1 if left else 9) + chance.randrange(2), chance.randrange(2, 8)
    box = (x, y, x + 5, y + 5) if shape == "square" else (x + 2, y - 2, x + 3, y + 7)
    ImageDraw.Draw(picture).rectangle(box, fill=COLOURS[colour])
    return picture


def write(folder: Path, count: int, first: int = 0) -> Path:
    """Writes `count` pictures and the list of their captions, two for each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(first, first + count):
        chance = random.Random(number)
        colour, shape, left = chance.choice(list(COLOURS)), chance.choice(SHAPES), chance.random() < 0.5
        draw(colour, shape, left, number).save(folder / f"{number}.png")
        side = "left" if left else "right"
        lines += [f"{number}.png\tA {colour} {shape} on the {side} .", f"{number}.png\tThe {side} has a {colour} {shape} ."]
    (folder / "list.tsv").write_text("\n".join(lines) + "\n")
    return folder / "list.tsv"
