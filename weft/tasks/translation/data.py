"""Pairs of texts for translation: their tokenizers with tags, their corpora with filters and noise, and their languages."""

from collections.abc import Callable, Sequence
from typing import Any

from weft.config.corpus_entries import TrainingCorpus, ValidationCorpus, grouped, weighed
from weft.config.registry import find_table, load, suggest
from weft.data.changed_copies import ChangedCopies
from weft.data.corpus import Corpus
from weft.data.formats import Pairs
from weft.data.sentence_pairs import SIDES, prepare_pairs
from weft.data.sentence_splitting import SentenceCounts, SentenceSplitter, count_sentences, language_of
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import BLANK, add_tokens
from weft.data.word_noise import CorpusNoise, NoisyEncoder, WordNoise
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.run_tokenizers import TokenizerPair, learn_tokenizers, tokenizers_of


class ParallelTexts(CorpusTask):
    """The data of a task that translates. Corpora may have tags, filters and noise of their own.

    languages: the two languages of a model that translates in both directions; decode.into names one, by default the second.
    """

    languages: Sequence[str] = ()

    @property
    def tags(self) -> Sequence[str]:
        """Tags that a source may begin with, such as its target language."""
        return self.source.added

    @property
    def source_language(self) -> str | None:
        """The source language, if the configuration or the suffix of the data files tells."""
        return language_of(self.config.data.source_language, self.config.data.files)

    def sentence_splitter(self) -> SentenceSplitter:
        """Splits sources into as many sentences as those of the training data usually have."""
        return SentenceSplitter(self.source_language, SentenceCounts.load(self.run).usual)

    def tokenizers(self, train: list[Pairs]) -> TokenizerPair:
        """Counts the sentences of the training data as well."""
        data = self.config.data
        if data.tokenizer_of:
            self.config, source, target = tokenizers_of(self.config)
        else:
            source, target = learn_tokenizers(self.config, train, self.report)
        extended = self._with_added_tokens(source, target)
        count_sentences(train, self.source_language, language_of(data.target_language, data.files, 1)).save(self.run)
        return extended

    def _with_added_tokens(self, source: Tokenizer, target: Tokenizer) -> TokenizerPair:
        """The tokenizers with the tags of all corpora as tokens of their own and, if noise needs it, the blank."""
        corpora, directions = weighed(self.config.data.train), grouped(self.config.data.valid, ValidationCorpus)
        tags = dict.fromkeys(tag for part in corpora for tag in part.tags)
        known = [*tags, *source.added]
        for tag in (tag for part in directions for tag in part.tags if tag not in known):
            raise ConfigError(f"data.valid: no training data has the tag {tag}; {suggest(tag, known)}")
        if BLANK in tags:
            raise ConfigError(f"data.train: the tag {BLANK} stands for words that noise has blanked out; choose another name")
        added = [*tags, *([BLANK] if any(corpus.noise.blank for corpus in corpora) else [])]
        return add_tokens(source, target, added, needs_tag=all(corpus.tag for corpus in corpora))

    def reopen(self) -> Sizes:
        super().reopen()
        return Sizes(self.source.size, self.target.size, self.source.shares_ids(self.target))

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), self.target.digest()]

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        """The corpus of an entry, with its tags; training data has filters of its own, and the texts that noise needs."""
        data = self.config.data
        options: dict[str, Any] = {"max_length": data.max_length}
        if isinstance(part, TrainingCorpus):
            if part.max_length and part.max_length > data.max_length:
                raise ConfigError(
                    f"data.train: {part.label} has a max_length of {part.max_length}, above data.max_length, "
                    f"{data.max_length}, which is that of all corpora; raise data.max_length, or lower this one"
                )
            noise, duplicates = part.noise, part.drop_duplicates
            options = {
                "texts": SIDES if noise.subword is not None else SIDES[:1] if noise.any else (),
                "max_length": part.max_length or data.max_length,
                "max_ratio": part.max_ratio or data.max_ratio,
                "drop_duplicates": data.drop_duplicates if duplicates is None else duplicates,
            }
        return prepare_pairs(
            pairs,
            self.source,
            self.target,
            tags=self.source.tags(part.tag),
            begin=self.target.begin(part.tag),
            folder=self.cache,
            copying=self._copies,
            processes=data.processes,
            progress=progress,
            **options,
        )

    @property
    def _copies(self) -> bool:
        return bool(load(find_table("weft.models:MODELS"), self.config.model["kind"]).copies)

    def with_copies(self, corpus: TrainingCorpus, pairs: list[Pairs]) -> list[Pairs]:
        shares, glossary = corpus.copies.shares, corpus.copies.glossary
        return [ChangedCopies(each, shares, glossary) for each in pairs] if shares else pairs

    def noising(self, corpus: TrainingCorpus) -> CorpusNoise | None:
        """The noise of a corpus of pairs, if it has any. Words change in sources only."""
        noise, source, target = corpus.noise, self.source, self.target
        if not noise.any:
            return None
        words = WordNoise(noise.drop, noise.blank, noise.shuffle) if noise.drop or noise.blank or noise.shuffle else None
        tags, blank = source.tags(corpus.tag), source.tags(BLANK)[0] if noise.blank else 0
        above, below = (None if noise.subword is None else side.variants(noise.subword) for side in (source, target))
        encoders = {"source": NoisyEncoder(source, words, above, blank, tags)}
        if below is not None:
            encoders["target"] = NoisyEncoder(target, None, below)
        if self._copies:
            raise ConfigError("data.train: a model that copies source words (model.kind: pointer) cannot read noise; remove it")
        return CorpusNoise(encoders, most=self.config.data.max_length + len(tags) + 1)

    def describe(self) -> dict[str, Any]:
        sizes = {"source vocabulary": self.source.size, "target vocabulary": self.target.size}
        facts = {**sizes, "training pairs": len(self.train)}
        return facts | ({} if self.valid is None else {"validation pairs": len(self.valid)})
