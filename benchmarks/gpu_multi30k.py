"""The part of benchmarks/gpu.py on real sentences: Multi30k's test set from text to text, and the time to a first step."""

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
    """Translates the whole test set, after two passes for recording and compiling, which are timed separately."""
    translator = weft.load(run)
    lines, references = (lines_of(folder / f"test_2016_flickr.{side}") for side in ("en", "de"))

    def work() -> list[str]:
        return [each.text for each in translator.translate(lines, beam=5, compile=compiled)]

    began = time.perf_counter()
    for _ in range(2):
        work()
    warm = time.perf_counter() - began
    bleu = sacrebleu.corpus_bleu(work(), [references]).score
    return {"sentences/s": len(lines) / timed(work, 3), "BLEU": bleu, "seconds to warm up": warm}


def peer_multi30k(folder: Path, file: Path) -> Figures:
    import multi30k_peer

    model, tokenizer = multi30k_peer.load(file)
    lines, references = (lines_of(folder / f"test_2016_flickr.{side}") for side in ("en", "de"))
    multi30k_peer.translate(model, tokenizer, lines[:128])
    began = time.perf_counter()
    outputs = multi30k_peer.translate(model, tokenizer, lines)
    rate = len(lines) / (time.perf_counter() - began)
    return {"sentences/s": rate, "BLEU": sacrebleu.corpus_bleu(outputs, [references]).score}


def lines_of(file: Path) -> list[str]:
    return file.read_text("utf-8").strip("\n").split("\n")


def first_step(folder: Path) -> Figures:
    """Seconds of a one-step `weft train`, including imports, tokenizer, cache, kernels and saving."""
    with tempfile.TemporaryDirectory() as place:
        data = ["--data", f"{folder}/train.en,{folder}/train.de", "--out", f"{place}/run"]
        sets = ["--set", "train.steps=1", "--set", f"data.cache={place}/cache"]
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "weft", "train", "transformer-small", *data, *sets], check=True, capture_output=True
        )
        return {"seconds to a first step": time.perf_counter() - began}
