"""The interface between a task and everything that trains, scores or uses its models."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field
from torch import Tensor, nn

from weft.config.registry import build, find_table, load
from weft.config.sections import Config
from weft.data.batch import Batch, Position
from weft.data.column_checks_and_listed_files import DataFormat
from weft.data.sentence_pairs import random_pairs
from weft.decoding.decoding_options import DecodingOptions, Warn, changed, resolve_options
from weft.decoding.predictor import Predictor
from weft.errors import ConfigError, DataError
from weft.evaluation.metrics import USUAL, Metric, make_metrics, score
from weft.models.base import Network, Sizes
from weft.models.encoder_decoder import build_encoder_decoder
from weft.tasks.teacher_run import TeacherRun

if TYPE_CHECKING:
    from weft.explain.html_page import Explained
    from weft.explain.inside import AxisNames

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class TaskContext:
    """The surroundings of a task: the configuration and folder of a run, and a function that receives progress messages.

    teacher: opens another run, where that is possible.
    """

    config: Config
    run: Path
    report: Callable[[str], None] = lambda message: None
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

    def detached(self) -> Loss:
        """The same values without their graph."""
        metrics = {name: value.detach() for name, value in self.metrics.items()}
        return replace(self, total=self.total.detach(), metrics=metrics)

    def plus(self, name: str, value: Tensor, weight: float) -> Loss:
        """The loss with a weighted term, which is also logged under its name."""
        return replace(self, total=self.total + weight * value, metrics={**self.metrics, name: value.detach()})


@dataclass(frozen=True)
class Measure:
    """A score that `evaluate` can give: its key, its name for people, and its direction."""

    key: str
    title: str
    higher_is_better: bool = True

    def answers_to(self, key: str) -> bool:
        """Whether a setting means this score; a number at the end of its key may be left out."""
        return key in (self.key, self.key.rstrip("0123456789"))

    def better(self, new: float, old: float) -> bool:
        """Whether `new` is the better of two values. A value that is not a number is worse than any."""
        if old != old:
            return new == new
        return new > old if self.higher_is_better else new < old


LOSS = Measure("loss", "loss", higher_is_better=False)


def measures_of(metrics: Iterable[type[Metric] | Metric]) -> tuple[Measure, ...]:
    """The scores of a task that is scored by these metrics, and then by its loss."""
    return *(Measure(metric.key(), metric.name, metric.higher_is_better) for metric in metrics), LOSS


SAMPLES = 10
"""Validation inputs whose outputs are shown while a model trains."""


@dataclass(frozen=True)
class Sample:
    """A validation input, its reference (empty if it has none), and the output of the model so far."""

    source: str
    reference: str
    output: str


@dataclass(frozen=True)
class TaskInfo:
    """Facts about a task for training, benchmarks and the command line.

    commands: how to use a trained {run} on the command line, shown after training.
    count_unit: what the count of a loss counts, and so the unit of training speed.
    inference_kind: what a trained model does: search texts for sources, continue texts without a source, or a forward pass.
    capturable: whether `losses` runs the same operations for all batches of one size, so that a CUDA graph can hold them.
    bf16_weights: whether decoding in bf16 converts the weights too, or only the arithmetic.
    typical_length: tokens of a typical text, for benchmarks.
    fixed_length: the positions of every row, if all rows have as many; None: as many as the texts have.
    metric_types: the metrics that compare predictions with references; see `Task.metrics`.
    several_references: whether each line of a reference is one of its own; then only metrics that know it can be added.
    texts: the texts of an input, with tabs between them.
    output_suffix: that of files with its outputs, such as .wav, if they are no lines of text; then predictions have `content`.
    """

    commands: Sequence[str] = ('weft predict {run} "an input"', "weft evaluate {run} --data FILES")
    count_unit: str = "target tokens"
    inference_kind: Literal["search", "continue", "forward"] = "search"
    capturable: bool = False
    bf16_weights: bool = True
    typical_length: int = 32
    fixed_length: int | None = None
    metric_types: Sequence[type[Metric]] = ()
    several_references: bool = False
    texts: int = 1
    output_suffix: str = ""


@runtime_checkable
class MultiOptimizerTask(Protocol):
    """A task with several optimisers. Each `Loss` names its own."""

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """The parameters of each optimiser, by name."""

    def optimizers(self) -> Mapping[str, Mapping[str, Any]]:
        """The optimisers, by name, that are not train.optimizer."""


@runtime_checkable
class StatefulTask(Protocol):
    """A task with state besides the model that continues from update to update."""

    def extra_state(self) -> dict[str, Tensor]:
        """The state, for checkpoints; each process uses its own names."""

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continues with what `extra_state` returned in all processes when a checkpoint was written."""


@runtime_checkable
class ScheduledTask(Protocol):
    """A task whose losses follow a schedule and can be captured in a CUDA graph."""

    def on_update_start(self, update: int) -> None:
        """Called before each update, outside of captured work: sets the tensors from which that work reads the schedule."""


@runtime_checkable
class Ensembles(Protocol):
    """A task whose trained models can form an ensemble."""

    def vocabularies(self) -> list[str]:
        """Identifies what the model reads and writes, which must be the same in all models of an ensemble."""

    def ensemble(self, models: Sequence[Network]) -> Network:
        """Several trained models as one."""


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def optimizer_groups(task: Task, model: nn.Module) -> tuple[dict[str, list[nn.Parameter]], Mapping[str, Mapping[str, Any]]]:
    """The parameters of each optimiser, by name, and the optimisers that are not train.optimizer."""
    if isinstance(task, MultiOptimizerTask):
        return task.parameters(model), task.optimizers()
    return {"model": trainable(model)}, {}


def find_measure(task: Task, key: str) -> Measure:
    """The measure of this key, whose number may be left out: chrf for chrf2. Raises ConfigError if there is none."""
    measures = list(task.measures)
    if not any(measure.answers_to(key) for measure in measures):
        measures += measures_of(added_metrics(task))[:-1]
    for measure in measures:
        if measure.answers_to(key):
            return measure
    known = ", ".join(dict.fromkeys(measure.key for measure in measures))
    raise ConfigError(f"train.best_by: the task does not measure {key!r}; it measures {known}")


def added_metrics(task: Task) -> list[type[Metric]]:
    """The metrics of train.metrics."""
    known = find_table("weft.evaluation:METRICS")
    return [load(known, name) for name in task.config.train.metrics]


def all_metrics(task: Task, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
    """The metrics of a task, and those that train.metrics adds. The options are sacreBLEU's."""
    own = task.metrics(tokenize=tokenize, lowercase=lowercase)
    added = make_metrics(task.config.train.metrics, tokenize=tokenize or USUAL, lowercase=lowercase)
    keys = {metric.key() for metric in own}
    return [*own, *(each for each in added if each.key() not in keys)] if own else own


def check_metrics(task: Task) -> None:
    """Raises ConfigError if train.metrics has metrics that the outputs of the task cannot be compared by."""
    kind, added = task.config.task["kind"], added_metrics(task)
    if added and type(task).metrics is Task.metrics and not task.info.metric_types:
        scored = ", ".join(measure.key for measure in task.measures)
        raise ConfigError(
            f"train.metrics: the task {kind} writes nothing that metrics could compare with references; it is scored by "
            f"{scored}. Remove train.metrics"
        )
    if task.info.several_references and (wrong := [each.key() for each in added if not each.several_references]):
        raise ConfigError(
            f"train.metrics: {', '.join(wrong)}: the task {kind} has several references for each output, which these metrics "
            "would read as one; remove them, or add metrics with `several_references = True`"
        )


def build_task(
    config: Config, run: Path, report: Callable[[str], None] = lambda message: None, teacher: TeacherRun | None = None
) -> Task:
    """The task of a configuration, for a run in the folder `run`."""
    task: Task = build("weft.tasks:TASKS", config.task, TaskContext(config, run, report, teacher), where="task")
    return task


def lower_setting(task: Task, path: str, possible: int) -> None:
    """Lowers a size of the task's configuration to what the data allows, and reports it."""
    section, key = path.split(".")
    wish: int = getattr(getattr(task.config, section), key)
    if possible < wish:
        task.config = task.config.replaced({path: possible})
        task.report(f"{path}: {possible:,}, because this data does not allow {wish:,}")


def typical_length(task: Task) -> int:
    """Tokens of a typical row, for benchmarks."""
    return task.info.fixed_length or min(task.info.typical_length, task.config.data.max_length)


class Task(ABC):
    """A task knows its data, its losses, its metrics and its predictor. The trainer knows none of them.

    A task must have `prepare`, `batches`, `losses` and `evaluate`. Most also have `reopen`, `build`, `predictor`, `metrics`,
    `explanation` and `dummy_batch`. Everything else has a default that suits pairs of texts.

    measures: the scores that `evaluate` can give. `train.best_by` may name any of them.
    info: facts for training, benchmarks and the command line.
    data_format: how its data is written in files.
    config: the configuration of the run. `prepare` may lower sizes in it to what the data allows; the run saves the result.
    """

    measures: Sequence[Measure] = (LOSS,)
    info: TaskInfo = TaskInfo()
    data_format: DataFormat = DataFormat()

    def __init_subclass__(cls, **options: Any) -> None:
        """Takes over facts that a class has as attributes of its own, as tasks had before `info`."""
        super().__init_subclass__(**options)
        names = [each.name for each in fields(TaskInfo) if not isinstance(vars(cls).get(each.name, property()), property)]
        own = {name: vars(cls)[name] for name in names}
        if own:
            message = f"{cls.__qualname__}: write {', '.join(own)} into the task's info = TaskInfo(…)"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            cls.info = replace(cls.info, **own)

    def __init__(self, context: TaskContext) -> None:
        self.config, self.run, self.report = context.config, context.run, context.report

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.config.task['kind']}, {self.run}>"

    @property
    def headline(self) -> Measure:
        """The score by which trained models are compared. The loss takes its place where `evaluate` does not give it."""
        return self.measures[0]

    @abstractmethod
    def prepare(self) -> Sizes:
        """Makes the data ready and returns the sizes of the vocabularies. Called once, before anything else."""

    def reopen(self) -> Sizes:
        """The sizes that `prepare` returns, for a trained run: reads its folder and, if the task can, no data."""
        return self.prepare()

    def placeholder_sizes(self) -> Sizes:
        """Small sizes of the kind that `prepare` returns, to check the configuration of a model before data is read."""
        return Sizes(8, 8, self.config.data.shared_vocabulary)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        """The model that `spec` (the section model) describes, with its initial weights. A task may build on top of it."""
        return build_encoder_decoder(spec, sizes)

    def predictor(self, model: Any, resolved: DecodingOptions, warn: Warn | None = None) -> Predictor[Any, Any]:
        """A trained model that answers inputs."""
        raise ConfigError("this task has no predictor: its models can be trained and scored, but not used on inputs")

    def explain(
        self,
        predictor: Any,
        text: str,
        *,
        target: str | None = None,
        influence: bool | None = None,
        run: str = "",
        inside: bool = False,
    ) -> Explained:
        """Explains what the model makes of an input, for the page of `weft explain`.

        target: the output to explain instead of the model's own, for tasks that translate · influence: whether to add the
        influence of each input token on each output token; None: if there is nothing else · run: what the page calls the model
        · inside: whether to add every step of the model.
        """
        from weft.explain.html_page import Section
        from weft.explain.inside import Inside, record_inside

        if target is not None:
            raise ConfigError("a target can be given to runs that translate; leave it out")
        if not inside:
            title, body = self.explained(predictor, text)
            return Section(run, " ".join(title.split()), body)
        with record_inside(predictor.model) as recorder:
            title, body = self.explained(predictor, text)
        names = self.step_names(predictor, text)
        return Section(run, " ".join(title.split()), body, Inside.of(recorder, names))

    def step_names(self, predictor: Any, text: str) -> AxisNames | None:
        """Names for the axes of the steps of a model that reads this input: by default its tokens; None: numbers."""
        from weft.explain.inside import TokenNames

        (prediction,) = predictor.predict([predictor.parse_input(text, attention=True)])
        return TokenNames(prediction.source_tokens, labels=self.output_names) if prediction.source_tokens else None

    @property
    def output_names(self) -> Sequence[str]:
        """The labels or tags that the model chooses from, if it does."""
        return ()

    def explained(self, predictor: Any, text: str) -> tuple[str, str]:
        """The title and the HTML of the explanation of an input: by default what is predicted, and its `explanation`."""
        (prediction,) = predictor.predict([predictor.parse_input(text, attention=True)])
        if not (prediction.text or prediction.source_tokens):
            raise DataError("there is nothing to explain in an empty input; give a text, a document or the name of a file")
        return prediction.text, self.explanation(predictor, prediction, text)

    def explanation(self, predictor: Any, prediction: Any, text: str) -> str:
        """HTML that shows what a prediction for an input is based on. `weft.explain.html_page` has images and bars for it."""
        raise ConfigError(
            f"{self.run}: its task, {self.config.task['kind']}, does not translate lines of text and has no explanation of its "
            f"own; use the run with: {self.info.commands[0].format(run=self.run)}"
        )

    def examples(self, data: Sequence[str], report: Callable[[str], None] = lambda message: None) -> list[tuple[str, str]]:
        """All inputs of some data, each with the reference for `metrics`; `report` receives remarks about the data."""
        opened = [self.data_format.open(spec) for spec in data]
        for pairs in opened:
            self.data_format.check(pairs, report)
            for remark in self.remarks(pairs):
                report(remark)
        return [pair for pairs in opened for pair in pairs]

    def remarks(self, pairs: Any) -> Iterable[str]:
        """Remarks on validation or test data, such as the scores of trivial answers; none by default."""
        return ()

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        """Metrics that compare predictions with references, line by line; none if the task is scored by `score` only.

        The options are sacreBLEU's.
        """
        return [metric() for metric in self.info.metric_types]

    def score(self, model: Any, data: Sequence[str]) -> dict[str, float]:
        """The scores of `evaluate` on other data."""
        own = {} if self.config.data.train else {"data.train": list(data)}  # an imported run has none, and none is trained on
        config = self.config.replaced({"data.valid": list(data), **own})
        other = build_task(config, self.run)
        other.prepare()
        return other.evaluate(model)

    @abstractmethod
    def batches(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """Endless training batches from `position` on, each with the position of the next one.

        The stream is the same for every process: the trainer takes the batches that belong to it.
        """

    @abstractmethod
    def losses(self, model: Any, batch: Any, update: int) -> Iterator[Loss]:
        """The losses of update number `update`, counted from 1. Schedules inside a task may depend on nothing else.

        The trainer runs the backward pass of each loss before it takes the next one.
        """

    @abstractmethod
    def evaluate(self, model: Any) -> dict[str, float]:
        """Scores on the validation data, by key of their `Measure`: always `loss`; empty if there is no validation data."""

    def samples(self, model: Any) -> list[Sample]:
        """The first validation inputs with the outputs of a model that `evaluate` has just scored; none by default."""
        return []

    def identity(self) -> str:
        """A hash of the prepared training data, by which a resumed run notices that it has changed; empty if unknown."""
        return ""

    def describe(self) -> dict[str, Any]:
        """Facts for the log, such as the number of training pairs."""
        return {}

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> Batch:
        """A batch of random rows with `length` tokens per side, to measure time and memory with.

        Rows are packed or rounded (see train.packed, train.rounded) if the task trains on such batches.
        """
        return random_pairs((sizes.source, sizes.target), (length, length), rows, packed=packed, rounded=rounded)


def decoded_texts(
    task: Task, model: nn.Module, inputs: Iterable[str], settings: Mapping[str, Any], *, together: bool = True
) -> list[str]:
    """The texts that a model writes for some inputs, with these settings of decode. together: see `Predictor.predict`."""
    assert isinstance(model, Network)
    predictor = task.predictor(model, resolve_options(changed(task.config.decode, settings), model.device))
    return [each.text for each in predictor.predict(map(predictor.parse_input, inputs), together=together)]


def text_scores(hypotheses: Sequence[str], references: Sequence[str], metrics: Sequence[Metric]) -> dict[str, float]:
    """The metrics of texts, by their keys."""
    return {each.key: each.value for each in score(hypotheses, references, metrics).values()}
