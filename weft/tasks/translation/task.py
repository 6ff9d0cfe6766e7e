"""Translation: pairs of texts, cross-entropy with teacher forcing, scored by the loss and by metrics of decoded text.

Corpora may have tags and noise of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft.config.corpus_entries import TrainingCorpus, ValidationCorpus, grouped, weighed
from weft.config.registry import find_table, load, suggest
from weft.config.sections import DataSection
from weft.data.batch import PairBatch
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs
from weft.data.sentence_pairs import SIDES, collate_pairs, prepare_pairs
from weft.data.sentence_splitting import SentenceCounts, SentenceSplitter, count_sentences, language_of
from weft.data.tokenizers import Tokenizer, has_tokenizers
from weft.data.tokenizers.added_tokens import BLANK, add_tokens, load_extended, save_extended
from weft.data.word_noise import CorpusNoise, NoisyEncoder, WordNoise
from weft.decoding.hypotheses import Hypothesis
from weft.errors import ConfigError, DataError, RunError
from weft.evaluation import METRICS
from weft.evaluation.metrics import USUAL, Chrf, Metric, choose_tokenization, make_metrics, score
from weft.file_access import why_unwritable
from weft.inference.decoding_options import DecodingOptions, changed, resolve_options
from weft.inference.shortlist import FILE, Shortlist, cached_file
from weft.models.base import Model, Network, Sizes
from weft.models.composition import build_encoder_decoder
from weft.models.wrapped_decoders import Ensemble
from weft.tasks.base import LOSS, Measure, TaskContext
from weft.tasks.corpus_task import Direction
from weft.tasks.seq2seq_task import Seq2SeqObjective, Seq2SeqTask
from weft.tasks.tokenizer_setup import learn_tokenizers, tokenizers_of
from weft.tasks.translation.generation_requests import translate_ids
from weft.tasks.translation.predictor import TranslationPredictor

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation


def with_marks(data: DataSection, source: Tokenizer, target: Tokenizer) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers with the tags of all corpora as tokens of their own and, if noise needs it, the blank."""
    corpora, directions = weighed(data.train), grouped(data.valid, ValidationCorpus)
    tags = dict.fromkeys(tag for part in corpora for tag in part.tags)
    known = [*tags, *source.added]
    for tag in (tag for part in directions for tag in part.tags if tag not in known):
        raise ConfigError(f"data.valid: no training data has the tag {tag}; {suggest(tag, known)}")
    if BLANK in tags:
        raise ConfigError(f"data.train: the tag {BLANK} stands for words that noise has blanked out; choose another name")
    marks = [*tags, *([BLANK] if any(corpus.noise.blank for corpus in corpora) else [])]
    return add_tokens(source, target, marks, needs_tag=all(corpus.tag for corpus in corpora))


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


def make_noising(corpus: TrainingCorpus, source: Tokenizer, target: Tokenizer, longest: int) -> CorpusNoise | None:
    """The noise of a corpus of pairs, if it has any. Words change in sources only. longest: the most tokens of a text."""
    noise = corpus.noise
    if not noise.any:
        return None
    words = WordNoise(noise.drop, noise.blank, noise.shuffle) if noise.drop or noise.blank or noise.shuffle else None
    tags, blank = source.tags(corpus.tag), source.tags(BLANK)[0] if noise.blank else 0
    if noise.subword is None:
        noisers = {"source": NoisyEncoder(source, words, None, blank, tags)}
    else:
        above, below = (side.variants(noise.subword) for side in (source, target))
        noisers = {"source": NoisyEncoder(source, words, above, blank, tags), "target": NoisyEncoder(target, None, below)}
    return CorpusNoise(noisers, most=longest + len(tags) + 1)


CHRF = Chrf.key()
"""`train.best_by` may call it chrf, as `weft evaluate` does."""


class TranslationTask(Seq2SeqTask):
    """Text to text: cross-entropy of the next target token given the true ones before it, with label smoothing.

    languages: the two languages of a model that translates in both directions; decode.into names one, by default the second.
    """

    example = "source.txt,target.txt"
    languages: Sequence[str] = ()
    supports_distillation = True
    rewards = True

    def __init__(self, context: TaskContext, *, objective: Seq2SeqObjective) -> None:
        super().__init__(context, objective=objective)
        metrics = [load(METRICS, name) for name in METRICS]
        texts = [Measure(metric.key(), metric.name, metric.higher_is_better) for metric in metrics]
        self.measures = (*texts, LOSS) if self.config.train.validate_bleu else (LOSS, *texts)
        self.quick: dict[str, Any] = {"search": "greedy", "rerank": "none", "n_best": 1, "fusion": "none"}
        self.valid_pairs: dict[str, list[tuple[str, str]]] = {}
        self.tokenizes: dict[str, str] = {}
        self.tokenize = USUAL

    def prepare(self) -> Sizes:
        options = self.config.train
        if self.config.data.validates and options.best_by != "loss" and not options.validate_bleu:
            raise ConfigError(
                f"train.best_by: {options.best_by} is not measured with train.validate_bleu: false; "
                "set best_by: loss, or validate_bleu: true"
            )
        if options.tokenize != "auto":
            self._check_tokenize(options.tokenize)
        sizes = super().prepare()
        for direction in self.directions:
            pairs = list(islice(chain.from_iterable(direction.pairs), options.validate_sentences or None))
            self.valid_pairs[direction.label] = pairs
            if options.validate_bleu and pairs:
                references = [target for _, target in pairs]
                chosen = choose_tokenization(options.tokenize, self.config.data.target_language, references)
                self.tokenizes[direction.label] = chosen.name
                if chosen.note:
                    self.report(chosen.note)
        self.tokenize = next(iter(self.tokenizes.values()), USUAL)
        return sizes

    def _check_tokenize(self, name: str) -> None:
        try:
            make_metrics(["bleu"], tokenize=name)
        except ConfigError as error:
            raise ConfigError(f"train.tokenize: {error}") from None

    def measure(self, key: str) -> Measure:
        return super().measure(CHRF if key == "chrf" else key)

    def reopen(self) -> Sizes:
        self.source, self.target = load_extended(self.run, self.config.data.tokenizer)
        return Sizes(self.source.size, self.target.size, self.source is self.target)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = build_encoder_decoder(spec, sizes)
        if model.decoder.parallel:
            raise ConfigError("task: this model writes all tokens at once; set task: parallel_translation")
        if self.unlikelihood and model.copies:
            raise ConfigError("task.unlikelihood: this model copies words of the source, which it would forbid; set it to 0")
        return model

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), self.target.digest()]

    def ensemble(self, models: Sequence[Network]) -> Network:
        parts = [model for model in models if isinstance(model, Model)]
        if len({model.copies for model in parts}) > 1:
            raise RunError(
                "an ensemble needs runs that all copy source words (model.kind: pointer), or runs of which none does"
            )
        return Ensemble(parts)

    def predictor(
        self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> TranslationPredictor:
        assert isinstance(model, Model)
        shortlist = self.shortlist if resolved.config.shortlist else None
        split = SentenceSplitter(self.source_language, SentenceCounts.load(self.run).usual, warn or (lambda message: None))
        return TranslationPredictor(model, self.source, self.target, resolved, warn=warn, shortlist=shortlist, split=split)

    def explain(
        self,
        predictor: TranslationPredictor,
        text: str,
        *,
        target: str | None = None,
        influence: bool | None = None,
        run: str = "",
    ) -> Explanation:
        from weft.tasks.translation.explanation import explain_translation  # slow to import, and not needed to translate

        count = 1 if target is not None else len(predictor.sentences(text))
        if count > 1:
            raise DataError(
                f"the text has {count} parts that are translated one by one; explain them with explain_sentences(text), or the "
                "text as a whole with sentences='off'"
            )
        found = explain_translation(predictor, text, target=target, run=run, influence=influence)
        data = self.config.data
        found.model, found.languages = self.config.model["kind"], (data.source_language or "", data.target_language or "")
        return found

    @property
    def tags(self) -> Sequence[str]:
        """Tags that a source may begin with, such as its target language."""
        return self.source.added

    @property
    def source_language(self) -> str | None:
        """The source language, if the configuration or the suffix of the data files tells."""
        return language_of(self.config.data.source_language, self.config.data.files)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return make_metrics(tokenize=tokenize or self.tokenize, lowercase=lowercase)

    @cached_property
    def shortlist(self) -> Shortlist:
        """The likely target tokens per source token, read from the run's folder."""
        return Shortlist.read(self.run, self.source.size, self.target.size, self.source is self.target)

    def build_shortlist(self) -> Path:
        """Counts the shortlist of the run. Writes it into its folder or, if that is read-only, into the user's cache."""
        out = self.run / FILE
        if problem := why_unwritable(self.run):
            out = cached_file(self.run)
            self.report(f"{self.run}: {problem}. The shortlist is kept in your cache, where weft finds it")
        sizes = self.prepare()
        return Shortlist.count(self.train, sizes.source, sizes.target, sizes.shared).write(out)

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> PairBatch:
        return collate_pairs(corpus, rows, **layout)

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """The loss per token on all validation pairs; BLEU, exact match and `train.best_by` of greedy texts on some of them.

        Of several directions there are the scores of each, `bleu/de`, and their mean; the loss is that of all tokens.
        """
        assert isinstance(model, Model)
        found = [self._evaluate(model, direction) for direction in self.directions]
        if len(found) < 2:
            return found[0][0] if found else {}
        scores = {key: sum(each[key] for each, _ in found) / len(found) for key in found[0][0]}
        scores["loss"] = sum(each["loss"] * count for each, count in found) / sum(count for _, count in found)
        named = zip(self.directions, found, strict=True)
        return scores | {f"{key}/{one.label}": value for one, (each, _) in named for key, value in each.items()}

    def _evaluate(self, model: Model, direction: Direction) -> tuple[dict[str, float], int]:
        """The scores of one direction, and its number of tokens."""
        loss, count = self.mean_loss(model, [direction])
        scores, pairs = {"loss": loss}, self.valid_pairs[direction.label]
        if self.config.train.validate_bleu and pairs:
            hypotheses = self.translations(model, [source for source, _ in pairs], direction.tag)
            keys = {"bleu", "exact", self.measure(self.config.train.best_by).key}
            metrics = [metric for metric in self.metrics(tokenize=self.tokenizes[direction.label]) if metric.key() in keys]
            results = score(hypotheses, [target for _, target in pairs], metrics)
            scores |= {each.key: each.value for each in results.values()}
        return scores, count

    def draw(self, model: Model, sources: Sequence[list[int]], samples: int) -> list[list[Hypothesis]]:
        """See `Seq2SeqTask`. Seeds come from the generator of random numbers that the trainer seeds for each micro-batch."""
        search: dict[str, Any] = {"search": {"kind": "sample"} if samples else {"kind": "greedy"}, "n_best": max(1, samples)}
        changes = {**search, "precision": self.config.train.precision}
        seeds = torch.randint(1 << 62, (len(sources),)).tolist()
        return translate_ids(model, (self.source, self.target), sources, self.config.decode, changes, seeds=seeds)

    def translations(self, model: torch.nn.Module, sources: Sequence[str], tag: str | None = None) -> list[str]:
        """Translations of validation text, by `quick` decoding."""
        assert isinstance(model, Network)
        section = changed(self.config.decode, {**self.quick, "tag": tag})
        predictor = self.predictor(model, resolve_options(section, model.device))
        return [found.text for found in predictor.predict(map(predictor.parse_input, sources))]

    def describe(self) -> dict[str, Any]:
        sizes = {"source vocabulary": self.source.size, "target vocabulary": self.target.size}
        facts = {**sizes, "training pairs": len(self.train)}
        return facts | ({} if self.valid is None else {"validation pairs": len(self.valid)})

    def learn(self, train: list[Pairs]) -> None:
        data = self.config.data
        if not has_tokenizers(self.run):
            if data.tokenizer_of:
                self.config, source, target = tokenizers_of(self.config)
            else:
                source, target = learn_tokenizers(self.config, train, self.report)
            save_extended(self.run, *with_marks(data, source, target))
            language = language_of(data.target_language, data.files, 1)
            count_sentences(train, self.source_language, language).save(self.run)

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        chosen = part_options(part, self.config.data, self.source)
        return prepare_pairs(
            pairs, self.source, self.target, folder=self.cache, copying=self._copies, progress=progress, **chosen
        )

    @property
    def _copies(self) -> bool:
        return bool(load(find_table("weft.models:MODELS"), self.config.model["kind"]).copies)

    def noising(self, corpus: TrainingCorpus) -> CorpusNoise | None:
        found = make_noising(corpus, self.source, self.target, self.config.data.max_length)
        if found and self._copies:
            raise ConfigError("data.train: a model that copies source words (model.kind: pointer) cannot read noise; remove it")
        return found
