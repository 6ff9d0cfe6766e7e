"""What quality estimation prepares: tokenizers of both languages, and the scores of estimates that do not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from weft.config.sections import Config
from weft.data.formats import Pairs
from weft.data.tokenizers import Tokenizer
from weft.errors import ConfigError
from weft.evaluation.metrics import Metric, score
from weft.tasks.quality.data import join_label, split_label
from weft.tasks.quality.labels import words_of
from weft.tasks.run_tokenizers import TokenizerPair as TokenizerPair
from weft.tasks.run_tokenizers import learn_tokenizers, tokenizers_of
from weft.tasks.two_texts import split_texts


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


def floors(examples: Sequence[tuple[str, str]], mean: float | None, metrics: Sequence[Metric]) -> dict[str, dict[str, float]]:
    """The scores of estimates that do not read: the mean and the most frequent tag, and the number of words.

    mean: of the scores in training; None if no scores are estimated
    """
    references = [label for _, label in examples]
    counts = Counter(tag for label in references for tag in split_label(label)[1])
    usual = max(counts, key=lambda tag: counts[tag], default="")
    words = [len(words_of(split_texts(source)[1])) for source, _ in examples]
    tags = [[usual] * len(split_label(label)[1]) for label in references]
    guesses = {"the same for all": [join_label("" if mean is None else f"{mean:.4f}", each) for each in tags]}
    if mean is not None:
        guesses["minus the number of words"] = [join_label(str(-n), own) for n, own in zip(words, tags, strict=True)]
    return {
        name: {each.name: each.value for each in score(each, references, list(metrics)).values()}
        for name, each in guesses.items()
    }
