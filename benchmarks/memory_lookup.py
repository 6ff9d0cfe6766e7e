"""Time and memory of looking texts up in a large translation memory.

    python benchmarks/memory_lookup.py [--entries 1000000]

The memory has random texts of 4 to 29 words, with word frequencies by Zipf's law over 100,000 words. Looked up are 1,000 of its
texts with one word replaced, and 1,000 texts that are drawn in the same way and have few similar entries.
"""

from __future__ import annotations

import argparse
import random
import resource
import time

import numpy as np

from weft.tasks.translation.translation_memory import TranslationMemory

WORDS, QUERIES = 100_000, 1000


def draw(rng: np.random.Generator, count: int) -> list[str]:
    """Random texts."""
    shares = 1 / np.arange(1, WORDS + 1)
    sizes = rng.integers(4, 30, count)
    words = rng.choice(WORDS, size=int(sizes.sum()), p=shares / shares.sum())
    return [" ".join(f"w{word}" for word in each) for each in np.split(words, np.cumsum(sizes)[:-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    rng, chance = np.random.default_rng(1), random.Random(1)
    texts = draw(rng, parser.parse_args().entries)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    memory = TranslationMemory((text, text) for text in texts)
    read = time.perf_counter()
    memory.find("nothing similar")
    print(f"{len(memory):,} entries: {read - began:.1f} s to read, {time.perf_counter() - read:.1f} s to index")
    changed = []
    for text in chance.sample(texts, QUERIES):
        words = text.split()
        words[chance.randrange(len(words))] = "w5"
        changed.append(" ".join(words))
    for name, queries in (("one word replaced", changed), ("new texts", draw(rng, QUERIES))):
        began = time.perf_counter()
        found = sum(memory.find(text) is not None for text in queries)
        print(f"{name}: {1000 * (time.perf_counter() - began) / QUERIES:.2f} ms per text, {found:,} of {QUERIES:,} found")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:,.0f} MB, {before:,.0f} MB of it before the memory was read")


if __name__ == "__main__":
    main()
