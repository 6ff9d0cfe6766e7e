"""Made-up data of every task for golden.py, drawn with `random.Random` alone, so that it does not depend on weft."""

from __future__ import annotations

import json
import math
import random
import struct
import wave
import zlib
from collections.abc import Iterable
from pathlib import Path

NOUNS = ["dog", "cat", "bird", "horse", "man", "woman", "child", "friend", "king", "taxi"]
ADJECTIVES = ["red", "small", "old", "happy", "tall", "quiet"]
VERBS = ["sees", "likes", "follows", "hears", "finds", "calls"]
PLACES = ["house", "garden", "street", "river", "forest", "market"]
TONES = {"low": 300.0, "middle": 700.0, "high": 1300.0}
COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 230)}


def sentence(draw: random.Random) -> str:
    """A sentence such as "the red dog sees a cat at the river"."""
    words = ["the", *draw.choices(ADJECTIVES, k=draw.randrange(3)), draw.choice(NOUNS), draw.choice(VERBS)]
    words += ["a", draw.choice(NOUNS)] if draw.random() < 0.8 else []
    return " ".join([*words, *(["at the", draw.choice(PLACES)] if draw.random() < 0.6 else [])])


def translation(text: str) -> str:
    """Words spelt backwards, and adjectives behind their noun."""
    words: list[str] = []
    held: list[str] = []
    for word in text.split():
        if word in ADJECTIVES:
            held.append(word)
        else:
            words += [word, *held] if word in NOUNS else [word]
            held = [] if word in NOUNS else held
    return " ".join(word[::-1] for word in words)


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [sentence(draw) for _ in range(count)]


def write_lines(path: Path, lines: Iterable[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(path)


def pairs(folder: Path, name: str, count: int, seed: int) -> str:
    """A table of sentences and their translations."""
    return write_lines(folder / f"{name}.tsv", (f"{text}\t{translation(text)}" for text in sentences(count, seed)))


def labelled(folder: Path, name: str, count: int, seed: int) -> str:
    """A table of sentences and their verbs."""
    lines = ((text, next(word for word in text.split() if word in VERBS)) for text in sentences(count, seed))
    return write_lines(folder / f"{name}.tsv", (f"{text}\t{label}" for text, label in lines))


def documents(folder: Path, name: str, count: int, seed: int) -> str:
    """Documents of several sentences with the animals that they name."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        texts = [sentence(draw) for _ in range(draw.randint(1, 4))]
        rows.append({"sentences": texts, "label": "dog" if any("dog" in text.split() for text in texts) else "none"})
    return write_lines(folder / f"{name}.jsonl", (json.dumps(row) for row in rows))


def tagged(folder: Path, name: str, count: int, seed: int) -> str:
    """Sentences with tags of the entities they name."""
    lines: list[str] = []
    for text in sentences(count, seed):
        before = ""
        for word in text.split():
            kind = "LOC" if word in PLACES else "PER" if word in NOUNS or word in ADJECTIVES else ""
            lines.append(f"{word}\t{'O' if not kind else f'I-{kind}' if kind == before else f'B-{kind}'}")
            before = kind
        lines.append("")
    return write_lines(folder / f"{name}.tsv", lines)


def letters(folder: Path, name: str, count: int, seed: int) -> str:
    """A text of ten letters, of which some follow each other often."""
    draw, here, found = random.Random(seed), 0, []
    for _ in range(count):
        here = (here + draw.choice([1, 1, 1, 3, 3, 4])) % 10
        found.append("abcdefghij"[here])
    text = "".join(found)
    return write_lines(folder / f"{name}.txt", (text[at : at + 100] for at in range(0, count, 100)))


def recordings(folder: Path, name: str, count: int, seed: int) -> str:
    """Tones, one for each word, with a list of the files."""
    draw, rows, rate = random.Random(seed), [], 4000
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        words = draw.choices(list(TONES), k=draw.randint(1, 4))
        samples = [0.0] * 120
        for word in words:
            loud, length = draw.uniform(0.3, 0.6), int(rate * draw.uniform(0.05, 0.09))
            samples += [loud * math.sin(2 * math.pi * TONES[word] * at / rate) for at in range(length)]
            samples += [0.0] * int(rate * draw.uniform(0.02, 0.06))
        noisy = [round(32767 * (each + draw.uniform(-0.005, 0.005))) for each in samples]
        with wave.open(str(folder / name / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(struct.pack(f"<{len(noisy)}h", *noisy))
        rows.append(f"{number}.wav\t{' '.join(words)}")
    return write_lines(folder / name / "list.tsv", rows)


def pictures(folder: Path, name: str, count: int, seed: int) -> str:
    """Squares of a colour, left or right, with two captions each."""
    draw, rows, size = random.Random(seed), [], 16
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        colour, side, top = draw.choice(list(COLOURS)), draw.choice(["left", "right"]), draw.randrange(2, 9)
        left = draw.randrange(1, 3) + (8 if side == "right" else 0)
        ground = tuple(draw.randrange(40) for _ in range(3))
        lines = []
        for y in range(size):
            row = [COLOURS[colour] if left <= x < left + 5 and top <= y < top + 5 else ground for x in range(size)]
            lines.append(b"\0" + b"".join(bytes(pixel) for pixel in row))
        (folder / name / f"{number}.png").write_bytes(_png(size, b"".join(lines)))
        rows += [f"{number}.png\ta {colour} square on the {side}", f"{number}.png\tthe {side} has a {colour} square"]
    return write_lines(folder / name / "list.tsv", rows)


def _png(size: int, pixels: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def couplets(folder: Path, name: str, count: int, seed: int) -> str:
    """Pairs of lines of equal length, with repeats at the same places."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        first = "".join(draw.choices("天地山水风云日月花鸟", k=draw.randint(2, 7)))
        rows.append(f"{first}\t{''.join('楼台江海雨雪星辰草木'['天地山水风云日月花鸟'.index(each)] for each in first)}")
    return write_lines(folder / f"{name}.tsv", rows)


def vectors(folder: Path, name: str, width: int, seed: int) -> str:
    """Word vectors in the text format of word2vec."""
    draw, words = random.Random(seed), [*NOUNS, *VERBS, *PLACES]
    rows = (f"{word} {' '.join(f'{draw.uniform(-1, 1):.4f}' for _ in range(width))}" for word in words)
    return write_lines(folder / f"{name}.vec", [f"{len(words)} {width}", *rows])
