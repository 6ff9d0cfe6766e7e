"""The tokenizers of a run: trained on its data, or those of another run, and kept in its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.config.sections import Config, load_config
from weft.data.corpus import cache_folder
from weft.data.formats import Pairs
from weft.data.tokenizers import ExtraWords, InheritedTokenizers, Tokenizer, has_tokenizers, train_tokenizers
from weft.data.tokenizers.added_tokens import load_extended, save_extended
from weft.data.word_vectors.vectors import read_vectors
from weft.errors import RunError
from weft.file_access import why_unreadable
from weft.runs.migrations import check_format

TokenizerPair = tuple[Tokenizer, Tokenizer]
"""The tokenizers of sources and targets, which may be the same one."""

Report = Callable[[str], None]


def learn_once(run: Path, learn: Callable[[], TokenizerPair | None]) -> bool:
    """Saves the tokenizers that `learn` returns, unless the run has some already, so that resuming never changes them.

    Returns whether they are new.
    """
    learnt = None if has_tokenizers(run) else learn()
    if learnt is not None:
        save_extended(run, *learnt)
    return learnt is not None


def open_tokenizers(run: Path, config: Config) -> TokenizerPair:
    """The tokenizers in the folder of a run."""
    return load_extended(run, config.data.tokenizer)


def tokenizers_of(config: Config) -> tuple[Config, Tokenizer, Tokenizer]:
    """The tokenizers of the run that data.tokenizer_of names, and the configuration with their settings."""
    run = Path(str(config.data.tokenizer_of))
    if problem := why_unreadable(run / "config.yaml", "run"):
        raise RunError(f"data.tokenizer_of: {run}: {problem}")
    check_format(run)
    data = load_config(run / "config.yaml").data
    settings = {f"data.{key}": getattr(data, key) for key in ("tokenizer", "vocabulary", "shared_vocabulary")}
    return config.replaced(settings), *load_extended(run, data.tokenizer)


def learn_tokenizer(config: Config, texts: Sequence[Pairs], report: Report, *, side: int = 0) -> TokenizerPair:
    """One tokenizer for both sides, trained on one of them: 0 for sources, 1 for targets."""
    tokenizer = train_tokenizers(config.data.tokenizer, texts, only=side, **_options(config, report))[side]
    return tokenizer, tokenizer


def learn_tokenizers(config: Config, pairs: Sequence[Pairs], report: Report) -> TokenizerPair:
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
    return {"size": data.vocabulary, "folder": cache_folder(data.cache), "start": inherited, "report": report}
