"""The tokenizers of quality estimation, of both languages or one for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.config.sections import Config
from weft.data.formats import Pairs
from weft.data.tokenizers import Tokenizer
from weft.errors import ConfigError
from weft.tasks.run_tokenizers import TokenizerPair as TokenizerPair
from weft.tasks.run_tokenizers import learn_tokenizers, tokenizers_of


def quality_tokenizers(
    config: Config, train: Sequence[Pairs], report: Callable[[str], None], *, apart: bool
) -> tuple[Config, TokenizerPair]:
    """The tokenizers of sources and of translations, and the configuration with their settings.

    apart: the model may have one for each side; otherwise both have the same.
    """
    if config.data.tokenizer_of:
        config, *pair = tokenizers_of(config)
        return config, (pair[0], pair[1])
    if not (apart or config.start.run):
        config = config.replaced({"data.shared_vocabulary": True})
    return config, learn_tokenizers(config, train, report)


def check_shared(source: Tokenizer, target: Tokenizer, config: Config) -> None:
    """Raises ConfigError if an estimator with one encoder would read the ids of two tokenizers."""
    if source is not target:
        raise ConfigError(
            f"task.estimator: {config.task['estimator']['kind']} reads both texts with one encoder, and the tokenizers of "
            f"{config.start.run or config.data.tokenizer_of} are two; choose the estimator translator, or a run with "
            "data.shared_vocabulary: true"
        )
