"""Measures how fast text is tokenised into a cache, and how much memory a large corpus needs.

    python benchmarks/prepare.py pairs.tsv.gz              tokenise a file of pairs with a trained BPE into a cache
    python benchmarks/prepare.py --synthetic 2000000       the same with random pairs
    python benchmarks/prepare.py --synthetic 1000000 4000000 16000000 --most 500 --words 4
    python benchmarks/prepare.py --synthetic 1000000 --processes 1 2 auto        tokenise by one process and by two, in turns
    python benchmarks/prepare.py --rows 1000000 4000000 16000000     caches of random ids: seeking and reading only

Then it reads one epoch of batches, or the first `--most`, begins at the end of an epoch (`seek`), and runs the first step of
`weft train` twice: with a cold and with a warm cache. Several sizes are measured in shards of a million pairs, without the
first step, and a line through the figures says what a billion pairs would take.

Every measurement runs in a new process, so that peak memory is measured separately. It includes importing torch. Without
--processes, one process tokenises. CPU seconds are those of a process and of its workers; the memory of a worker includes
pages that it shares.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.data.batch import Position
from weft.data.batching import Batches
from weft.data.corpus import Corpus, Processes
from weft.data.corpus_files import CorpusReport
from weft.data.formats import open_pairs
from weft.data.sentence_pairs import collate_pairs, prepare_pairs
from weft.data.tokenizers import Tokenizer, load_tokenizers, save_tokenizers, train_tokenizers

Figures = dict[str, float]


def train(spec: str, folder: Path, vocabulary: int) -> Figures:
    begin = time.perf_counter()
    save_tokenizers(folder, *train_tokenizers("bpe", [open_pairs(spec)], size=vocabulary, shared=True))
    return {"seconds to train the BPE": time.perf_counter() - begin}


def prepare(
    spec: str, source: Tokenizer, target: Tokenizer, folder: Path, duplicates: bool, processes: Processes = 1
) -> Corpus:
    options = {"max_length": 256, "drop_duplicates": duplicates, "processes": processes}
    return prepare_pairs([open_pairs(spec)], source, target, folder=folder / "cache", **options)


def build(spec: str, folder: Path, duplicates: bool, processes: Processes = 1) -> Figures:
    """Tokenises and writes the cache. Dropping duplicates is the most expensive setting: it remembers a hash of each pair."""
    source, target = load_tokenizers(folder, "bpe")
    begin = time.perf_counter()
    corpus = prepare(spec, source, target, folder, duplicates, processes)
    seconds = time.perf_counter() - begin
    size = sum(file.stat().st_size for file in corpus.folder.iterdir())
    print(corpus.report.describe())
    return {"pairs": corpus.report.read, "seconds": seconds, "pairs/s": corpus.report.read / seconds, "MB on disk": size / 1e6}


def read(spec: str, folder: Path, budget: int, duplicates: bool, most: int) -> Figures:
    """Opens the finished cache as training does, and reads the batches of one epoch, at most `most`."""
    begin = time.perf_counter()
    source, target = load_tokenizers(folder, "bpe")
    corpus = prepare(spec, source, target, folder, duplicates)
    first, pairs, real, padded, count = 0.0, 0, 0, 0, 0
    for rows, position in Batches(corpus.lengths, budget, seed=1).stream(Position()):
        batch = collate_pairs(corpus, rows)
        first = first or time.perf_counter() - begin
        count, pairs = count + 1, pairs + len(rows)
        if count == most:
            break
        real += int(batch.source.layout.mask.sum() + batch.target_layout.mask.sum())
        padded += batch.source.values.numel() + batch.target.numel()
        if position.epoch:
            break
    seconds = time.perf_counter() - begin
    return {"seconds to the first batch": first, "pairs": pairs, "batches/s": count / seconds, "real tokens": real / padded}


def seek(spec: str, folder: Path, budget: int, duplicates: bool) -> Figures:
    """Opens the finished cache and begins at the last window of the third epoch, as a resumed training does."""
    source, target = load_tokenizers(folder, "bpe")
    begin = time.perf_counter()
    corpus = prepare(spec, source, target, folder, duplicates)
    opened = time.perf_counter() - begin
    batches = Batches(corpus.lengths, budget, seed=1)
    collate_pairs(corpus, next(batches.stream(Position(2, batches.windows - 1, 0)))[0])
    return {"seconds to open": opened, "seconds to the batch": time.perf_counter() - begin - opened}


def first_step(spec: str, folder: Path) -> Figures:
    """A `weft train` of one step, including its checkpoint. The memory of the model is given separately."""
    begin = time.perf_counter()
    out = folder / f"run-{time.monotonic_ns()}"
    options = {"data.cache": str(folder / "cache"), "train.steps": 1, "train.validate_every": 0, "train.tensorboard": False}
    weft.train("transformer-tiny", data=spec, out=out, set=options)
    seconds = time.perf_counter() - begin
    weights = (out / "model.safetensors").stat().st_size
    return {"seconds to the first step": seconds, "MB of weights, gradients, optimiser and average": 5 * weights / 1e6}


def write_cache(folder: Path, count: int) -> None:
    """A cache of random ids with the lengths of translated text, as tokenising would leave it."""
    random, columns = np.random.default_rng(0), ("source", "target")
    folder.mkdir()
    ends = dict.fromkeys(columns, 0)
    with ExitStack() as stack:
        names = [*columns, *(f"{column}.offsets" for column in columns), "lengths"]
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in names}
        for column in columns:
            files[f"{column}.offsets"].write(np.zeros(1, np.uint64).data)
        for start in range(0, count, SHARD):
            amount = min(SHARD, count - start)
            lengths = np.clip(np.exp(random.normal(3.3, 0.5, (amount, 2))), 1, 250).astype(np.uint32)
            files["lengths"].write(lengths.data)
            for column, sizes in zip(columns, lengths.T.astype(np.uint64), strict=True):
                files[column].write(random.integers(4, 8000, int(sizes.sum()), np.uint16).data)
                files[f"{column}.offsets"].write((ends[column] + sizes.cumsum()).data)
                ends[column] += int(sizes.sum())
    about = {"report": asdict(CorpusReport(read=count, kept=count)), "length": "uint32", "sized": 2}
    (folder / "about.json").write_text(json.dumps({**about, "columns": dict.fromkeys(columns, "uint16")}))


def reread(folder: Path, budget: int, most: int) -> Figures:
    """Opens a cache, begins at the last window of the third epoch, and reads batches on from there."""
    begin = time.perf_counter()
    corpus = Corpus(folder)
    batches = Batches(corpus.lengths, budget, seed=1)
    opened = time.perf_counter() - begin
    stream = batches.stream(Position(2, batches.windows - 1, 0))
    collate_pairs(corpus, next(stream)[0])
    sought, pairs = time.perf_counter() - begin - opened, 0
    for rows, _ in islice(stream, most):
        pairs += len(collate_pairs(corpus, rows).rows)
    seconds = time.perf_counter() - begin - opened - sought
    return {"seconds to open": opened, "seconds to the batch": sought, "pairs/s": pairs / seconds}


def measure(function: Callable[..., Figures], *arguments: Any) -> Figures:
    """Runs a function in a new process and prints its figures."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        figures = process.submit(_with_memory, function, *arguments).result()
    print(
        f"{function.__name__:6}",
        "  ".join(f"{name} {value:,.4g}" if value < 100 else f"{name} {value:,.0f}" for name, value in figures.items()),
        flush=True,
    )
    return figures


def _with_memory(function: Callable[..., Figures], *arguments: Any) -> Figures:
    figures = function(*arguments)
    used, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, peak = (int(status[name].split()[0]) / 1024 for name in ("RssAnon", "VmHWM"))  # ru_maxrss has the parent's too
    figures |= {"CPU seconds": used.ru_utime + used.ru_stime, "peak MB": peak, "MB without files": own}
    if workers.ru_maxrss:
        figures |= {"CPU seconds of workers": workers.ru_utime + workers.ru_stime, "peak MB of one": workers.ru_maxrss / 1024}
    return figures


def write_synthetic(path: Path, count: int, usual: float = 18, words: int = 50_000) -> None:
    """Writes pairs of random words with a Zipf distribution and lengths as in translated text. usual: the median of them."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    known = ["".join(random.choice(letters, size)) for size in random.integers(2, 11, words)]
    chances = 1.0 / np.arange(1, words + 1)
    chances /= chances.sum()
    with path.open("w") as file:
        for start in range(0, count, 10_000):
            amount = min(10_000, count - start)
            length = np.clip(np.exp(random.normal(np.log(usual), 0.5, amount)), 1, 120)
            sizes = np.stack([length, np.clip(length * np.exp(random.normal(0, 0.15, amount)), 1, 130)], 1).astype(int)
            indices = iter(random.choice(words, int(sizes.sum()), p=chances).tolist())
            for source, target in sizes.tolist():
                text = [" ".join(known[next(indices)] for _ in range(size)) for size in (source, target)]
                file.write("\t".join(text) + "\n")


SHARD = 1_000_000


def write_shards(folder: Path, count: int, usual: float) -> str:
    """Random pairs in shards of a million: the targets of each further one are those of the first, moved by as many lines."""
    write_synthetic(folder / "shard-000.tsv", min(count, SHARD), usual)
    sides = [line.rstrip("\n").split("\t") for line in (folder / "shard-000.tsv").open()] if count > SHARD else []
    for number in range(1, -(-count // SHARD)):
        with (folder / f"shard-{number:03}.tsv").open("w") as file:
            for place in range(min(SHARD, count - number * SHARD)):
                file.write(f"{sides[place][0]}\t{sides[place - number][1]}\n")
    return str(folder / "shard-*.tsv")


def compare_processes(spec: str, folder: Path, processes: list[Processes], turns: int) -> None:
    """Tokenises the same pairs by one process and by several, in turns."""
    found: dict[Processes, list[Figures]] = {count: [] for count in processes}
    for turn in range(turns):
        for count in processes[:: 1 if turn % 2 == 0 else -1]:
            print(f"{count} processes, load {os.getloadavg()[0]:.0f}", flush=True)
            found[count].append(measure(build, spec, folder, False, count))
            shutil.rmtree(folder / "cache")
    for count, figures in found.items():
        pairs, means = figures[0]["pairs"], {name: np.mean([each[name] for each in figures]) for name in figures[0]}
        own, workers = means["CPU seconds"], means.get("CPU seconds of workers", 0.0)
        together = f"{1e6 * (own + workers) / pairs:.2f} CPU seconds per million pairs"
        print(f"{count} processes: {together}, of them {1e6 * own / pairs:.2f} in the first; {means['pairs/s']:,.0f} pairs/s")


def grow(counts: list[int], usual: float, vocabulary: int, budget: int, most: int, duplicates: bool) -> None:
    """Measures several sizes, and draws a line through them."""
    found: dict[str, list[float]] = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            spec = write_shards(folder, count, usual)
            print(f"{count:,} pairs, {sum(file.stat().st_size for file in folder.glob('*.tsv')) / 1e6:,.0f} MB", flush=True)
            steps = {
                "train": measure(train, spec, folder, vocabulary),
                "build": measure(build, spec, folder, duplicates),
                "read": measure(read, spec, folder, budget, duplicates, most),
                "seek": measure(seek, spec, folder, budget, duplicates),
            }
            for step, figures in steps.items():
                for name in (
                    "CPU seconds",
                    "peak MB",
                    "MB without files",
                    "MB on disk",
                    "seconds to open",
                    "seconds to the batch",
                ):
                    if name in figures:
                        found.setdefault(f"{step}: {name}", []).append(figures[name])
    for name, values in found.items():
        slope, start = np.polyfit(counts, values, 1) if len(counts) > 1 else (0.0, values[0])
        print(f"{name:30} {slope * 1e6:+10.3f} per million pairs, {start + slope * 1e9:14,.0f} for a billion")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="?", help="pairs, in any format that weft reads")
    parser.add_argument("--synthetic", type=int, nargs="+", metavar="COUNT", help="generate this many pairs")
    parser.add_argument("--words", type=float, default=18, help="their usual number of words")
    parser.add_argument("--processes", nargs="+", metavar="COUNT", help="only tokenise, by this many processes or auto")
    parser.add_argument("--turns", type=int, default=1, help="with --processes: how often each is measured")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--budget", type=int, default=8192, help="tokens per batch")
    parser.add_argument("--most", type=int, default=0, help="batches to read; 0: those of an epoch")
    parser.add_argument("--duplicates", action="store_true", help="of several sizes: drop duplicates too")
    parser.add_argument("--rows", type=int, nargs="+", metavar="COUNT", help="only read caches of COUNT random pairs")
    options = parser.parse_args()
    for count in options.rows or []:
        with tempfile.TemporaryDirectory() as place:
            write_cache(Path(place) / "corpus", count)
            print(f"{count:,} pairs", flush=True)
            measure(reread, Path(place) / "corpus", options.budget, options.most or 2000)
    if options.rows:
        return
    if (options.pairs is None) == (options.synthetic is None):
        parser.error("give a file of pairs or --synthetic COUNT")
    if options.synthetic and len(options.synthetic) > 1:
        grow(options.synthetic, options.words, options.vocabulary, options.budget, options.most, options.duplicates)
        return
    with tempfile.TemporaryDirectory() as place:
        folder, spec = Path(place), options.pairs
        if options.synthetic:
            spec = str(folder / "synthetic.tsv")
            write_synthetic(Path(spec), options.synthetic[0], options.words)
        measure(train, spec, folder, options.vocabulary)
        if options.processes:
            compare_processes(
                spec, folder, ["auto" if each == "auto" else int(each) for each in options.processes], options.turns
            )
            return
        measure(build, spec, folder, True)
        measure(read, spec, folder, options.budget, True, options.most)
        measure(seek, spec, folder, options.budget, True)
        for _ in range(2):  # the first one trains a tokenizer and fills the cache
            measure(first_step, spec, folder)


if __name__ == "__main__":
    main()
