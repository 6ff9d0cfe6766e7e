"""The part of benchmarks/gpu.py on real sentences: Multi30k's test set from text to text, and the start of a training."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sacrebleu
from timing import Figures, timed

import weft


def weft_multi30k(folder: Path, run: Path, compiled: bool) -> Figures:
    """The whole test set, after it has been translated twice: what is recorded and compiled then is given apart."""
    translator = weft.load(run)
    lines, wanted = (lines_of(folder / f"test_2016_flickr.{side}") for side in ("en", "de"))

    def work() -> list[str]:
        return [found.text for found in translator.translate(lines, beam=5, compile=compiled)]

    began = time.perf_counter()
    for _ in range(2):
        work()
    warm = time.perf_counter() - began
    bleu = sacrebleu.corpus_bleu(work(), [wanted]).score
    return {"sentences/s": len(lines) / timed(work, 3), "BLEU": bleu, "seconds to warm up": warm}


def peer_multi30k(folder: Path, file: Path) -> Figures:
    import multi30k_peer

    model, tokenizer = multi30k_peer.load(file)
    lines, wanted = (lines_of(folder / f"test_2016_flickr.{side}") for side in ("en", "de"))
    multi30k_peer.translate(model, tokenizer, lines[:128])
    began = time.perf_counter()
    found = multi30k_peer.translate(model, tokenizer, lines)
    rate = len(lines) / (time.perf_counter() - began)
    return {"sentences/s": rate, "BLEU": sacrebleu.corpus_bleu(found, [wanted]).score}


def lines_of(file: Path) -> list[str]:
    return file.read_text("utf-8").strip("\n").split("\n")


def first_step(folder: Path) -> Figures:
    """Seconds of `weft train` for one step of a recipe: imports, tokenizer, cache, kernels, and saving."""
    with tempfile.TemporaryDirectory() as place:
        data = ["--data", f"{folder}/train.en,{folder}/train.de", "--out", f"{place}/run"]
        sets = ["--set", "train.steps=1", "--set", f"data.cache={place}/cache"]
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "weft", "train", "transformer-small", *data, *sets], check=True, capture_output=True
        )
        return {"seconds to a first step": time.perf_counter() - began}
