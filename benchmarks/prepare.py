"""Measures how fast text is tokenised into a cache, and how much memory a large corpus needs.

    python benchmarks/prepare.py pairs.tsv.gz              tokenise a file of pairs with a trained BPE into a cache
    python benchmarks/prepare.py --synthetic 2000000       the same with random pairs

Then it reads one epoch of batches, and runs the first step of `weft train` twice: with a cold and with a warm cache.

Every measurement runs in a new process, so that peak memory is measured separately. It includes importing torch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.data.batch import Position
from weft.data.batching import Batches
from weft.data.formats import open_pairs
from weft.data.sentence_pairs import collate_pairs, prepare_pairs
from weft.data.tokenizers import load_tokenizers, save_tokenizers, train_tokenizers

Figures = dict[str, float]


def train(spec: str, folder: Path, vocabulary: int) -> Figures:
    begin = time.perf_counter()
    save_tokenizers(folder, *train_tokenizers("bpe", [open_pairs(spec)], size=vocabulary, shared=True))
    return {"seconds to train the BPE": time.perf_counter() - begin}


def build(spec: str, folder: Path) -> Figures:
    """Tokenises and writes the cache, and drops duplicates, which is the most expensive setting."""
    source, target = load_tokenizers(folder, "bpe")
    begin = time.perf_counter()
    corpus = prepare_pairs([open_pairs(spec)], source, target, folder=folder / "cache", max_length=256, drop_duplicates=True)
    seconds = time.perf_counter() - begin
    print(corpus.report.describe())
    return {"pairs": corpus.report.read, "seconds": seconds, "pairs/s": corpus.report.read / seconds}


def read(spec: str, folder: Path, budget: int) -> Figures:
    """Opens the finished cache as training does, and reads one epoch of batches."""
    begin = time.perf_counter()
    source, target = load_tokenizers(folder, "bpe")
    corpus = prepare_pairs([open_pairs(spec)], source, target, folder=folder / "cache", max_length=256, drop_duplicates=True)
    first, pairs, real, padded, count = 0.0, 0, 0, 0, 0
    for rows, position in Batches(corpus.lengths, budget, seed=1).stream(Position()):
        batch = collate_pairs(corpus, rows)
        first = first or time.perf_counter() - begin
        count, pairs = count + 1, pairs + len(rows)
        real += int(batch.source.layout.mask.sum() + batch.target_layout.mask.sum())
        padded += batch.source.values.numel() + batch.target.numel()
        if position.epoch:
            break
    seconds = time.perf_counter() - begin
    return {"seconds to the first batch": first, "pairs": pairs, "batches/s": count / seconds, "real tokens": real / padded}


def first_step(spec: str, folder: Path) -> Figures:
    """A `weft train` of one step, including its checkpoint. The memory of the model is given separately."""
    begin = time.perf_counter()
    out = folder / f"run-{time.monotonic_ns()}"
    options = {"data.cache": str(folder / "cache"), "train.steps": 1, "train.validate_every": 0, "train.tensorboard": False}
    weft.train("transformer-tiny", data=spec, out=out, set=options)
    seconds = time.perf_counter() - begin
    weights = (out / "model.safetensors").stat().st_size
    return {"seconds to the first step": seconds, "MB of weights, gradients, optimiser and average": 5 * weights / 1e6}


def measure(function: Callable[..., Figures], *arguments: Any) -> None:
    """Runs a function in a new process and prints its figures."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        figures = process.submit(_with_memory, function, *arguments).result()
    print(
        f"{function.__name__:6}",
        "  ".join(f"{name} {value:,.4g}" if value < 100 else f"{name} {value:,.0f}" for name, value in figures.items()),
    )


def _with_memory(function: Callable[..., Figures], *arguments: Any) -> Figures:
    figures = function(*arguments)
    return {**figures, "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def write_synthetic(path: Path, count: int, words: int = 50_000) -> None:
    """Writes pairs of random words with a Zipf distribution and lengths as in translated text."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    known = ["".join(random.choice(letters, size)) for size in random.integers(2, 11, words)]
    chances = 1.0 / np.arange(1, words + 1)
    chances /= chances.sum()
    with path.open("w") as file:
        for start in range(0, count, 10_000):
            amount = min(10_000, count - start)
            length = np.clip(np.exp(random.normal(2.9, 0.5, amount)), 1, 120)
            sizes = np.stack([length, np.clip(length * np.exp(random.normal(0, 0.15, amount)), 1, 130)], 1).astype(int)
            indices = iter(random.choice(words, int(sizes.sum()), p=chances).tolist())
            for source, target in sizes.tolist():
                text = [" ".join(known[next(indices)] for _ in range(size)) for size in (source, target)]
                file.write("\t".join(text) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="?", help="pairs, in any format that weft reads")
    parser.add_argument("--synthetic", type=int, metavar="COUNT", help="generate this many pairs")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--budget", type=int, default=8192, help="tokens per batch")
    options = parser.parse_args()
    if (options.pairs is None) == (options.synthetic is None):
        parser.error("give a file of pairs or --synthetic COUNT")
    with tempfile.TemporaryDirectory() as place:
        folder, spec = Path(place), options.pairs
        if options.synthetic:
            spec = str(folder / "synthetic.tsv")
            write_synthetic(Path(spec), options.synthetic)
        measure(train, spec, folder, options.vocabulary)
        measure(build, spec, folder)
        measure(read, spec, folder, options.budget)
        for _ in range(2):  # the first one trains a tokenizer and fills the cache
            measure(first_step, spec, folder)


if __name__ == "__main__":
    main()
