"""Word vectors: learnt from one text, in files as those of word2vec, GloVe and fastText, and as initial embeddings of tokens.

They are learnt as positive pointwise mutual information, reduced by a singular value decomposition. Levy, Goldberg & Dagan 2015
compare them with skip-gram vectors; on texts of a few hundred thousand words they are better.

Shapes: V words · N tokens · D width of a vector.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.text_lines import read_lines
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.word_character_byte import JOINED, WordTokenizer
from weft.errors import DataError

Vectors = NDArray[np.float32]

SMOOTHING = 0.75
"""Power of context counts, which keeps rare contexts from looking informative."""
TINY = 1e-6
"""The least singular value."""
OVERSAMPLED, PASSES = 20, 4
"""Extra columns and passes of the randomised decomposition (Halko et al. 2011)."""

GRAMS = 4000
"""The most n-grams of a length that have vectors."""

SPLITTERS = {lowercase: WordTokenizer(lowercase=lowercase) for lowercase in (False, True)}
AT_SPACES = WordTokenizer(punctuation=False)

TABLES = ("table.weight", "decoder.output.weight")
POSITIONS = "position.table.weight"
"""Endings of the names of embeddings and of output layers over tokens, and those of embeddings of positions."""


def split_words(text: str, *, lowercase: bool = True) -> list[str]:
    """The words and punctuation marks of a text."""
    return SPLITTERS[lowercase].split(text)


@dataclass(frozen=True)
class WordVectors:
    """The words of a text in lower case, most frequent first, how often each occurs, and their vectors [V, D].

    Behind the words there may be n-grams, their words separated by spaces. forms: the usual spelling of each, such as Hund for
    hund.
    """

    words: Sequence[str]
    counts: Sequence[int]
    vectors: Vectors
    forms: Sequence[str]

    @property
    def singles(self) -> int:
        """The number of words, without n-grams."""
        return next((number for number, word in enumerate(self.words) if " " in word), len(self.words))


def learn_vectors(
    lines: Iterable[str],
    *,
    most: int = 20_000,
    least: int = 3,
    window: int = 10,
    width: int = 150,
    power: float = 0.75,
    punctuation: bool = True,
    ngrams: int = 1,
    name: str = "the text",
) -> WordVectors:
    """The vectors of the words that occur at least `least` times, `most` words at most.

    window: the distance up to which words are each other's contexts, which count 1/distance. Left and right contexts differ.
    power: of the singular values. punctuation: separate it from words; otherwise split at spaces only. ngrams: the length up to
    which the most frequent n-grams have vectors too, from the words around them. name: for errors.
    """
    splitter = SPLITTERS[False] if punctuation else AT_SPACES
    written = [splitter.split(line) for line in lines]
    texts = [[word.lower() for word in text] for text in written]
    counts = Counter(word for text in texts for word in text)
    words = sorted((word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word))[:most]
    if len(words) < 2:
        raise DataError(
            f"{name} has {len(words)} words that occur at least {least} times, too few for word vectors; give a longer text"
        )
    tokens = _Tokens.of(texts, {word: number for number, word in enumerate(words)})
    cells = _cooccurrences(tokens.ids, 1, tokens, len(words), window)
    if not cells.values().numel():
        raise DataError(
            f"{name} has no line in which two words occur that are in it at least {least} times; word vectors are learnt from "
            "such lines: give whole sentences"
        )
    contexts = _context_sums(cells)
    vectors, projection = _reduced(_mutual_information(cells, contexts), min(width, len(words)), power)
    found, forms = [WordVectors(words, [counts[word] for word in words], vectors, ())], usual_forms(words, written)
    for length in range(2, ngrams + 1):
        grams, numbers, often = tokens.ngrams(length, least, GRAMS)
        cells = _cooccurrences(numbers, length, tokens, len(grams), window)
        places = _mutual_information(cells, contexts)
        names = [" ".join(words[word] for word in gram) for gram in grams]
        forms += [" ".join(forms[word] for word in gram) for gram in grams]
        found.append(WordVectors(names, often, torch.sparse.mm(places, projection).numpy(), ()))
    return WordVectors(
        [word for part in found for word in part.words],
        [count for part in found for count in part.counts],
        np.concatenate([part.vectors for part in found]),
        forms,
    )


@dataclass(frozen=True)
class _Tokens:
    """The numbers of all words one after the other, −1 for words without one and between texts, and the text of each place."""

    ids: NDArray[np.int64]
    text: NDArray[np.int64]

    @staticmethod
    def of(texts: Sequence[Sequence[str]], numbers: dict[str, int]) -> "_Tokens":
        ids = np.array([numbers.get(word, -1) for text in texts for word in (*text, "")])
        return _Tokens(ids, np.repeat(np.arange(len(texts)), [len(words) + 1 for words in texts]))

    def ngrams(self, length: int, least: int, most: int) -> tuple[list[list[int]], NDArray[np.int64], list[int]]:
        """The words of the most frequent n-grams, the number of the one that begins at each place, and the count of each."""
        count = max(0, len(self.ids) - length + 1)
        columns = np.stack([self.ids[shift : shift + count] for shift in range(length)], 1)
        whole = (columns >= 0).all(1)
        grams, place, often = np.unique(columns[whole], axis=0, return_inverse=True, return_counts=True)
        order = np.argsort(-often, kind="stable")[: min(most, int((often >= least).sum()))]
        rank = np.full(len(grams), -1)
        rank[order] = np.arange(len(order))
        numbers = np.full(len(self.ids), -1)
        numbers[:count][whole] = rank[place.ravel()]
        return grams[order].tolist(), numbers, often[order].tolist()


def usual_forms(words: Sequence[str], texts: Iterable[Sequence[str]]) -> list[str]:
    """The most frequent spelling of each word inside texts, whose first words have capitals of their own."""
    best: dict[str, tuple[int, str]] = {}
    for form, count in Counter(word for text in texts for word in text[1:]).items():
        best[form.lower()] = max(best.get(form.lower(), (0, "")), (count, form))
    return [best[word][1] if word in best else word for word in words]


def _cooccurrences(rows: NDArray[np.int64], length: int, tokens: _Tokens, count: int, window: int) -> Tensor:
    """[count, 2V] sparse: how often each word stands left (first half) or right of each row, within the window.

    rows: the row that begins at each place, and which is `length` words long; −1 for none.
    """
    ids, text = tokens.ids, tokens.text
    size = int(ids.max()) + 1
    keys, values = [], []
    for distance in range(1, window + 1):
        for before, reach in ((True, distance), (False, distance + length - 1)):
            first, second = slice(None, -reach), slice(reach, None)
            own, other = (second, first) if before else (first, second)
            real = (rows[own] >= 0) & (ids[other] >= 0) & (text[first] == text[second])
            keys.append(rows[own][real] * 2 * size + (0 if before else size) + ids[other][real])
            values.append(np.full(len(keys[-1]), 1 / distance, np.float32))
    cells, place = np.unique(np.concatenate(keys), return_inverse=True)
    sums = np.bincount(place, np.concatenate(values)).astype(np.float32)
    return _sparse(torch.from_numpy(np.stack(np.divmod(cells, 2 * size))), torch.from_numpy(sums), (count, 2 * size))


def _context_sums(cells: Tensor) -> Tensor:
    """[2V]: smoothed counts of contexts, which are their probabilities but for a factor."""
    sums = torch.zeros(cells.size(1), dtype=torch.float64)
    return sums.index_add_(0, cells.indices()[1], cells.values().double()) ** SMOOTHING


def _mutual_information(cells: Tensor, of_context: Tensor) -> Tensor:
    """max(0, log P(word, context) / (P(word) P(context))), with smoothed P(context)."""
    word, context = cells.indices()
    values = cells.values().double()
    of_word = torch.zeros(cells.size(0), dtype=values.dtype).index_add_(0, word, values)
    ratio = values * of_context.sum() / (of_word[word] * of_context[context])
    return _sparse(cells.indices(), ratio.log().clamp_min(0).float(), cells.shape)


def _sparse(cells: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():  # some versions of torch warn about unchecked invariants
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        return torch.sparse_coo_tensor(cells, values, shape, check_invariants=False).coalesce()


def _reduced(cells: Tensor, width: int, power: float) -> tuple[Vectors, Tensor]:
    """U Σ^power of the `width` largest singular values, by subspace iteration from a fixed start, and V Σ^(power − 1).

    The product of cells [N, 2V] of other rows with the latter [2V, D] has their vectors.
    """
    columns = min(width + OVERSAMPLED, cells.size(0))
    basis = torch.randn(cells.size(1), columns, generator=torch.Generator().manual_seed(0))
    transposed = cells.t().coalesce()
    for _ in range(PASSES):
        basis = torch.linalg.qr(torch.sparse.mm(transposed, torch.linalg.qr(torch.sparse.mm(cells, basis))[0]))[0]
    left, values, right = torch.linalg.svd(torch.sparse.mm(cells, basis), full_matrices=False)
    vectors: Vectors = (left[:, :width] * values[:width] ** power).numpy()
    return vectors, basis @ right[:width].T * values[:width].clamp_min(TINY) ** (power - 1)


def read_vectors(file: str | Path) -> tuple[list[str], Vectors]:
    """The words of a file (also .gz) and their vectors [V, D]. Of a repeated word, the first vector counts.

    The first line may say how many words and dimensions there are. Words may contain spaces, as some of GloVe do.
    """
    vectors: dict[str, Vectors] = {}
    width = 0
    for number, line in enumerate(read_lines(file), 1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() and len(field) < 10 for field in fields):
            width = int(fields[1])
            continue
        width = width or len(fields) - 1
        word = " ".join(fields[:-width]) if 0 < width < len(fields) else ""
        vector = _numbers(fields[-width:]) if word else None
        if vector is None:
            raise DataError(
                f"{file}: line {number}: expected a word and {max(width, 1)} numbers, separated by spaces: {line[:60]!r}"
            )
        vectors.setdefault(word, vector)
    if not vectors:
        raise DataError(f"{file}: there are no word vectors in it")
    return list(vectors), np.stack(list(vectors.values()))


def _numbers(fields: Sequence[str]) -> Vectors | None:
    """The fields as a vector; None if they are not finite numbers."""
    try:
        vector = np.array(fields, np.float32)
    except ValueError:
        return None
    return vector if np.isfinite(vector).all() else None


def whole_words(words: Sequence[str]) -> list[int]:
    """The rows of words, without those of punctuation that touches a word."""
    return [row for row, word in enumerate(words) if JOINED not in word]


def vector_lines(words: Sequence[str], vectors: Vectors) -> Iterator[str]:
    """The lines of a file of word vectors, with the first one for its size."""
    yield f"{len(words)} {vectors.shape[1]}"
    for word, vector in zip(words, vectors, strict=True):
        yield " ".join([word, *(f"{value:.6g}" for value in vector.tolist())])


def token_vectors(words: Sequence[str], vectors: Vectors, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """The tokens [N] that are whole words, and their vectors [N, D]: the mean of those of all words that a token stands for.

    A capitalised word that is not among the words has the vector of the word itself.
    """
    known, rows_of = set(words), defaultdict[int, list[int]](list)
    both = [*enumerate(words), *((row, name) for row, word in enumerate(words) if (name := word.capitalize()) not in known)]
    for (row, _), ids in zip(both, tokenizer.encode_batch([word for _, word in both]), strict=True):
        if len(ids) == 1:
            rows_of[ids[0]].append(row)
    means = np.stack([vectors[rows].mean(0) for rows in rows_of.values()]) if rows_of else np.zeros((0, 1), np.float32)
    return torch.tensor(list(rows_of), dtype=torch.long), torch.from_numpy(means)


def token_tables(model: nn.Module, size: int) -> dict[str, nn.Parameter]:
    """The embeddings and output layers of at least `size` tokens, by name. Tied ones are named once."""
    named = {name: table for name, table in model.named_parameters() if name.endswith(TABLES) and table.size(0) >= size}
    return {name: table for name, table in named.items() if not name.endswith(POSITIONS)}


@torch.no_grad()
def place_vectors(tables: Iterable[Tensor], tokens: Tensor, vectors: Tensor) -> None:
    """Puts vectors in the rows of tokens, with the mean length that rows had.

    A table that is narrower than the vectors gets their first dimensions, which matter most in vectors that weft learns. In a
    wider one, the other dimensions stay as they are.
    """
    for table in tables:
        width = min(table.size(1), vectors.size(1))
        own = vectors[:, :width].to(table)
        length = table[:, :width].norm(dim=1).mean()
        table[tokens, :width] = own / own.norm(dim=1, keepdim=True).clamp_min(1e-9) * length
