"""Makes the pictures of docs/tasks.md: trains a small model for each task on generated data and shows what it looked at.

    python docs/pictures.py [--only bits,couplets] [--runs FOLDER] [--out docs/images/tasks]

Takes some minutes on a CPU. Runs that are in FOLDER already are not trained again. Needs what docs/screenshots.py needs.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from screenshots import MISSING, chromium, save_screenshot, sized
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

import weft
from weft.explain.attention_heatmap import draw, view_of
from weft.explain.explanation import Explanation
from weft.explain.html_page import Section, static_page

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers import shapes, tones

EXAMPLES = Path(__file__).parent.parent / "examples"
WIDTH = 900
"""Of a page, in pixels."""

LOADED = "return [...document.querySelectorAll('audio')].every(player => player.readyState > 0)"
"""Whether players know how long their recordings are."""


@dataclass(frozen=True)
class Picture:
    """A model to train, and the input that its picture shows.

    data: writes the data to a folder, unless it is generated, and returns it · input: relative to the folder if it is a file.
    """

    recipe: str
    data: Callable[[Path], str]
    input: str
    sets: dict[str, Any] = field(default_factory=dict)


def couplets(folder: Path) -> str:
    """Letters instead of characters: each has one answer."""
    answers, chance, file = str.maketrans("abcdefg", "tuvwxyz"), random.Random(1), folder / "couplets.tsv"
    lines = ["".join(chance.choices("abcdefg", k=chance.randint(3, 7))) for _ in range(3000)]
    file.write_text("".join(f"{line}\t{line.translate(answers)}\n" for line in lines), "utf-8")
    return str(file)


def translations(folder: Path) -> str:
    """English phrases, each with its Faroese translation and with another phrase."""
    subprocess.run([sys.executable, EXAMPLES / "phrases.py", "fo", folder / "fo"], check=True)
    one, other = ((folder / "fo" / f"train.{code}").read_text("utf-8").splitlines() for code in ("en", "fo"))
    mixed = random.Random(1).sample(other, len(other))
    rows = [
        f"{first}\t{second}\t{label}\n" for texts, label in ((other, "yes"), (mixed, "no")) for first, second in zip(one, texts)
    ]
    (folder / "pairs.tsv").write_text("".join(rows), "utf-8")
    return str(folder / "pairs.tsv")


def languages(folder: Path) -> str:
    """Words of two languages, each tagged with its own, five to a sentence."""
    words = []
    for code in ("fo", "gd"):
        subprocess.run([sys.executable, EXAMPLES / "phrases.py", code, folder / code], check=True)
        words += [f"{word}\t{code}\n" for word in (folder / code / f"train.{code}").read_text("utf-8").split()]
    random.Random(1).shuffle(words)
    (folder / "tags.tsv").write_text("\n".join("".join(words[first : first + 5]) for first in range(0, len(words), 5)), "utf-8")
    return str(folder / "tags.tsv")


PICTURES = {
    "couplets": Picture(
        "couplets-tiny",
        couplets,
        "abcbaf",
        {
            "model.dim": 32,
            "model.feedforward": 64,
            "train.steps": 300,
            "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 30},
        },
    ),
    "classification": Picture(
        "han",
        lambda folder: "generated:verdict?count=3000",
        "d red k\nblue q final\nw white\nk d w",
        {"train.steps": 300, "train.batch_tokens": 2048},
    ),
    "pairs": Picture(
        "pairs-attention", translations, "Albanian or Portuguese\talbanskt ella portugiskiskt", {"train.steps": 200}
    ),
    "reading": Picture(
        "reader",
        lambda folder: "generated:passages?count=20000",
        "Talo lives in Birosa . Meku is a baker . Meku lives in Fada .\tWhere does Meku live ?",
        {"train.steps": 300},
    ),
    "tagging": Picture("tagger", languages, "mánadagur 15 dhen Iuchar", {"train.steps": 150}),
    "captioning": Picture(
        "captioner",
        lambda folder: str(shapes.write(folder / "shapes", 300)),
        "shapes/5.png",
        {
            "data.tokenizer": "words",
            "task": {"kind": "captioning", "size": shapes.SIZE, "flip": False, "crop": 0.1, "label_smoothing": 0.0},
            "model": {
                "kind": "composed",
                "front": {"kind": "convolutions", "channels": [16, 24]},
                "encoder": {"kind": "identity", "dim": 24},
                "decoder": {"kind": "transformer", "dim": 24, "heads": 2, "feedforward": 48, "layers": 1, "dropout": 0.0},
            },
            "train.steps": 300,
            "train.batch_tokens": 320,
            "train.ema": 0,
            "train.schedule": {"kind": "cosine", "rate": 5e-3, "warmup": 20},
        },
    ),
    "transcription": Picture(
        "speech-digits",
        lambda folder: str(tones.recordings(folder / "tones", 200)),
        "tones/wav/6.wav",
        {
            "task.mels": 16,
            "model.front": {"kind": "frames", "convolutions": 1, "channels": 24},
            "model.encoder.dim": 48,
            "model.encoder.layers": 1,
            "model.decoder.dim": 48,
            "train.steps": 200,
            "train.batch_tokens": 1500,
            "train.ema": 0,
            "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 20},
        },
    ),
    "synthesis": Picture(
        "synthesis-digits",
        lambda folder: f"{tones.recordings(folder / 'tones', 300, even=True)}#2,1",
        "low high middle low",
        {
            "data.tokenizer": "words",
            "task.mels": 40,
            "task.window": 0.03,
            "task.hop": 0.01,
            "task.distance": "l2",
            "model.encoder.dim": 32,
            "model.decoder.dim": 64,
            "train.steps": 400,
            "train.batch_tokens": 1200,
            "train.ema": 0,
            "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 20},
        },
    ),
    "answering": Picture(
        "memory-network",
        lambda folder: "generated:babi?task=1&count=10000",
        "Mary went to the kitchen. John moved to the garden. Mary travelled to the office. Daniel went to the garden. "
        "Where is Mary?",
        {
            "model.hops": 2,
            "task.linear_start": 50,
            "train.steps": 500,
            "train.batch_tokens": 1024,
            "train.schedule": {"kind": "cosine", "rate": 3e-2, "warmup": 20},
        },
    ),
    "bits": Picture(
        "ntm-copy",
        lambda folder: "generated:bits_copy?count=200000",
        "01101001 11100010 00011101 10101010 11110000 00110011 | _ _ _ _ _ _",
        {"train.steps": 3000},
    ),
}


def train(name: str, folder: Path) -> Path:
    """The trained run of a task."""
    picture, run = PICTURES[name], folder / "run"
    if not (run / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        usual = {"train.device": "cpu", "train.precision": "float32", "train.tensorboard": False, "data.hold_out": 100}
        weft.train(picture.recipe, data=picture.data(folder), out=run, set={**usual, **picture.sets})
    return run


def save(browser: WebDriver, name: str, folder: Path, out: Path) -> None:
    """Explains the input: a translation as a heat map, anything else as a page."""
    given = PICTURES[name].input
    text, file = str(folder / given) if (folder / given).exists() else given, out / f"{name}.png"
    found = weft.load(train(name, folder), device="cpu").explain(text)
    if isinstance(found, Explanation):
        draw(view_of(found), file, dpi=110)
        return
    assert isinstance(found, Section)
    page = folder / "page.html"
    page.write_text(static_page([found], " · ".join(given.splitlines())), "utf-8")
    browser.get(page.resolve().as_uri())
    WebDriverWait(browser, 10).until(lambda shown: shown.execute_script(LOADED))
    with sized(browser, WIDTH, 100):  # a page is as high as the window at least
        height = browser.execute_script("return document.documentElement.scrollHeight")
    with sized(browser, WIDTH, height):
        save_screenshot(browser, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PICTURES), help="tasks, separated by commas")
    parser.add_argument("--runs", type=Path, default=Path(__file__).parent / "_build" / "pictures")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images" / "tasks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.only.split(",")
    for name in names:
        train(name, options.runs / name)
    with chromium() as browser:
        if browser is None:
            raise SystemExit(MISSING)
        for name in names:
            save(browser, name, options.runs / name, options.out)


if __name__ == "__main__":
    main()
