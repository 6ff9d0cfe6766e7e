"""A trained model in use: streams of inputs, explanations and scores, with the other models that decoding may need."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft.config.sections import Config
from weft.decoding.decoding_options import DecodingOptions, Warn, changed, resolve_options
from weft.decoding.predictor import Predictor, Ready
from weft.decoding.reranking import Scorer
from weft.errors import ConfigError, DataError, InputError, RunError
from weft.evaluation.metrics import Metric, choose_tokenization
from weft.layers.int8 import in_precision
from weft.models.base import Model, Network
from weft.models.language_model import LanguageModel
from weft.runs.open_run import TrainedRun, open_run
from weft.tasks.base import Ensembles, Task, all_metrics
from weft.tasks.language_modeling.task import LanguageModelTask
from weft.tasks.translation.glossary import Terms

if TYPE_CHECKING:
    from weft.explain.html_page import Explained


def check_text(text: Any, name: str) -> str:
    """Returns `text` if it is a string of characters. Raises InputError, which calls it `name`, otherwise."""
    if isinstance(text, str):
        try:
            text.isascii() or text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{name} has half of a surrogate pair, which is no character: {text[:40]!a}") from None
        return text
    if isinstance(text, bytes | bytearray):
        raise InputError(f"{name} is bytes, not a string; decode it: {name}.decode('utf-8')")
    raise InputError(f"{name} must be a string, not {_described(text)}")


def check_texts(texts: Any, name: str = "texts") -> list[str]:
    """The strings of any iterable. Raises InputError with the index of the first that is not a string."""
    if isinstance(texts, bytes | bytearray):
        check_text(texts, name)
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        hint = f"; give its texts: list({name}.values())" if isinstance(texts, Mapping) else ""
        raise InputError(f"{name} must be a string or a list of strings, not {_described(texts)}{hint}")
    return [check_text(text, f"{name}[{index}]") for index, text in enumerate(texts)]


def _described(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    shown = repr(value)
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} ({shown if len(shown) <= 40 else shown[:37] + '...'})"


def make_inputs(
    predictor: Predictor[Any, Any],
    lines: Iterable[str],
    attention: bool,
    prefixes: Iterable[str] | None,
    terms: Iterable[Terms] | None,
    marks: Iterable[Any] | None = None,
    first_line: int = 1,
    matches: Iterable[Any] | None = None,
    before: Iterable[str] = (),
) -> Iterator[Any]:
    """Lines with their prefixes, terms, marks and matches as inputs of the predictor.

    Errors count from `first_line`. before: lines that come before the first one, for predictors that read them as context.
    """
    starts = repeat("") if prefixes is None else iter(prefixes)
    wishes = repeat(None) if terms is None else iter(terms)
    tags = repeat(None) if marks is None else iter(marks)
    entries = repeat(None) if matches is None else iter(matches)
    number, context = 0, deque(before, maxlen=predictor.context_lines)
    for number, line in enumerate(lines, start=first_line):
        check_text(line, f"line {number}")
        fields = {"prefix": next(starts, None), "terms": next(wishes, None), "attention": attention, "marks": next(tags, None)}
        fields |= {"match": next(entries, None), "context": " ".join(context)}
        context.append(line)
        if fields["prefix"] is None:
            raise DataError(f"line {number} has no prefix: give one for every line, which may be empty")
        try:
            parsed = predictor.parse_input(line, **{name: value for name, value in fields.items() if value})
        except DataError as error:
            raise DataError(f"line {number}: {error}") from None
        yield parsed
    if prefixes is not None and next(starts, None) is not None:
        raise DataError(f"there are more prefixes than lines to translate: line {number + 1} is missing")


class AuxiliaryModels:
    """The models that decoding with a trained one needs, on its device. Each is made once."""

    def __init__(self, model: Network, task: Task) -> None:
        self.model, self.task = model, task
        self.scorer, self.language = cache(self._open_scorer), cache(self._open_language)
        self._converted: dict[tuple[str, bool], Network] = {}
        self._fused: dict[str, Network] = {}

    def _open(self, run: str) -> TrainedRun:
        return open_run(Path(run), device=str(self.model.device))

    def _open_scorer(self, run: str) -> Scorer:
        """The run that reranks translations."""
        other = self._open(run)
        scorer = Trained(other.model, other.task, other.config).predictor(rerank="none")
        if not isinstance(scorer, Scorer):
            raise RunError(f"{run}: its task, {other.config.task['kind']}, does not translate lines of text")
        return scorer

    def _open_language(self, run: str) -> tuple[LanguageModel, int]:
        """A language model over the vocabulary of the targets, and its token for the end of a line."""
        other = self._open(run)
        if not (isinstance(other.model, LanguageModel) and isinstance(other.task, LanguageModelTask)):
            raise RunError(f"{run}: its task, {other.config.task['kind']}, is not language_model")
        if not isinstance(self.task, Ensembles) or self.task.vocabularies()[-1:] != other.task.vocabularies():
            raise RunError(f"{run}: its vocabulary differs from that of the targets; train it with data.tokenizer_of")
        return other.model.eval(), other.task.tokenizer.encode("\n")[-1]

    def decoded(self, resolved: DecodingOptions) -> Network:
        """The model in the chosen precision, fused with a language model if the options say so."""
        model = self.converted(resolved)
        if resolved.fusion is None or not isinstance(model, Model):
            return model
        key = json.dumps([resolved.precision, resolved.kernels is not None, resolved.config.fusion])
        if key not in self._fused:
            self._fused[key] = resolved.fusion(model)
        return self._fused[key]

    def converted(self, resolved: DecodingOptions) -> Network:
        """The model with its weights in the chosen precision."""
        if resolved.precision == "bf16" and not self.task.info.bf16_weights:
            return self.model
        kernels = resolved.kernels if resolved.precision == "int8" else None
        key = resolved.precision, kernels is not None
        if key not in self._converted:
            self._converted[key] = in_precision(self.model, resolved.precision, kernels)
        return self._converted[key]


class Trained:
    """A trained model and the task it was trained for."""

    def __init__(self, model: Network, task: Task, config: Config, warn: Warn | None = None) -> None:
        self.model, self.task, self.config, self.warn = model.eval(), task, config, warn
        self.auxiliary = AuxiliaryModels(self.model, task)

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        task, model = self.config.task["kind"], self.config.model["kind"]
        return f"<{type(self).__name__} {self.task.run}: {task}, {model} with {size:,} parameters on {self.model.device}>"

    @property
    def languages(self) -> Sequence[str]:
        """The two languages of a model that translates in both directions; decode.into names one. Empty for other models."""
        languages: Sequence[str] = getattr(self.task, "languages", ())
        return languages

    def predictor(self, *, auto_workers: int = 1, **options: Any) -> Predictor[Any, Any]:
        """The predictor, with these options of the section decode changed: beam=4, search="sample", n_best=3, …

        auto_workers: the number of worker processes on a CPU if the options leave it to `auto`.
        """
        section = changed(self.config.decode, options)
        if section.into and not self.languages:
            raise ConfigError(
                f"decode.into: a run of the task {self.config.task['kind']} translates in one direction only, or has tags "
                "(decode.tag); remove it"
            )
        resolved = resolve_options(
            section,
            self.model.device,
            auto_workers=auto_workers,
            warn=self.warn or (lambda message: None),
            open_scorer=self.auxiliary.scorer,
            open_language=self.auxiliary.language,
        )
        return self.task.predictor(self.auxiliary.decoded(resolved), resolved, self.warn)

    def stream(
        self,
        lines: Iterable[str],
        *,
        attention: bool = False,
        prefixes: Iterable[str] | None = None,
        terms: Iterable[Terms] | None = None,
        marks: Iterable[Any] | None = None,
        matches: Iterable[Any] | None = None,
        ready: Ready | None = None,
        auto_workers: int = 1,
        **options: Any,
    ) -> Iterator[Any]:
        """A prediction for each line, in order, for any number of lines in constant memory.

        `prefixes`, `terms`, `marks` and `matches` (see `TranslationMemory.find`) have one item per line. Lines in a list are
        read ahead, which is faster. `ready` says whether the next line can be read without waiting; if not, the lines so far
        are answered first.
        """
        if isinstance(lines, str):
            raise InputError("lines must be an iterable of strings, not one string; give [line]")
        if not isinstance(lines, Iterable) or isinstance(lines, bytes):
            check_texts(lines, "lines")
        predictor = self.predictor(auto_workers=auto_workers, **options)
        inputs = make_inputs(predictor, lines, attention, prefixes, terms, marks, matches=matches)
        return predictor.predict(inputs, together=isinstance(lines, Sequence), ready=ready)

    def listen(self, sound: Any, **options: Any) -> Iterator[str]:
        """The text of a sound as it comes, see `Predictor.listen`. The whole text is that of a greedy search."""
        return self.predictor(**{"beam": 1, "n_best": 1, **options}).listen(sound)

    def metrics(self, references: Sequence[str], *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        """The metrics of the task for these references; warns if BLEU's tokenizer was chosen by their script.

        tokenize: that tokenizer, by default the one that the run names · lowercase: whether case is ignored.
        """
        chosen = choose_tokenization(tokenize or self.config.train.tokenize, self.config.data.target_language, references)
        metrics = all_metrics(self.task, tokenize=chosen.name, lowercase=lowercase)
        if self.warn and chosen.note and any(metric.name == "BLEU" for metric in metrics):
            self.warn(chosen.note)
        return metrics

    @torch.inference_mode()
    def score(self, data: str | Sequence[str]) -> dict[str, float]:
        """The scores that the task declares, on the data of these files."""
        return self.task.score(self.model, [data] if isinstance(data, str) else data)

    def explain(
        self,
        text: str,
        *,
        target: str | None = None,
        influence: bool | None = None,
        run: str = "",
        inside: bool = False,
        **options: Any,
    ) -> Explained:
        """Everything that can be seen of how one input is translated, labelled or described; a notebook shows it as a page.

        `target`: explain this translation instead of the model's own · `influence`: also how much each token depends on each
        source token · `run`: what the page calls the model · `inside`: also every step of the model, with numbers · `options`:
        those of the section decode. Nothing is reranked.
        """
        check_text(text, "text")
        options = {"rerank": "none", **options}
        if "n_best" not in options:
            section = changed(self.config.decode, options)
            options["n_best"] = max(section.n_best, section.search.get("width", 1))
        return self.task.explain(self.predictor(**options), text, target=target, influence=influence, run=run, inside=inside)

    def explain_sentences(self, text: str, **settings: Any) -> list[Explained]:
        """An explanation for each part of a text that is translated by itself; `settings` are those of `explain`."""
        whole = settings.get("target") is not None or settings.get("sentences", self.config.decode.sentences) == "off"
        texts = [text] if whole else self.predictor(rerank="none").sentences(text)
        return [self.explain(each, **{**settings, "sentences": "off"}) for each in texts]
