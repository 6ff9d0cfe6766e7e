"""Tasks on corpora: examples with an input and a reference, which may be texts, pictures, recordings or labels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from weft.config.corpus_entries import CopyOptions, NoiseOptions, TrainingCorpus, ValidationCorpus, grouped, labels, weighed
from weft.data.batch import Batch, Position
from weft.data.batching import Batches, evaluation_batches
from weft.data.corpus import Corpus, Encoding, Rows, TokenisingProgress, cache_folder
from weft.data.corpus_mixture import EpochQuota, Mixture, quotas
from weft.data.formats import Pairs, combine, open_pairs
from weft.data.sentence_pairs import collate_pairs
from weft.data.tokenizers import Tokenizer, has_tokenizers
from weft.data.validation_split import HELD_OUT, split
from weft.data.word_noise import CorpusNoise
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.tasks.base import SAMPLES, Sample, Task, TaskContext, all_metrics, decoded_texts, lower_setting, text_scores
from weft.tasks.run_tokenizers import TokenizerPair, learn_once, learn_tokenizer, open_tokenizers, tokenizers_of

DISTILLED = "distilled.jsonl"
"""The training pairs that a teacher translated, in the folder of a run; a file for `--data` like any other."""

Part = TypeVar("Part", bound=ValidationCorpus)


@dataclass(frozen=True)
class Direction:
    """Validation data of one kind, which is scored by itself. tag: what begins each source."""

    label: str
    tag: str | None
    pairs: Sequence[Pairs]
    corpus: Corpus


class CorpusTask(Task):
    """A task on files of examples, each an input and a reference: their tokenizers, corpora, batches and validation data.

    example: what to give as --data.
    sentences: which texts of a held-out pair may not occur in training: 0 for sources, 1 for targets.
    tokenized: the texts that its one tokenizer is trained on: 0 for sources, 1 for targets; None: it has none, or several.
    references: the validation pairs, as texts.
    directions: the validation data, divided as data.valid divides it.
    turns: how several training corpora take turns; None if there is one.
    mixes: whether it can train on several corpora with weights of their own.
    supports_distillation: whether a teacher may translate the training data (data.teacher).
    quick: settings of decode with which `evaluate` decodes validation inputs.
    """

    example: ClassVar[str]
    sentences: ClassVar[Sequence[int]] = (0, 1)
    tokenized: ClassVar[int | None] = None
    mixes: ClassVar[bool] = True
    supports_distillation: ClassVar[bool] = False
    quick: Mapping[str, Any] = {}
    references: Sequence[Pairs] = ()
    source: Tokenizer
    target: Tokenizer
    train: Corpus
    turns: EpochQuota | None = None
    valid: Corpus | None = None
    directions: Sequence[Direction] = ()

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.teacher = context.teacher
        self._samples: list[Sample] = []
        if self.config.data.teacher and not self.supports_distillation:
            raise ConfigError("data.teacher: only tasks that translate learn from the translations of another run; remove it")

    @property
    def cache(self) -> Path:
        """The folder for prepared data."""
        return cache_folder(self.config.data.cache)

    def prepare(self) -> Sizes:
        data = self.config.data
        if not data.train:
            raise ConfigError(f"there is no training data: give --data {self.example}, or set data.train")
        corpora, directions = weighed(data.train), grouped(data.valid, ValidationCorpus)
        if not self.mixes and max(len(corpora), len(directions)) > 1:
            raise ConfigError(f"data.train: the task {self.config.task['kind']} cannot mix corpora; name files without braces")
        train, valid = [
            [self.data_format.open(name) for part in parts for name in part.files] for parts in (corpora, directions)
        ]
        new = self.new
        if new:
            for pairs in (*train, *valid):
                self.data_format.check(pairs, self.report)
            self._report_shared_data(train, valid)
        if data.hold_out:
            if not valid and any(corpus.tag for corpus in corpora):
                raise ConfigError(
                    "data.hold_out: held-out pairs have no tags; give validation data with tags, [{files: …, tag: …}, …]"
                )
            train, held = self._hold_out(train)
            valid, directions = (valid, directions) if valid else ([held], [ValidationCorpus(files=[held.name])])
        self.references = valid
        train = [pairs for part, some in _divided(corpora, train) for pairs in self.with_copies(part, some)]
        if data.teacher:
            if len(corpora) > 1:
                raise ConfigError("data.teacher: several corpora cannot be distilled together; use `weft distill` for each")
            train = [self._distilled(train)]
        self.learn(train)
        sizes = self.reopen()
        if new and has_tokenizers(self.run) and self.source.learns:
            lower_setting(self, "data.vocabulary", self.vocabulary_size(sizes))
        self.check(valid)
        self.train, self.turns = self._mix(corpora, train)
        self.directions = [
            self._direction(label, part, some)
            for label, (part, some) in zip(labels(directions), _divided(directions, valid), strict=True)
        ]
        parts = [direction.corpus for direction in self.directions]
        self.valid = (parts[0] if len(parts) == 1 else Mixture(parts)) if parts else None
        if len(self.train) < self.config.train.batch_tokens:  # each row has at least one token
            lower_setting(self, "train.batch_tokens", len(self.train) * self.train.longest)
        return sizes

    def _report_shared_data(self, train: Sequence[Pairs], valid: Sequence[Pairs]) -> None:
        """Says which validation data the model is trained on."""
        digests = {pairs.digest() for pairs in train} if valid else set()
        for pairs in valid:
            if pairs.digest() in digests:
                self.report(
                    f"warning: {pairs.name} is both training and validation data, so its scores say nothing about "
                    "new text; give other pairs"
                )

    def vocabulary_size(self, sizes: Sizes) -> int:
        """The size of the larger tokenizer."""
        own = sizes.source if sizes.reads in ("tokens", "words", "sentences") else 0  # else features or channels
        return max(own, sizes.target, sizes.pieces)

    def _mix(self, corpora: Sequence[TrainingCorpus], train: list[Pairs]) -> tuple[Corpus, EpochQuota | None]:
        """The training data, and how several corpora take turns."""
        parts = [self._read(part, some, "training") for part, some in _divided(corpora, train)]
        noising = [self.noising(part) for part in corpora]
        if len(parts) == 1 and not any(noising):
            return parts[0], None
        mixture, seed = Mixture(parts, noising), self.config.train.seed
        if len(parts) == 1:
            return mixture, None
        turns = EpochQuota(
            mixture.sizes, quotas(mixture.sizes, [part.weight for part in corpora], self.config.data.temperature), seed
        )
        for part, size, quota in zip(corpora, turns.sizes, turns.quotas, strict=True):
            share = 100 * quota / turns.count
            self.report(f"{part.label}: {size:,} pairs, {share:.1f} % of an epoch, each pair {quota / size:.3g} times")
        return mixture, turns

    def with_copies(self, corpus: TrainingCorpus, pairs: list[Pairs]) -> list[Pairs]:
        """The pairs of a training corpus with changed copies, for tasks that have any."""
        return pairs

    def noising(self, corpus: TrainingCorpus) -> CorpusNoise | None:
        """The noise of a training corpus, for tasks that have any."""
        return None

    def identity(self) -> str:
        parts = [self.train.identity]
        if isinstance(self.train, Mixture):
            parts += [str(self.turns), *(str(part.noise) for part in weighed(self.config.data.train))]
        return combine(*parts) if len(parts) > 1 else parts[0]

    def passes(self, position: Position) -> float:
        """Passes over the training data before a position of the stream."""
        return self._batches().passes(position)

    def corpus_passes(self, position: Position) -> str:
        """Passes over each of several corpora before a position of the stream; empty if there is one."""
        if self.turns is None:
            return ""
        parts, counts = weighed(self.config.data.train), self.turns.seen(self._batches(), position)
        each = zip(parts, counts.tolist(), self.turns.sizes, strict=True)
        texts = (f"{part.label} {count:,} pairs ({count / size:.3g} passes)" for part, count, size in each)
        return f"seen so far: {', '.join(texts)}"

    def _hold_out(self, train: list[Pairs]) -> tuple[list[Pairs], Pairs]:
        """The training pairs without those that are held out for validation, and these."""
        new = not (self.run / HELD_OUT).exists()
        train, held = split(train, self.run, self.config.data.hold_out, self.config.train.seed, self.sentences)
        if new:
            count = sum(1 for _ in held)
            lower_setting(self, "data.hold_out", count)
            self.report(f"held out {count:,} pairs for validation (seed {self.config.train.seed}): {self.run / HELD_OUT}")
        return train, held

    def _distilled(self, train: list[Pairs]) -> Pairs:
        """The training pairs with the teacher's translations as targets: those saved in the run, or made now."""
        file = self.run / DISTILLED
        if not file.exists():
            if self.teacher is None:
                raise ConfigError(f"data.teacher: {file} is missing, and no other run can be opened here; train the run again")
            self.teacher.translate(self.config, train, file, self.report)
        return open_pairs(str(file))

    @property
    def new(self) -> bool:
        """Whether the tokenizers of the run are still to be trained. A run that is resumed keeps what it has learnt."""
        return not has_tokenizers(self.run)

    def learn(self, train: list[Pairs]) -> None:
        """Trains and saves the tokenizers of a new run. A task may collect more from its data, such as its labels."""
        learn_once(self.run, lambda: self.tokenizers(train))

    def tokenizers(self, train: list[Pairs]) -> TokenizerPair | None:
        """New tokenizers of sources and targets, or those of data.tokenizer_of, for tasks that have any."""
        if self.tokenized is None:
            return None
        if self.config.data.tokenizer_of:
            self.config, *pair = tokenizers_of(self.config)
            return pair[self.tokenized], pair[self.tokenized]
        return learn_tokenizer(self.config, train, self.report, side=self.tokenized)

    def reopen(self) -> Sizes:
        self.source, self.target = open_tokenizers(self.run, self.config)
        return replace(self.placeholder_sizes(), target=self.target.size)

    def check(self, valid: list[Pairs]) -> None:
        """Raises an error if the validation data does not suit the training data, and remarks on it."""
        for pairs in valid:
            for remark in self.remarks(pairs):
                self.report(remark)

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        """The corpus of these pairs, from the cache `folder` if it is there. `progress` receives the number of lines read.

        A task has this method, `encoding` or `encode_part`.
        """
        processes = self.config.data.processes
        return self.encoding(training=training).prepare(pairs, folder=folder, processes=processes, progress=progress)

    def encoding(self, *, training: bool) -> Encoding:
        """The way from pairs to rows of a corpus. training: of training data, from which some pairs may be left out."""
        raise NotImplementedError

    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> Batch:
        """The batch of some rows of a corpus, by default pairs; see `lay_out` for the options."""
        return collate_pairs(corpus, rows, packed=packed, budget=budget, rounded=rounded)

    def batches(self, position: Position) -> Iterator[tuple[Any, Position]]:
        train, batches = self.config.train, self._batches()
        for rows, following in batches.stream(position):
            corpus = self.train
            if isinstance(corpus, Mixture):
                corpus = corpus.at((train.seed, *position), train.batch_tokens)
            batch = self.collate(corpus, rows, packed=batches.packed, budget=train.batch_tokens, rounded=batches.rounded)
            yield self.augmented(batch, (train.seed, *position)), following
            position = following

    def augmented(self, batch: Any, key: tuple[int, ...]) -> Any:
        """A training batch with random changes. They follow from the key alone, so a resumed run makes the same ones."""
        return batch

    def _batches(self) -> Batches:
        train = self.config.train
        # "auto" is resolved where the model is built; without a model, rows are padded.
        packed, rounded = train.packed is True, train.rounded is True
        return Batches(
            self.train.lengths, train.batch_tokens, seed=train.seed, order=self.turns, packed=packed, rounded=rounded
        )

    def validation(self, model: nn.Module, directions: Sequence[Direction] | None = None) -> Iterator[Any]:
        """Validation data, by default all, in padded batches on the device of the model; each row once."""
        device = next(model.parameters()).device
        for direction in self.directions if directions is None else directions:
            for rows in evaluation_batches(direction.corpus, self.config.train.batch_tokens):
                yield self.collate(direction.corpus, rows).to(device)

    def evaluate(self, model: Any) -> dict[str, float]:
        """The mean loss on all validation data; the metrics of decoded texts on `decoded_examples`."""
        if self.valid is None:
            return {}
        scores = {"loss": self.mean_loss(model)[0]}
        if examples := self.decoded_examples:
            texts = self.decoded(model, examples, self.quick)
            scores |= text_scores(texts, [reference for _, reference in examples], all_metrics(self))
        return scores

    def decoded(
        self, model: Any, examples: Sequence[tuple[str, str]], settings: Mapping[str, Any], *, together: bool = True
    ) -> list[str]:
        """The texts that a model writes for validation inputs, of which `samples` shows the first ones."""
        texts = decoded_texts(self, model, (source for source, _ in examples), settings, together=together)
        found = (Sample(source, reference, text) for (source, reference), text in zip(examples, texts, strict=True))
        self._samples += islice(found, SAMPLES - len(self._samples))
        return texts

    def samples(self, model: Any) -> list[Sample]:
        """Those that the last `evaluate` has decoded anyway; else the first validation inputs are decoded now."""
        if not self._samples:
            try:
                self.decoded(model, list(islice(chain.from_iterable(self.references), SAMPLES)), self.quick)
            except (ConfigError, DataError):
                return []  # the task has no predictor, or its validation data is no input of one
        found, self._samples = self._samples, []
        return found

    @cached_property
    def decoded_examples(self) -> list[tuple[str, str]]:
        """The validation inputs that `evaluate` decodes, with their references."""
        return list(islice(chain.from_iterable(self.references), self.config.train.validate_sentences or None))

    def mean_loss(self, model: nn.Module, directions: Sequence[Direction] | None = None) -> tuple[float, int]:
        """The mean of `validation_loss` over validation data, by default over all, and what it was divided by."""
        total, count = 0.0, 0
        for batch in self.validation(model, directions):
            loss, counted = self.validation_loss(model, batch)
            total, count = total + float(loss), count + int(counted)
        return total / max(1, count), count

    def validation_loss(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss of a validation batch without label smoothing, summed, and what it is to be divided by."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        unit = self.train.parts[0].report.made or self.train.parts[0].report.unit
        facts = {f"training {unit}": len(self.train)}
        return facts | ({} if self.valid is None else {f"validation {unit}": len(self.valid)})

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        """The corpus of an entry of data.train or data.valid. A task that has tags, noise and filters overrides this."""
        training = isinstance(part, TrainingCorpus)
        extra = {"tag", "noise", "copies", "max_length", "max_ratio", "drop_duplicates"} & part.model_fields_set
        if wrong := sorted(name for name in extra if getattr(part, name) not in (None, NoiseOptions(), CopyOptions())):
            raise ConfigError(
                f"data.train: the task {self.config.task['kind']} has no {' and '.join(wrong)} of its own; remove it"
            )
        return self.encode(pairs, training=training, folder=self.cache, progress=progress)

    def _direction(self, label: str, part: ValidationCorpus, pairs: list[Pairs]) -> Direction:
        return Direction(label, part.tag, pairs, self._read(part, pairs, "validation"))

    def _read(self, part: ValidationCorpus, pairs: list[Pairs], what: str) -> Corpus:
        self.report(f"reading {what} data: {', '.join(some.name for some in pairs)}")
        corpus = self.encode_part(part, pairs, TokenisingProgress([some.line_files for some in pairs], what, self.report))
        self.report(f"{what} data: {corpus.report.describe()}")
        for some in pairs:
            if some.left_out:
                reasons = ", ".join(f"{count:,} {reason}" for reason, count in some.left_out.items())
                self.report(f"{some.name}: left out: {reasons}")
        return corpus


def _divided(parts: Sequence[Part], pairs: Sequence[Pairs]) -> Iterator[tuple[Part, list[Pairs]]]:
    """Each entry with its pairs, given the pairs of all entries in order."""
    rest = iter(pairs)
    return ((part, list(islice(rest, len(part.files)))) for part in parts)
