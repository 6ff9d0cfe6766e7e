"""A vocabulary for each sentence: only the target tokens that its source tokens are likely to lead to.

Most of a large output layer is never asked for. A text depends on its own sentence's tokens alone: those that others of its
batch bring in are forbidden to it. Shapes: V source vocabulary · K tokens for each · G sources · N tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from weft.data.cache import Corpus
from weft.data.cooccurrence import Ids, companions
from weft.data.tokenizer import RESERVED
from weft.errors import RunError

FILE = "shortlist.safetensors"

FREQUENT = 100
"""The most frequent target tokens, of which every text may use all."""

MOST = 100
"""Target tokens kept for each source token."""

PAIRS = 200_000
"""Training pairs that are looked at."""


@dataclass(frozen=True)
class Narrow:
    """The tokens of a batch: ids [N] in order, the special ones first, so that these keep their numbers.

    bias [G, N]: 0 where a sentence may use a token, −inf elsewhere.
    """

    ids: Tensor
    bias: Tensor

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        known: NDArray[np.int64] = self.ids.cpu().numpy()
        return known

    def numbers(self, tokens: Sequence[int]) -> list[int]:
        """Which of the batch's tokens these are."""
        return [int(place) for place in np.searchsorted(self._ids, np.array(tokens, np.int64))]

    def tokens(self, numbers: Sequence[int]) -> list[int]:
        """And back."""
        return [int(self._ids[number]) for number in numbers]


@dataclass(frozen=True)
class Shortlist:
    """likely [V, K]: the target tokens that go best with each source token, the best first, −1 where there are no more.

    frequent: those that every text may use · own: whether a text may use the tokens of its source, too, because both sides
    have one vocabulary.
    """

    likely: Ids
    frequent: Ids
    own: bool

    @staticmethod
    def count(corpus: Corpus, sources: int, targets: int, own: bool) -> Shortlist:
        likely, frequent = companions(corpus, sources, targets, most=MOST, frequent=FREQUENT, pairs=PAIRS)
        return Shortlist(likely, frequent, own)

    def write(self, folder: Path) -> Path:
        save_file({"likely": self.likely, "frequent": self.frequent}, folder / FILE)
        return folder / FILE

    @staticmethod
    def read(folder: Path, sources: int, targets: int, own: bool) -> Shortlist:
        """That of a run whose vocabularies have so many tokens."""
        file, what_to_do = folder / FILE, f"make one: weft shortlist {folder}; or do without: decode.shortlist=0"
        try:
            parts = load_file(file)
            likely, frequent = parts["likely"], parts["frequent"]
        except (OSError, KeyError, SafetensorError) as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else "it cannot be read"
            raise RunError(f"{file}: {reason}, and decode.shortlist asks for it; {what_to_do}") from None
        if len(likely) != sources or max(likely.max(initial=0), frequent.max(initial=0)) >= targets:
            raise RunError(f"{file}: made for other vocabularies than those of the run; {what_to_do}")
        return Shortlist(likely, frequent, own)

    def narrow(self, given: Sequence[tuple[Sequence[int], Sequence[int]]], most: int, device: torch.device) -> Narrow:
        """The tokens for some sentences, given the source ids and the forced beginning of each: `most` for a source token."""
        always = np.concatenate([np.arange(RESERVED), self.frequent])
        each = []
        for text, prefix in given:
            own = np.unique(np.array(text, np.int64))
            said = [always, self.likely[own, :most].ravel(), np.array(prefix, np.int64), *([own] if self.own else [])]
            tokens = np.unique(np.concatenate(said))
            each.append(tokens[tokens >= 0])
        ids = np.unique(np.concatenate(each))
        bias = np.full((len(each), len(ids)), -np.inf, np.float32)
        for row, tokens in enumerate(each):
            bias[row, np.searchsorted(ids, tokens)] = 0.0
        return Narrow(torch.from_numpy(ids).to(device), torch.from_numpy(bias).to(device))
