"""Chooses the settings of `auto` from the data and the device, and keeps those that the user has set.

The rules are a table with a row per amount of data, and a few constants. docs/recipes.md shows the same table and says how it
was found. `python benchmarks/fit.py --write-rules docs/recipes.md` writes it there.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.config.corpus_entries import names
from weft.config.sections import Config
from weft.data.corpus import cache_folder
from weft.data.formats import Pairs, open_pairs
from weft.data.term_automata import is_unspaced
from weft.data.tokenizers import Tokenizer, train_tokenizers
from weft.data.validation_split import HELD_OUT, split
from weft.errors import ConfigError, DataError
from weft.layers.kernels import modern


@dataclass(frozen=True)
class Shape:
    """A Transformer with as many layers in the encoder as in the decoder, and the peak learning rate it is trained with."""

    dim: int
    heads: int
    feedforward: int
    layers: int
    rate: float

    @property
    def weights(self) -> int:
        """The weights of all layers, without embeddings."""
        return self.layers * (12 * self.dim**2 + 4 * self.dim * self.feedforward)


@dataclass(frozen=True)
class Row:
    """Settings that suit about `pairs` training pairs.

    vocabulary: pieces of a shared BPE · shape: a name in SHAPES · dropout, attention_dropout, feedforward_dropout,
    label_smoothing: as in a configuration · batch_tokens: tokens per step · passes: how often training sees each pair ·
    timed: the largest shape that --time may choose, if it is not `shape`
    """

    pairs: int
    vocabulary: int
    shape: str
    dropout: float
    attention_dropout: float
    feedforward_dropout: float
    label_smoothing: float
    batch_tokens: int
    passes: int
    timed: str = ""


SHAPES = {
    "mini": Shape(128, 4, 512, 2, 2.5e-3),
    "tiny": Shape(192, 4, 768, 3, 2.0e-3),
    "small": Shape(256, 4, 1024, 4, 1.8e-3),
    "medium": Shape(384, 6, 1536, 4, 1.4e-3),
    "base": Shape(512, 8, 2048, 6, 8.0e-4),
    "big": Shape(1024, 16, 4096, 6, 4.0e-4),
}
"""By increasing size."""

TABLE = (
    Row(500, 3_000, "small", 0.4, 0.1, 0.1, 0.3, 8_192, 3_600),
    Row(3_000, 4_000, "small", 0.4, 0.1, 0.1, 0.3, 4_096, 170),
    Row(12_000, 4_000, "small", 0.4, 0.1, 0.1, 0.2, 8_192, 110),
    Row(29_000, 10_000, "small", 0.4, 0.1, 0.1, 0.1, 12_288, 95),
    Row(162_000, 32_000, "base", 0.3, 0.1, 0.1, 0.1, 24_576, 48),
    Row(1_000_000, 32_000, "base", 0.1, 0.1, 0.1, 0.1, 24_576, 15, timed="big"),
    Row(5_000_000, 32_000, "base", 0.1, 0.1, 0.1, 0.1, 32_768, 8, timed="big"),
)
"""By increasing number of pairs. A step of the first row takes all its pairs. The row nearest in proportion applies: 20,000
pairs use the row of 29,000."""

CPU_SHAPE, CPU_BATCH, CPU_TOKENS = "tiny", 3_072, 8_000_000
"""Without a GPU: the largest shape unless --time allows more, the largest batch, and the most tokens unless --time is given."""

ENOUGH_PASSES, TOKENS_PER_WEIGHT, ENOUGH_UPDATES = 25, 2, 400
"""--time suffices for a shape if it allows this many passes or this many tokens per weight, and this many updates; else a
smaller one is taken."""

FILTERED, UNEVEN = 500_000, 6.0
"""From this many pairs on, a corpus was collected by programs: pairs that occurred before are left out, and those of which one
side has more than this many times the tokens of the other. Of a million strings of software, 2 in 10,000 are so uneven."""

BIG_DROPOUT = 0.3
"""The least dropout of the shape `big` (Vaswani et al. 2017)."""

WARMUP = 0.15
"""The share of the steps that warm up the learning rate, at most LONGEST_WARMUP steps."""
LONGEST_WARMUP = 4_000

FEWEST_STEPS = 200
EMA_SHARE, LONGEST_EMA = 0.1, 2_000
"""The moving average of the weights looks back over this share of the steps, at most over LONGEST_EMA steps."""

VALIDATIONS, SHORTEST_INTERVAL, PATIENCE = 20, 25, 6
"""Validations per training, the fewest steps between two of them, and how many without improvement end training."""

HELD_OUT_SHARE, HELD_OUT_LEAST, HELD_OUT_MOST = 0.05, 25, 1_000
"""The share of the pairs that is held out for validation, and limits; never more than a tenth of the pairs."""

SENTENCES, CPU_SENTENCES = 500, 200
"""The most sentences that each validation decodes, with and without a GPU."""

BEST_BY = "chrf2"
"""The validation score that decides. Unlike BLEU, it is steady on few sentences and works for every script."""

FEWEST_TO_CHOOSE = 50
"""With fewer validation pairs, scores are too noisy to choose weights by: training keeps its last moving average."""

LONGEST = 1_024
"""The largest `data.max_length` that is chosen."""


def row_for(pairs: int) -> Row:
    """The row of the table that is nearest to a number of pairs, in proportion."""
    return min(TABLE, key=lambda row: max(row.pairs, pairs) / max(1, min(row.pairs, pairs)))


def held_out(pairs: int) -> int:
    """The number of pairs to hold out for validation."""
    return max(1, min(HELD_OUT_MOST, pairs // 10, max(HELD_OUT_LEAST, round(HELD_OUT_SHARE * pairs))))


CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of arithmetic in bf16 in /proc/cpuinfo, on x86 and on ARM."""


UNSPACED = 0.5
"""A side is written without spaces if this share of its letters belongs to such a script."""

FREQUENT = 2
"""Occurrences of a character that deserve an id."""

EVERY, STRIDE = 200_000, 16
"""All of the first pairs are looked at, and a regular sample of the others."""

SAMPLE = 4_000
"""Pairs that are tokenised to learn how long they are."""

ORDINARY = 0.995
"""The share of the pairs that must fit into the longest length."""


@dataclass(frozen=True)
class DataSurvey:
    """The training data in numbers; of two, the first is for sources and the second for targets.

    words: words per text · characters: characters per text · unspaced: whether the script has no spaces between words ·
    alphabet: characters that occur more than once
    """

    pairs: int
    words: tuple[float, float]
    characters: tuple[float, float]
    unspaced: tuple[bool, bool]
    alphabet: int


@dataclass(frozen=True)
class Lengths:
    """Tokens per pair, on the longer side and with its end, and a length that nearly all pairs keep to."""

    mean: float
    longest: int


def survey(pairs: Sequence[Pairs]) -> DataSurvey:
    """Reads all pairs once. Of very many, only some are looked at, but all are counted."""
    letters: list[Counter[str]] = [Counter(), Counter()]
    words, count, looked = [0, 0], 0, 0
    for count, pair in enumerate(chain.from_iterable(pairs), start=1):
        if count <= EVERY or count % STRIDE == 0:
            looked += 1
            for side, text in enumerate(pair):
                letters[side].update(text)
                words[side] += len(text.split())
    if not count or not all(letters):
        raise DataError(f"{', '.join(some.name for some in pairs)}: there is no text on at least one side")
    frequent = sum(1 for number in (letters[0] + letters[1]).values() if number >= FREQUENT)
    sides = [(words[side] / looked, letters[side].total() / looked, _is_unspaced(letters[side])) for side in (0, 1)]
    (source, target) = sides
    return DataSurvey(count, (source[0], target[0]), (source[1], target[1]), (source[2], target[2]), frequent)


def _is_unspaced(letters: Counter[str]) -> bool:
    alphabetic = {letter: number for letter, number in letters.items() if letter.isalpha()}
    without = sum(number for letter, number in alphabetic.items() if is_unspaced(letter))
    return without > UNSPACED * max(1, sum(alphabetic.values()))


def lengths(pairs: Sequence[Pairs], count: int, source: Tokenizer, target: Tokenizer) -> Lengths:
    """The lengths of an evenly spaced sample of `count` pairs in tokens."""
    sample = list(islice(chain.from_iterable(pairs), 0, None, max(1, count // SAMPLE)))
    sides = source.encode_batch([pair[0] for pair in sample]), target.encode_batch([pair[1] for pair in sample])
    longer = np.array([max(map(len, pair)) + 1 for pair in zip(*sides, strict=True)])
    return Lengths(float(longer.mean()), int(np.quantile(longer, ORDINARY, method="higher")))


@dataclass
class SettingsDraft:
    """A configuration in the making: every part of it is chosen unless the user has set it.

    fixed: the paths that the user has set · reasons: a line for each topic, for the user
    """

    config: Config
    fixed: Collection[str] = ()
    reasons: dict[str, str] = field(default_factory=dict)

    def put(self, settings: Mapping[str, Any]) -> None:
        """Changes settings, but none that the user has set."""
        free = {path: value for path, value in settings.items() if not self.is_fixed(path)}
        self.config = self.config.replaced(free)

    def is_fixed(self, path: str) -> bool:
        return any(path == fixed or path.startswith(f"{fixed}.") for fixed in self.fixed)


@dataclass(frozen=True)
class TrainingFacts:
    """Facts that the choice depends on.

    data, lengths: the training data without what is held out · validation: validation pairs · row: of the table
    """

    data: DataSurvey
    lengths: Lengths
    validation: int
    row: Row
    device: torch.device
    processes: int = 1

    @property
    def pass_tokens(self) -> float:
        """Tokens of one pass over the data, on the longer side of each pair."""
        return self.data.pairs * self.lengths.mean

    @property
    def cpu(self) -> bool:
        return self.device.type == "cpu"


def choose_data(choice: SettingsDraft, out: Path, device: torch.device, processes: int = 1) -> TrainingFacts:
    """Chooses validation data and tokens, and counts the data that remains for training."""
    config = choice.config
    if config.task["kind"] != "translation":
        hint = "`weft list recipes` shows recipes for it"
        raise ConfigError(f"task: auto chooses for pairs of texts, not for {config.task['kind']}; {hint}")
    if not config.data.train:
        raise ConfigError("there is no training data: give --data source.txt,target.txt, or set data.train")
    pairs = [open_pairs(spec) for spec in config.data.files]
    surveyed = survey(pairs)
    if not config.data.valid:
        choice.put({"data.hold_out": held_out(surveyed.pairs)})
    remaining = _hold_out(choice, pairs, out)
    if remaining is not pairs:
        surveyed = replace(surveyed, pairs=sum(1 for _ in chain.from_iterable(remaining)))
    held = [str(out / HELD_OUT)] if choice.config.data.hold_out else []
    validation = sum(1 for spec in names(choice.config.data.valid) or held for _ in open_pairs(spec))
    row = row_for(surveyed.pairs)
    _describe_data(choice, surveyed, validation, out)
    _choose_filters(choice, surveyed.pairs)
    return TrainingFacts(surveyed, _choose_tokens(choice, surveyed, row, remaining), validation, row, device, processes)


def _choose_filters(choice: SettingsDraft, pairs: int) -> None:
    """Filters of large data. The log of the training says how many pairs each leaves out."""
    if pairs < FILTERED:
        return
    choice.put({"data.drop_duplicates": True, "data.max_ratio": UNEVEN})
    data = choice.config.data
    kinds = ["those that occurred before"] if data.drop_duplicates else []
    kinds += [f"those with more than {data.max_ratio:g} times as many tokens on one side"] if data.max_ratio else []
    choice.reasons["filters"] = f"left out are {' and '.join(kinds)}; see the numbers below" if kinds else "none, as set"


def _hold_out(choice: SettingsDraft, pairs: Sequence[Pairs], out: Path) -> Sequence[Pairs]:
    data = choice.config.data
    return split(pairs, out, data.hold_out, choice.config.train.seed)[0] if data.hold_out else pairs


def _describe_data(choice: SettingsDraft, surveyed: DataSurvey, validation: int, out: Path) -> None:
    unit, sizes = ("characters", surveyed.characters) if all(surveyed.unspaced) else ("words", surveyed.words)
    text = f"{surveyed.pairs:,} pairs to train on, with {sizes[0]:.1f} and {sizes[1]:.1f} {unit} on average"
    if choice.config.data.hold_out:
        text += f"; {validation:,} pairs are held out for validation (seed {choice.config.train.seed}), see {out / HELD_OUT}"
    choice.reasons["data"] = text


def _choose_tokens(choice: SettingsDraft, surveyed: DataSurvey, row: Row, pairs: Sequence[Pairs]) -> Lengths:
    """Chooses the tokenizer, the vocabulary and the longest length."""
    if all(surveyed.unspaced):
        choice.put({"data.tokenizer": {"kind": "characters"}, "data.vocabulary": surveyed.alphabet + 4 + 256})
        why = "because neither side separates words by spaces"
    else:
        extra = surveyed.alphabet if any(surveyed.unspaced) else 0
        choice.put({"data.tokenizer": {"kind": "bpe"}, "data.vocabulary": row.vocabulary + extra})
        why = f"as suits about {row.pairs:,} pairs" + (", and a large alphabet" if extra else "")
    data = choice.config.data
    cache = cache_folder(data.cache)
    source, target = train_tokenizers(data.tokenizer, pairs, size=data.vocabulary, shared=data.shared_vocabulary, folder=cache)
    measured = lengths(pairs, surveyed.pairs, source, target)
    if measured.longest > data.max_length:
        longest = min(-(-measured.longest // 64) * 64, LONGEST)
        choice.put({"data.max_length": longest, "decode.max_length": longest})
    sizes = f"{source.size:,} pieces" if source is target else f"{source.size:,} and {target.size:,} pieces"
    if choice.is_fixed("data.vocabulary") or choice.is_fixed("data.tokenizer"):
        why = "as set"
    choice.reasons["tokens"] = f"{data.tokenizer['kind']} with {sizes}, {why}; {measured.mean:.1f} tokens per pair"
    return measured


def choose_model(choice: SettingsDraft, facts: TrainingFacts, shape: Shape, why: str = "") -> None:
    """Chooses a Transformer of this shape. A smaller shape than that of the table gets less dropout."""
    row = facts.row
    if choice.config.model["kind"] != "transformer":
        choice.reasons["model"] = f"{choice.config.model['kind']}, as set"
        return
    less = min(1.0, shape.dim / SHAPES[row.shape].dim) ** 2
    choice.put(
        {
            "model.dim": shape.dim,
            "model.heads": shape.heads,
            "model.feedforward": shape.feedforward,
            "model.encoder_layers": shape.layers,
            "model.decoder_layers": shape.layers,
            "model.dropout": round(max(0.1, BIG_DROPOUT if shape == SHAPES["big"] else 0.0, row.dropout * less), 2),
            "model.attention_dropout": row.attention_dropout,
            "model.feedforward_dropout": row.feedforward_dropout,
            "task.label_smoothing": row.label_smoothing,
        }
    )
    model = choice.config.model
    why = why or f"as suits about {row.pairs:,} pairs"
    if any(path.startswith("model.") for path in choice.fixed):
        why += ", except for what was set"
    choice.reasons["model"] = (
        f"Transformer, width {model['dim']}, {model['heads']} heads, feed-forward {model['feedforward']:,}, "
        f"{model['encoder_layers']} + {model['decoder_layers']} layers, dropout {model['dropout']:g}, "
        f"label smoothing {choice.config.task['label_smoothing']:g}, {why}"
    )


def first_shape(facts: TrainingFacts) -> tuple[Shape, str]:
    """The shape of the table; without a GPU, not more than a CPU can train. And why, unless the table says so."""
    shape, small = SHAPES[facts.row.shape], SHAPES[CPU_SHAPE]
    if facts.cpu and small.weights < shape.weights:
        return small, "as suits a CPU"
    return shape, ""


def choose_training(choice: SettingsDraft, facts: TrainingFacts, shape: Shape, *, capped: bool = True) -> None:
    """Chooses the batch, the number of steps and what depends on them. capped: a CPU gets fewer steps than the table says."""
    row = facts.row
    batch = min(row.batch_tokens, CPU_BATCH) if facts.cpu else row.batch_tokens
    precision = "bf16" if has_bf16(facts.device) else "float32"
    choice.put({"train.accumulate": facts.processes, "train.precision": precision})
    batch = max(-(-batch // choice.config.train.accumulate), 2 * facts.lengths.longest)
    choice.put({"train.batch_tokens": batch, "train.schedule.rate": shape.rate})
    tokens = row.passes * facts.pass_tokens
    if facts.cpu and capped:
        tokens = min(tokens, CPU_TOKENS)
    train = choice.config.train
    choose_steps(choice, facts, max(FEWEST_STEPS, round(tokens / (train.batch_tokens * train.accumulate))))


def enough_tokens(pass_tokens: float, weights: float, update_tokens: float) -> float:
    """Training tokens from which on a model is worth its size.

    pass_tokens: of one pass over the data · weights: without embeddings · update_tokens: of one update
    """
    return max(ENOUGH_UPDATES * update_tokens, min(ENOUGH_PASSES * pass_tokens, TOKENS_PER_WEIGHT * weights))


def choose_steps(
    choice: SettingsDraft, facts: TrainingFacts, steps: int, validations: int = VALIDATIONS, why: str = ""
) -> None:
    """Chooses everything that follows from the number of steps, unless the user has set it.

    A time is used whole: its schedule brings the best weights at the end, so that a lack of improvement does not end training.
    """
    choice.put({"train.steps": steps})
    steps = choice.config.train.steps
    decides, timed = facts.validation >= FEWEST_TO_CHOOSE, choice.config.train.budget == "time"
    every = min(steps, max(1 if timed else SHORTEST_INTERVAL, steps // validations))
    horizon = max(10.0, min(LONGEST_EMA, EMA_SHARE * steps))
    choice.put(
        {
            "train.schedule.warmup": max(1, min(LONGEST_WARMUP, round(WARMUP * steps))),
            "train.ema": round(1 - 1 / horizon, 4),
            "train.validate_every": every,
            "train.save_every": every,
            "train.best_by": BEST_BY if choice.config.train.validate_bleu else "loss",
            "train.keep_best": decides,
            "train.patience": PATIENCE if decides and not timed else 0,
            "train.validate_sentences": min(facts.validation, CPU_SENTENCES if facts.cpu else SENTENCES),
        }
    )
    train = choice.config.train
    size = train.batch_tokens * train.accumulate
    passes, schedule = steps * size / facts.pass_tokens, train.schedule
    choice.reasons["training"] = (
        f"{'about ' * timed}{steps:,} steps of {size:,} tokens ({passes:.0f} passes), {schedule['kind']} schedule with a peak "
        f"of {schedule.get('rate', 0):g} after {schedule.get('warmup', 0):,} steps, moving average {train.ema:g}, "
        f"{train.precision}{f'; {why}' if why else ''}"
    )
    if not choice.config.data.validates:
        choice.reasons["validation"] = "none, as set; the last weights are published"
        return
    best = f"the best by {train.best_by} is published" if train.keep_best else "the last weights are published"
    stop = f"training stops after {train.patience} validations without improvement" if train.patience else "no early stop"
    often = f"{steps // train.validate_every} times" if timed else f"every {train.validate_every:,} steps"
    choice.reasons["validation"] = f"{often}; {best}; {stop}"


def has_bf16(device: torch.device) -> bool:
    """Whether arithmetic in bf16 is fast on a device."""
    if device.type == "cuda":
        return modern(device)
    flags = Path("/proc/cpuinfo")
    return flags.exists() and bool(CPU_FLAGS & set(flags.read_text("utf-8", "replace").split()))
