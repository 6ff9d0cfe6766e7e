"""Tags and noise of the corpora of a translation task."""

from __future__ import annotations

from typing import Any

from weft.config.corpora import TrainingCorpus, ValidationCorpus, grouped, weighed
from weft.config.registry import suggest
from weft.config.sections import DataSection
from weft.data.marks import BLANK, add_marks
from weft.data.noise import Noiser, Noising, WordNoise
from weft.data.pairs import SIDES
from weft.data.tokenizer import Tokenizer
from weft.errors import ConfigError


def with_marks(data: DataSection, source: Tokenizer, target: Tokenizer) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers with the tags of all corpora as tokens of their own and, if noise needs it, the blank."""
    corpora, directions = weighed(data.train), grouped(data.valid, ValidationCorpus)
    tags = dict.fromkeys(tag for part in corpora for tag in part.tags)
    known = [*tags, *source.marks]
    for tag in (tag for part in directions for tag in part.tags if tag not in known):
        raise ConfigError(f"data.valid: no training data has the tag {tag}; {suggest(tag, known)}")
    if BLANK in tags:
        raise ConfigError(f"data.train: the tag {BLANK} stands for words that noise has blanked out; choose another name")
    marks = [*tags, *([BLANK] if any(corpus.noise.blank for corpus in corpora) else [])]
    return add_marks(source, target, marks, needs_tag=all(corpus.tag for corpus in corpora))


def part_options(part: ValidationCorpus, data: DataSection, source: Tokenizer) -> dict[str, Any]:
    """How `prepare_pairs` reads an entry of data.train or data.valid: its tags, its filters, and what noise needs."""
    tags = source.tags(part.tag)
    if not isinstance(part, TrainingCorpus):
        return {"tags": tags, "max_length": data.max_length}
    noise, duplicates = part.noise, part.drop_duplicates
    if part.max_length and part.max_length > data.max_length:
        raise ConfigError(
            f"data.train: {part.label} has a max_length of {part.max_length}, above data.max_length, {data.max_length}, which "
            "is that of all corpora; raise data.max_length, or lower this one"
        )
    return {
        "tags": tags,
        "texts": SIDES if noise.subword is not None else SIDES[:1] if noise.any else (),
        "max_length": part.max_length or data.max_length,
        "max_ratio": part.max_ratio or data.max_ratio,
        "drop_duplicates": data.drop_duplicates if duplicates is None else duplicates,
    }


def make_noising(corpus: TrainingCorpus, source: Tokenizer, target: Tokenizer, longest: int) -> Noising | None:
    """The noise of a corpus of pairs, if it has any. Words change in sources only. longest: the most tokens of a text."""
    noise = corpus.noise
    if not noise.any:
        return None
    words = WordNoise(noise.drop, noise.blank, noise.shuffle) if noise.drop or noise.blank or noise.shuffle else None
    tags, blank = source.tags(corpus.tag), source.tags(BLANK)[0] if noise.blank else 0
    if noise.subword is None:
        noisers = {"source": Noiser(source, words, None, blank, tags)}
    else:
        above, below = (side.variants(noise.subword) for side in (source, target))
        noisers = {"source": Noiser(source, words, above, blank, tags), "target": Noiser(target, None, below)}
    return Noising(noisers, most=longest + len(tags) + 1)
