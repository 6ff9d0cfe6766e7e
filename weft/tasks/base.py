"""What another run, a teacher, does for a run in training.

Tokenizers that a run takes over from another one, so that both have one vocabulary.

The interface between a task and everything that trains, scores or uses its models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from weft.config.registry import build
from weft.config.sections import Config, load_config
from weft.data.batch import Batch, Position
from weft.data.batching import round_up
from weft.data.corpus import cache_folder
from weft.data.file_lists import open_listed, read_listed
from weft.data.formats import Pairs, is_json, open_pairs, read_sources
from weft.data.header_check import check_columns
from weft.data.sentence_pairs import random_pairs
from weft.data.text_lines import read_lines
from weft.data.tokenizers import ExtraWords, InheritedTokenizers, Tokenizer
from weft.data.tokenizers.added_tokens import load_extended
from weft.data.word_vectors.vectors import read_vectors
from weft.errors import ConfigError, RunError
from weft.evaluation.metrics import Metric
from weft.file_access import why_unreadable
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import Predictor
from weft.models.base import Network, Sizes
from weft.models.composition import build_encoder_decoder
from weft.runs.migrations import check_format
from weft.tasks.translation.attention_alignment import TokenWeights

Align = Callable[[Sequence[tuple[str, str]]], list[TokenWeights | None]]
"""The attention of another run between the tokens of each pair of texts, if it has any. All pairs are one batch."""


class TeacherRun(ABC):
    """The run that data.teacher names."""

    @abstractmethod
    def translate(self, config: Config, pairs: Sequence[Pairs], out: Path, tell: Callable[[str], None]) -> None:
        """Writes the pairs with its translations as targets into `out`. They are made once and kept in the cache."""

    @abstractmethod
    def aligner(self, config: Config) -> Align: ...


def tokenizers_of(config: Config) -> tuple[Config, Tokenizer, Tokenizer]:
    """The tokenizers of the run that data.tokenizer_of names, and the configuration with their settings."""
    run = Path(str(config.data.tokenizer_of))
    if problem := why_unreadable(run / "config.yaml", "run"):
        raise RunError(f"data.tokenizer_of: {run}: {problem}")
    check_format(run)
    data = load_config(run / "config.yaml").data
    settings = {f"data.{key}": getattr(data, key) for key in ("tokenizer", "vocabulary", "shared_vocabulary")}
    return config.replaced(settings), *load_extended(run, data.tokenizer)


Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class TaskContext:
    """What a task is built for: the configuration and folder of a run, and a function that receives progress messages.

    teacher: opens another run, where that is possible.
    """

    config: Config
    run: Path
    tell: Callable[[str], None] = lambda message: None
    teacher: TeacherRun | None = None


@dataclass
class Loss:
    """A sum and what to divide it by. Both stay on the device, so accumulation and several processes are exact.

    Losses of one optimiser share a denominator: the sum of their counts over micro-batches and processes. `metrics` are sums
    as well, and are logged divided by that denominator.
    """

    total: Tensor
    count: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    optimizer: str = "model"

    def mean(self, other: Loss) -> Loss:
        """The mean of two losses of the same tokens."""
        metrics = {name: (value + other.metrics[name]) / 2 for name, value in self.metrics.items()}
        return replace(self, total=(self.total + other.total) / 2, metrics=metrics)

    def plus(self, name: str, value: Tensor, weight: float) -> Loss:
        """The loss with a weighted term, which is also logged under its name."""
        return replace(self, total=self.total + weight * value, metrics={**self.metrics, name: value.detach()})


@dataclass(frozen=True)
class Measure:
    """A score that `evaluate` can give: its key, its name for people, and its direction."""

    key: str
    title: str
    higher_is_better: bool = True

    def better(self, new: float, old: float) -> bool:
        """Whether `new` is the better of two values. A value that is not a number is worse than any."""
        if old != old:
            return new == new
        return new > old if self.higher_is_better else new < old


LOSS = Measure("loss", "loss", higher_is_better=False)


class Task(ABC):
    """A task knows its data, its losses, its metrics and its predictor. The trainer knows none of them.

    measures: the scores that `evaluate` can give. `train.best_by` may name any of them.
    steady: whether `losses` runs the same operations for all batches of one size, so that they can be recorded and replayed.
    counts: what the count of a loss counts, and so the unit of training speed.
    commands: how to use a trained {run} on the command line, shown after training.
    bf16_weights: whether decoding in bf16 converts the weights too, or only the arithmetic.
    distils: whether a teacher may translate the training data (data.teacher).
    files: suffixes of files that are one input each, such as .jpg, for tasks that read files instead of texts.
    languages: the two languages of a model that translates in both directions; decode.into names one, by default the second.
    inference: what a trained model does: search for texts of sources, continue texts without a source, or one forward pass.
    config: the configuration of the run. `prepare` may lower sizes in it to what the data allows; the run saves the result.
    """

    measures: Sequence[Measure] = (LOSS,)
    capturable: bool = False
    counts: str = "target tokens"
    commands: Sequence[str] = ('weft predict {run} "an input"', "weft evaluate {run} --data FILES")
    bf16_weights: bool = True
    supports_distillation: bool = False
    files: Sequence[str] = ()
    languages: Sequence[str] = ()
    inference: Literal["search", "continue", "forward"] = "search"

    def __init__(self, setting: TaskContext) -> None:
        self.config, self.run, self.tell, self.teacher = setting.config, setting.run, setting.tell, setting.teacher
        if self.config.data.teacher and not self.supports_distillation:
            raise ConfigError("data.teacher: only tasks that translate learn from the translations of another run; remove it")

    @property
    def cache(self) -> Path:
        """The folder for prepared data."""
        chosen = self.config.data.cache
        return Path(chosen).expanduser() if chosen else cache_folder()

    @property
    def start(self) -> InheritedTokenizers | ExtraWords | None:
        """The tokenizers that a new run takes if it starts from another one, or the words that its own ones get."""
        start = self.config.start
        if start.vectors and start.extend:
            return ExtraWords(read_vectors(start.vectors)[0], start.extend)
        return (
            InheritedTokenizers(*load_extended(Path(start.run), self.config.data.tokenizer), start.extend)
            if start.run
            else None
        )

    def report_tokenizer(self) -> None:
        """Says where the tokenizer of a new run comes from."""
        data, start = self.config.data, self.config.start
        made = f"training {data.tokenizer['kind']} tokenizer, vocabulary {data.vocabulary:,}"
        more = f", with up to {start.extend:,} more tokens" if start.extend and (start.run or start.vectors) else ""
        self.tell((f"taking the tokenizer of {start.run}" if start.run else made) + more)

    @property
    def tags(self) -> Sequence[str]:
        """Tags that a source may begin with, such as its target language."""
        return ()

    @property
    def headline(self) -> Measure:
        """The score by which trained models are compared. The loss takes its place where `evaluate` does not give it."""
        return self.measures[0]

    def measure(self, key: str) -> Measure:
        """The declared measure of this key. Raises ConfigError if there is none."""
        for measure in self.measures:
            if measure.key == key:
                return measure
        known = ", ".join(measure.key for measure in self.measures)
        raise ConfigError(f"train.best_by: the task does not measure {key!r}; it measures {known}")

    @abstractmethod
    def prepare(self) -> Sizes:
        """Makes the data ready and returns the sizes of the vocabularies. Called once, before anything else."""

    def limit(self, path: str, possible: int) -> None:
        """Lowers a size of the configuration to what the data allows, and says so."""
        section, key = path.split(".")
        wish: int = getattr(getattr(self.config, section), key)
        if possible < wish:
            self.config = self.config.replaced({path: possible})
            self.tell(f"{path}: {possible:,}, because this data does not allow {wish:,}")

    def reopen(self) -> Sizes:
        """The sizes that `prepare` returns, for a trained run: reads its folder and, if the task can, no data."""
        return self.prepare()

    def outline(self) -> Sizes:
        """Small sizes of the kind that `prepare` returns, to check the configuration of a model before data is read."""
        return Sizes(8, 8, self.config.data.shared_vocabulary)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        """The model that `spec` (the section model) describes, with its initial weights. A task may build on top of it."""
        return build_encoder_decoder(spec, sizes)

    def vocabularies(self) -> list[str]:
        """Identifies what the model reads and writes, which must be the same in all models of an ensemble."""
        return []

    def join(self, models: Sequence[Network]) -> Network:
        """Several trained models as one, an ensemble."""
        raise RunError("models of this task cannot form an ensemble; name one run")

    def predictor(
        self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> Predictor[Any, Any]:
        """A trained model that answers inputs."""
        raise ConfigError("this task has no predictor: its models can be trained and scored, but not used on inputs")

    def open(self, spec: str) -> Pairs:
        """The data that `spec` names, as pairs of an input and its reference, to train on or to score with."""
        return open_listed(spec) if self.files else open_pairs(spec)

    def inspect(self, pairs: Pairs, tell: Callable[[str], None]) -> None:
        """Raises DataError if data is obviously not what the task needs; tells if it may not be."""
        if not self.files:
            check_columns(pairs, tell)

    def examples(self, data: Sequence[str], tell: Callable[[str], None] = lambda message: None) -> list[tuple[str, str]]:
        """All inputs of some data, each with the reference for `metrics`; `tell` receives remarks about the data."""
        opened = [self.open(spec) for spec in data]
        for pairs in opened:
            self.inspect(pairs, tell)
        return [pair for pairs in opened for pair in pairs]

    def inputs(self, file: Path) -> Iterable[str]:
        """The inputs in a file: its lines, or the texts in its JSON lines; for tasks that read files, those that it lists."""
        if self.files:
            return read_listed(file)
        return read_sources(file) if is_json(file) else read_lines(file)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        """Metrics that compare predictions with references, line by line; none if the task is scored by `score` only.

        The options are sacreBLEU's.
        """
        return []

    def score(self, model: nn.Module, data: Sequence[str]) -> dict[str, float]:
        """The scores of `evaluate` on other data."""
        config = self.config.replaced({"data.valid": list(data)})
        other: Task = build("weft.tasks:TASKS", config.task, TaskContext(config, self.run), where="task")
        other.prepare()
        return other.evaluate(model)

    def build_shortlist(self) -> Path:
        """Counts the shortlist of the run. Writes it into its folder or, if that is read-only, into the user's cache."""
        raise ConfigError(f"{self.run}: its task is {self.config.task['kind']}; only translation has a shortlist")

    def check_length(self, model: Network, longest: int) -> None:
        """Raises ConfigError if texts of `longest` tokens (data.max_length) exceed the model's positions."""
        limit = model.longest
        if limit is not None and longest >= limit:
            raise ConfigError(
                f"data.max_length: texts of {longest} tokens and their end do not fit the model's {limit} positions; "
                f"set data.max_length to at most {limit - 1}, or raise max_length of the model or of its mixers"
            )

    def max_row_length(self, longest: int) -> int:
        """The most positions that a row takes for texts of up to `longest` tokens, if batches come in few sizes."""
        return round_up(longest + 1)

    @property
    def typical_length(self) -> int:
        """Tokens of a typical text, for benchmarks."""
        return min(32, self.config.data.max_length)

    @abstractmethod
    def batches(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """Endless training batches from `position` on, each with the position of the next one.

        The stream is the same for every process: the trainer takes the batches that belong to it.
        """

    def begin(self, update: int) -> None:  # noqa: B027 — most tasks have no schedule
        """Called before each update, outside of recorded work: sets the tensors from which that work reads a schedule."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Any, update: int) -> Iterator[Loss]:
        """What to minimise in update number `update`, counted from 1. Schedules inside a task may depend on nothing else.

        The trainer runs the backward pass of each loss before it takes the next one.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Scores on the validation data, by key of their `Measure`: always `loss`; empty if there is no validation data."""

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """The parameters of each optimiser. A task whose losses name other optimisers than "model" overrides this."""
        return {"model": [parameter for parameter in model.parameters() if parameter.requires_grad]}

    def optimizers(self) -> Mapping[str, Mapping[str, Any]]:
        """The optimisers, by name, that are not train.optimizer."""
        return {}

    def carried(self) -> dict[str, Tensor]:
        """State besides the model that continues from update to update, for checkpoints; each process uses its own names."""
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 — most tasks carry nothing
        """Continues with what `carried` returned in all processes when a checkpoint was written."""

    def identity(self) -> str:
        """A hash of the prepared training data, by which a resumed run notices that it has changed; empty if unknown."""
        return ""

    def seen(self, position: Position) -> str:
        """How often each of several training corpora has been read before a position of the stream; empty if there is one."""
        return ""

    def describe(self) -> dict[str, Any]:
        """Facts for the log, such as the number of training pairs."""
        return {}

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> Batch:
        """A batch of random rows with `length` tokens per side, to measure time and memory with.

        Rows are packed or rounded (see train.packed, train.rounded) if the task trains on such batches.
        """
        return random_pairs((sizes.source, sizes.target), (length, length), rows, packed=packed, rounded=rounded)
