"""Tokenizers of a new run: trained on its data, or taken over from another run, so that both have one vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.config.sections import Config, load_config
from weft.data.corpus import cache_folder
from weft.data.formats import Pairs
from weft.data.tokenizers import ExtraWords, InheritedTokenizers, Tokenizer, train_tokenizer, train_tokenizers
from weft.data.tokenizers.added_tokens import load_extended
from weft.data.word_vectors.vectors import read_vectors
from weft.errors import RunError
from weft.file_access import why_unreadable
from weft.runs.migrations import check_format

Report = Callable[[str], None]


def tokenizers_of(config: Config) -> tuple[Config, Tokenizer, Tokenizer]:
    """The tokenizers of the run that data.tokenizer_of names, and the configuration with their settings."""
    run = Path(str(config.data.tokenizer_of))
    if problem := why_unreadable(run / "config.yaml", "run"):
        raise RunError(f"data.tokenizer_of: {run}: {problem}")
    check_format(run)
    data = load_config(run / "config.yaml").data
    settings = {f"data.{key}": getattr(data, key) for key in ("tokenizer", "vocabulary", "shared_vocabulary")}
    return config.replaced(settings), *load_extended(run, data.tokenizer)


def learn_tokenizer(config: Config, texts: Sequence[Pairs], report: Report, *, side: int = 0) -> Tokenizer:
    """A tokenizer of one side of the training data, 0 for sources, 1 for targets."""
    return train_tokenizer(config.data.tokenizer, texts, side=side, **_options(config, report))


def learn_tokenizers(config: Config, pairs: Sequence[Pairs], report: Report) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of both sides of the training data."""
    return train_tokenizers(config.data.tokenizer, pairs, shared=config.data.shared_vocabulary, **_options(config, report))


def _options(config: Config, report: Report) -> dict[str, Any]:
    """The size, the cache, and the tokenizers or words to begin with, which are reported."""
    data, start = config.data, config.start
    made = f"training {data.tokenizer['kind']} tokenizer, vocabulary {data.vocabulary:,}"
    more = f", with up to {start.extend:,} more tokens" if start.extend and (start.run or start.vectors) else ""
    report((f"taking the tokenizer of {start.run}" if start.run else made) + more)
    inherited: InheritedTokenizers | ExtraWords | None = None
    if start.vectors and start.extend:
        inherited = ExtraWords(read_vectors(start.vectors)[0], start.extend)
    elif start.run:
        inherited = InheritedTokenizers(*load_extended(Path(start.run), data.tokenizer), start.extend)
    return {"size": data.vocabulary, "folder": cache_folder(data.cache), "start": inherited}
