"""Subword tokenizers: BPE and unigram, trained with the Hugging Face `tokenizers` library.

A text is normalised, a space becomes "▁" at the start of the next word, punctuation is separated, and words are split into
pieces. Decoding restores the text except for a space at its beginning. The ids are the special ones, 256 bytes if
`byte_fallback` is set, and the pieces. `tokenizers.Tokenizer.from_file` can read the saved file.

No text can produce a special id: "</s>" contains punctuation, so it is split like any other text.
"""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from weft.data.batch import SPECIALS, UNK
from weft.data.tokenizers import RESERVED, SPACE, Tokenizer
from weft.data.tokenizers.bpe_dropout import UNKNOWN, SampledSegmentations, bpe_dropout, unigram_sample
from weft.data.tokenizers.word_character_byte import BYTES, NO_TEXT, OTHER_TOKENIZER, byte_name
from weft.errors import DataError

REMEMBERED = 200_000
"""Maximum number of words in the cache of encoded words, about 60 MB; a full cache is emptied."""

Normalization = Literal["nfc", "nfkc", "none"]


class _Subword(Tokenizer):
    """The common base of BPE and unigram, which differ only in how they choose pieces."""

    model_type: ClassVar[Any]

    def __init__(self, *, lowercase: bool = False, normalize: Normalization = "nfc", byte_fallback: bool = True) -> None:
        """
        lowercase      convert text to lower case
        normalize      Unicode normalisation form
        byte_fallback  encode a character outside the vocabulary as its UTF-8 bytes, which take 256 ids; otherwise as UNK
        """
        self.lowercase, self.normalize, self.byte_fallback = lowercase, normalize, byte_fallback
        self.reserved = list(SPECIALS) + ([byte_name(value) for value in range(BYTES)] if byte_fallback else [])
        self._set(self._assemble(self.model_type()))

    def _set(self, inner: Any) -> None:
        self._inner = inner
        self._known: dict[str, tuple[int, ...]] = {}

    @abstractmethod
    def _trained(self, texts: Iterable[str], size: int) -> Any:
        """A model with at most `size` ids, including the reserved ones, which come first."""

    def train(self, texts: Iterable[str], size: int) -> None:
        """Trains on texts. The texts are read twice; an iterator is first read into memory."""
        if size <= len(self.reserved) + 1:
            with_bytes = f" ({BYTES} of them bytes; see byte_fallback)" if self.byte_fallback else ""
            taken = f"{len(self.reserved)} ids are reserved{with_bytes}"
            raise DataError(f"a vocabulary of {size} (data.vocabulary) is too small: {taken}.")
        inner = self._assemble(self._trained(self._without_rare(texts, size), size))
        if inner.get_vocab_size() == len(self.reserved):
            raise DataError(NO_TEXT)
        self._set(inner)

    def _without_rare(self, texts: Iterable[str], size: int) -> Iterable[str]:
        """Replaces characters that are too rare to get an id by spaces: at most three quarters of the pieces are characters.

        The library could do this, but it breaks ties between equally rare characters at random.
        """
        texts = list(texts) if isinstance(texts, Iterator) else texts
        normal = self._inner.normalizer.normalize_str
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(normal(text))
        del counts[" "]
        limit = -(-(size - len(self.reserved)) * 3 // 4)
        if len(counts) < limit:
            return texts
        rare = sorted(counts, key=lambda character: (-counts[character], character))[limit - 1 :]
        blank = dict.fromkeys(map(ord, rare), " ")
        return (normal(text).translate(blank) for text in texts)

    def _assemble(self, model: Any) -> Any:
        """A `tokenizers.Tokenizer` with this model."""
        inner = tokenizers.Tokenizer(model)
        steps = [] if self.normalize == "none" else [normalizers.NFKC() if self.normalize == "nfkc" else normalizers.NFC()]
        inner.normalizer = normalizers.Sequence(steps + ([normalizers.Lowercase()] if self.lowercase else []))
        words = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
        inner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation("isolated")])
        spaces = decoders.Replace(SPACE, " ")
        inner.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        return inner

    def _learn(self, trainer: Any, texts: Iterable[str]) -> dict[str, Any]:
        """The parameters of a trained model as plain data."""
        inner = self._assemble(self.model_type())
        inner.train_from_iterator(texts, trainer)
        learnt: dict[str, Any] = json.loads(inner.to_str())["model"]
        return learnt

    def extended(self, texts: Iterable[str], more: int) -> Tokenizer:
        other = copy(self)
        other._set(self._assemble(self._longer(list(texts), more)))
        return other

    @abstractmethod
    def _longer(self, texts: list[str], more: int) -> Any:
        """A model with at most `more` further pieces, after those of this one."""

    def spelled(self, piece: str) -> list[int]:
        return [token.id for token in self._inner.model.tokenize(piece) if token.id != UNK]

    def _words(self, texts: Iterable[str]) -> Counter[str]:
        """The words of texts as the model sees them, with their counts."""
        normal, split = self._inner.normalizer.normalize_str, self._inner.pre_tokenizer.pre_tokenize_str
        return Counter(word for text in texts for word, _ in split(normal(text)))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes texts. Words are encoded independently, so most are found in a cache."""
        words = [text.removeprefix(" ").split(" ") if text else [] for text in texts]
        known = self._known
        missing = list({word for line in words for word in line if word not in known})
        encodings = self._inner.encode_batch_fast([word or " " for word in missing], add_special_tokens=False)
        known.update(zip(missing, (tuple(encoding.ids) for encoding in encodings)))
        ids = [list(chain.from_iterable(map(known.__getitem__, line))) for line in words]
        if len(known) > REMEMBERED:
            self._known = {}  # a new dict, because another thread may still read the old one
        return ids

    def starts(self) -> NDArray[np.bool_]:
        return np.array([self.piece(number).startswith(SPACE) for number in range(self.size)])

    def variants(self, strength: float) -> SampledSegmentations:
        learnt = json.loads(self._inner.to_str())["model"]
        normal, parts = self._inner.normalizer.normalize_str, self._inner.pre_tokenizer.pre_tokenize_str
        split = self._splitter(learnt, strength)
        ids = self._inner.get_vocab()

        def segment(text: str, draw: Random) -> list[int]:
            return [token for piece in split(text, draw) for token in self._ids(piece, ids)]

        return SampledSegmentations(lambda word: [part for part, _ in parts(normal(word or " "))], segment)

    def _ids(self, piece: str, ids: Mapping[str, int]) -> list[int]:
        """The id of a piece, or those of its bytes if it has none."""
        if piece in ids:
            return [ids[piece]]
        return [ids[byte_name(byte)] for byte in piece.encode()] if self.byte_fallback else [UNK]

    @abstractmethod
    def _splitter(self, learnt: Mapping[str, Any], strength: float) -> Callable[[str, Random], list[str]]:
        """Draws the pieces of a text, given the parameters of the trained model."""

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode([i for i in ids if i >= RESERVED], skip_special_tokens=False))

    def piece(self, number: int) -> str:
        return str(self._inner.id_to_token(number))

    @property
    def size(self) -> int:
        return int(self._inner.get_vocab_size())

    def dump(self) -> bytes:
        return str(self._inner.to_str(pretty=False)).encode()

    def restore(self, content: bytes) -> None:
        try:
            inner = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(str(error)) from None
        if type(inner.model) is not self.model_type or inner.token_to_id(SPECIALS[UNK]) != UNK:
            raise ValueError(OTHER_TOKENIZER)
        self._set(inner)


class BpeTokenizer(_Subword):
    """Byte pair encoding (Sennrich et al., 2016, arXiv:1508.07909): repeatedly merges the most frequent pair of pieces.

    At most three quarters of the pieces are single characters; a pair must occur twice to be merged.
    """

    model_type: ClassVar[Any] = models.BPE

    def _trained(self, texts: Iterable[str], size: int) -> Any:
        room = size - len(self.reserved)
        trainer = trainers.BpeTrainer(vocab_size=room, min_frequency=2, show_progress=False)
        learnt = self._learn(trainer, texts)
        vocabulary = {piece: number for number, piece in enumerate([*self.reserved, *learnt["vocab"]])}
        return models.BPE(
            vocabulary, [tuple(pair) for pair in learnt["merges"]], unk_token=SPECIALS[UNK], byte_fallback=self.byte_fallback
        )

    def _splitter(self, learnt: Mapping[str, Any], strength: float) -> Callable[[str, Random], list[str]]:
        ranks = {(left, right): rank for rank, (left, right) in enumerate(learnt["merges"])}
        return lambda text, draw: bpe_dropout(text, ranks, strength, draw)

    def _longer(self, texts: list[str], more: int) -> Any:
        """Unknown characters first, then the most frequent pairs of pieces, merged after all pairs of this tokenizer."""
        saved: dict[str, Any] = json.loads(self._inner.to_str())["model"]
        words, vocabulary = self._words(texts), dict(saved["vocab"])
        counts: Counter[str] = Counter()
        for word, times in words.items():
            counts.update(dict.fromkeys((character for character in word if character not in vocabulary), times))
        often = [character for character in sorted(counts, key=lambda each: (-counts[each], each)) if counts[character] > 1]
        vocabulary |= {character: len(vocabulary) + place for place, character in enumerate(often[: -(-more * 3 // 4)])}
        merges = [tuple(pair) for pair in saved["merges"]]

        def model() -> Any:
            return models.BPE(vocabulary, merges, unk_token=SPECIALS[UNK], byte_fallback=self.byte_fallback)

        segment, bytes_ = model().tokenize, set(self.reserved)
        split = [([token.value for token in segment(word)], times) for word, times in words.items()]
        for pair in frequent_pairs(split, bytes_):
            if len(vocabulary) == len(saved["vocab"]) + more:
                break
            vocabulary.setdefault("".join(pair), len(vocabulary))
            merges.append(pair)
        return model()


def frequent_pairs(words: list[tuple[list[str], int]], never: Container[str]) -> Iterator[tuple[str, str]]:
    """Further merges of BPE: the most frequent pair of neighbours, merged everywhere, then the next, while one occurs twice.

    words: the pieces of each word, which are merged in place, and its count · never: pieces that are not merged
    """
    counts: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str], set[int]] = {}

    def count(number: int, sign: int) -> set[tuple[str, str]]:
        pieces, times = words[number]
        pairs = [pair for pair in pairwise(pieces) if pair[0] not in never and pair[1] not in never]
        for pair in pairs:
            counts[pair] += sign * times
            places.setdefault(pair, set()).add(number)
        return set(pairs)

    for number in range(len(words)):
        count(number, 1)
    queue = [(-times, pair) for pair, times in counts.items()]
    heapify(queue)
    while queue:
        times, pair = heappop(queue)
        if -times != counts[pair]:
            continue  # it has changed since, and is in the queue again
        if counts[pair] < 2:
            return
        changed: set[tuple[str, str]] = set()
        for number in sorted(places.pop(pair)):
            changed |= count(number, -1)
            words[number] = (_merged(words[number][0], pair), words[number][1])
            changed |= count(number, 1)
        for other in changed:
            heappush(queue, (-counts[other], other))
        yield pair


def _merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


class UnigramTokenizer(_Subword):
    """Unigram language model (Kudo, 2018, arXiv:1804.10959): the most probable segmentation of a word into pieces."""

    model_type: ClassVar[Any] = models.Unigram

    def _trained(self, texts: Iterable[str], size: int) -> Any:
        room = size - len(self.reserved)
        trainer = trainers.UnigramTrainer(
            vocab_size=room + 1, unk_token=SPECIALS[UNK], special_tokens=[SPECIALS[UNK]], show_progress=False
        )
        try:
            learnt = self._learn(trainer, texts)
        except Exception as error:  # the library raises bare Exception
            raise DataError(
                f"a vocabulary of {size:,} cannot be trained on this text: {str(error)[:1].lower()}{str(error)[1:]}. "
                "Use a larger vocabulary, or the tokenizer bpe, which encodes rare characters as bytes."
            ) from None
        pieces = _in_order(piece for piece in learnt["vocab"] if piece[0] != SPECIALS[UNK])
        lowest = pieces[-1][1] if pieces else 0.0
        return models.Unigram([(name, lowest - 100.0) for name in self.reserved] + pieces, UNK, self.byte_fallback)

    def _splitter(self, learnt: Mapping[str, Any], strength: float) -> Callable[[str, Random], list[str]]:
        scores = dict(learnt["vocab"][len(self.reserved) :])
        longest, lowest = max(map(len, scores), default=1), min(scores.values(), default=0.0) - UNKNOWN
        return lambda text, draw: unigram_sample(text, scores, longest, lowest, strength, draw)

    def _longer(self, texts: list[str], more: int) -> Any:
        """The most probable unknown pieces of a model of the new texts, with their scores there."""
        pieces = [(str(piece), float(score)) for piece, score in json.loads(self._inner.to_str())["model"]["vocab"]]
        known = {piece for piece, _ in pieces}
        other = json.loads(self._assemble(self._trained(texts, len(pieces))).to_str())["model"]["vocab"]
        added = [(piece, score) for piece, score in other[len(self.reserved) :] if piece not in known]
        return models.Unigram(pieces + added[:more], UNK, self.byte_fallback)


def _in_order(pieces: Iterator[list[Any]]) -> list[tuple[str, float]]:
    """Pieces by decreasing score, in an order that is the same for every training.

    The library scores rare characters in the random order of a hash table, each 0.0001 above the last, starting at the
    lowest score. Here they all get that lowest score.
    """
    scored = [(str(piece), float(score)) for piece, score in pieces]
    lowest = min((score for _, score in scored), default=0.0)
    rare = lowest + 0.0001 * (len(scored) + 1)
    level = [(piece, round(lowest if len(piece) == 1 and score <= rare else score, 6)) for piece, score in scored]
    return sorted(level, key=lambda item: (-item[1], item[0]))
