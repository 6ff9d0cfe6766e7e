"""Shortlists: a small vocabulary per sentence, with the likely translations of its source tokens.

Most of a large output layer is never used. A text depends only on the tokens of its own sentence: tokens that others bring
into the batch are forbidden to it. Shapes: V source vocabulary · K tokens for each · G sources · N tokens of a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from weft.data.corpus import Corpus, cache_folder, close_own, trusted_place
from weft.data.ibm_model_1 import Ids, likely_translations
from weft.data.tokenizers import RESERVED
from weft.errors import RunError
from weft.file_access import replace_file, why_unwritable
from weft.models.ensembles_and_wrapped_decoders import BatchVocabulary

FILE = "shortlist.safetensors"

FREQUENT = 100
"""The number of most frequent target tokens, which every text may use."""

MOST = 100
"""Target tokens kept per source token."""

PAIRS = 200_000
"""The most training pairs that are counted."""


def cached_file(run: Path) -> Path:
    """The place of the shortlist of a run that this user cannot write to."""
    name = hashlib.blake2b(str(run.absolute()).encode(), digest_size=16).hexdigest()
    return cache_folder() / "shortlists" / f"{name}.safetensors"


@dataclass(frozen=True)
class Shortlist:
    """likely [V, K]: the likely target tokens of each source token, best first, padded with −1.

    frequent: tokens that every text may use · own: whether a text may also use the tokens of its source, because both sides
    share a vocabulary.
    """

    likely: Ids
    frequent: Ids
    own: bool

    @staticmethod
    def count(corpus: Corpus, sources: int, targets: int, own: bool) -> Shortlist:
        likely, frequent = likely_translations(corpus, sources, targets, most=MOST, frequent=FREQUENT, pairs=PAIRS)
        return Shortlist(likely, frequent, own)

    def save(self, run: Path, report: Callable[[str], None]) -> Path:
        """Writes it into the folder of a run or, if that is read-only, into the user's cache."""
        if problem := why_unwritable(run):
            report(f"{run}: {problem}. The shortlist is kept in your cache, where weft finds it")
            file = self.write(trusted_place(cached_file(run)))
            close_own(file)
            return file
        return self.write(run / FILE)

    def write(self, file: Path) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, save({"likely": self.likely, "frequent": self.frequent}))
        return file

    @staticmethod
    def read(folder: Path, sources: int, targets: int, own: bool) -> Shortlist:
        """Reads the shortlist of a run whose vocabularies have `sources` and `targets` tokens, or of the user's cache."""
        kept = trusted_place(cached_file(folder))
        file = kept if kept.exists() and not (folder / FILE).exists() else folder / FILE
        what_to_do = f"make one: weft shortlist {folder}; or do without: decode.shortlist=0"
        try:
            parts = load_file(file)
            likely, frequent = parts["likely"], parts["frequent"]
        except (OSError, KeyError, SafetensorError) as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else "it cannot be read"
            raise RunError(f"{file}: {reason}, but decode.shortlist needs it; {what_to_do}") from None
        if len(likely) != sources or max(likely.max(initial=0), frequent.max(initial=0)) >= targets:
            raise RunError(f"{file}: was made for other vocabularies than those of the run; {what_to_do}")
        return Shortlist(likely, frequent, own)

    def narrow(self, given: Sequence[tuple[Sequence[int], Sequence[int]]], most: int, device: torch.device) -> BatchVocabulary:
        """The vocabulary for some sentences, given the source ids and the prefix of each: `most` tokens per source token."""
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
        return BatchVocabulary(torch.from_numpy(ids).to(device), torch.from_numpy(bias).to(device))
