"""Corpora of text pairs, tokenised for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from weft.config import Config
from weft.data.cache import Corpus, cache_folder, prepare
from weft.data.formats import Pairs
from weft.data.tokenizer import Tokenizer


def cache_of(config: Config) -> Path:
    """The folder for tokenised data."""
    cache = config.data.cache
    return Path(cache).expanduser() if cache else cache_folder()


def read_corpus(
    config: Config,
    tell: Callable[[str], None],
    pairs: Sequence[Pairs],
    source: Tokenizer,
    target: Tokenizer,
    *,
    what: str,
    max_ratio: float | None = None,
    drop_duplicates: bool = False,
    copying: bool = False,
) -> Corpus:
    """The corpus of `pairs`, tokenised now or read from the cache. `tell` receives progress and what was left out."""
    tell(f"reading {what} data: {', '.join(some.name for some in pairs)}")

    def progress(read: int) -> None:
        tell(f"tokenising {what} data: {read:,} pairs")

    corpus = prepare(
        pairs,
        source,
        target,
        folder=cache_of(config),
        max_length=config.data.max_length,
        max_ratio=max_ratio,
        drop_duplicates=drop_duplicates,
        copying=copying,
        progress=progress,
    )
    tell(f"{what} data: {corpus.report.describe()}")
    return corpus
