"""Reading a corpus, with messages about what is read and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from weft.config.sections import Config
from weft.data.cache import cache_folder
from weft.data.corpus import Corpus
from weft.data.formats import Pairs


def cache_of(config: Config) -> Path:
    """The folder in which a run caches prepared data."""
    cache = config.data.cache
    return Path(cache).expanduser() if cache else cache_folder()


def read_corpus(
    tell: Callable[[str], None], pairs: Sequence[Pairs], what: str, prepare: Callable[[Callable[[int], None]], Corpus]
) -> Corpus:
    """The corpus that `prepare`, given a function to report its progress to, makes of `pairs`; `tell` is kept informed."""
    tell(f"reading {what} data: {', '.join(some.name for some in pairs)}")
    corpus = prepare(lambda read: tell(f"tokenising {what} data: {read:,} lines"))
    tell(f"{what} data: {corpus.report.describe()}")
    return corpus
