"""Weights of a run that starts from another one, or from word vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from weft.config.sections import Config
from weft.data.batch import UNK
from weft.data.tokenizers.added_tokens import load_extended
from weft.data.word_vectors.vectors import place_vectors, read_vectors, token_tables, token_vectors
from weft.errors import ConfigError, RunError
from weft.layers.lora import ADAPTER
from weft.models.base import Network, Sizes
from weft.runs.run_folder import CONFIG, MODEL
from weft.runs.weight_files import without_ties

SHOWN = 4
"""The most names that a message lists."""


def start_weights(model: Network, config: Config, run: Path, other: Network, sizes: Sizes) -> str:
    """Copies the weights of `other`, the model that `config` starts from, that fit by name and shape, and says which.

    sizes: of its vocabularies.

    A larger vocabulary keeps the vectors of old tokens. If the model has adapters, the weights are borrowed: they are frozen,
    and saved in the other run only. Everything else is trained.
    """
    base = Path(config.start.run or "")
    if config.start.weights not in (None, weights_hash(base)):
        changed = f"have changed since {run / CONFIG} was trained from them (start.weights)"
        raise RunError(f"{base / MODEL}: the weights {changed}; restore them, or train {run} anew")
    taken = _take(model, other.state_dict(), {sizes.source, sizes.target}, cache(lambda: _moved(base, run, config, sizes)))
    if not taken.equal and not taken.longer:
        raise ConfigError(
            f"start.run: no weight of {base} fits this model; take its settings too: `weft train RECIPE --from {base}`"
        )
    if config.model["lora"] is not None:
        named = dict(model.named_parameters())
        model.borrowed = frozenset(name for name in taken.equal if name in named)
        for name in model.borrowed:
            named[name].requires_grad_(False)
    return f"from {base}: {taken.describe(model)}"


def start_vectors(model: Network, config: Config, run: Path) -> str:
    """Puts the word vectors of start.vectors in the rows of tokens that are whole words, and says how many there are."""
    file = str(config.start.vectors)
    words, vectors = read_vectors(file)
    counts, narrowest = list[str](), vectors.shape[1]
    for side, tokenizer in zip(("encoder", "decoder"), load_extended(run, config.data.tokenizer), strict=True):
        named = token_tables(model, tokenizer.size)
        tables = [table for name, table in named.items() if name.startswith("encoder.") == (side == "encoder")]
        if tables:
            tokens, found = token_vectors(words, vectors, tokenizer)
            if not (placed := int((tokens != UNK).sum())):
                raise ConfigError(f"start.vectors: no word of {file} is a token of the {side}; is it of another language?")
            place_vectors(tables, tokens, found)
            counts.append(f"{placed:,} of {tokenizer.size:,}")
            narrowest = min(narrowest, *(table.size(1) for table in tables))
    if not counts:
        raise ConfigError("start.vectors: this model has no embeddings of tokens; remove the setting")
    cut = f", their first {narrowest} of {vectors.shape[1]} dimensions" if narrowest < vectors.shape[1] else ""
    return f"from {file}: vectors of {' and '.join(dict.fromkeys(counts))} tokens{cut}"


@dataclass(frozen=True)
class _Taken:
    """Names of weights: taken as they are, taken with vectors for new tokens, and new."""

    equal: list[str]
    longer: list[str]
    new: list[str]

    def describe(self, model: Network) -> str:
        tensors = without_ties(model.state_dict())
        sizes = {name: tensor.numel() for name, tensor in tensors.items() if not name.endswith(ADAPTER)}
        new = [name for name in self.new if name in sizes]
        mine = [name for name in (*self.equal, *self.longer) if name in sizes]
        share = 100 * sum(sizes[name] for name in mine) / max(1, sum(sizes.values()))
        longer = f"; with vectors for new tokens: {_listed(self.longer)}" if self.longer else ""
        return f"{len(mine)} of {len(sizes)} weights, {share:.1f} % of the numbers{longer}" + (
            f"; new: {_listed(new)}" if new else ""
        )


@torch.no_grad()
def _take(model: Network, others: Mapping[str, Tensor], sizes: set[int], tokens: Callable[[], Mapping[str, _Moved]]) -> _Taken:
    """Copies tensors by name. A new token that the old ones do not write starts as the mean of all."""
    found = _Taken([], [], [])
    for name, tensor in model.state_dict().items():
        # A classifier reads with the decoder of a language model, as its encoder: encoder.decoder.… is decoder.…
        other = next((others[each] for each in (name, name.partition(".")[2]) if each in others), None)
        if other is not None and other.shape == tensor.shape:
            tensor.copy_(other)
            found.equal.append(name)
        elif other is not None and len(other) in sizes and len(tensor) > len(other) and tensor[0].shape == other[0].shape:
            tensor[: len(other)] = other
            tensor[len(other) :] = other.mean(0)
            moved = tokens()["encoder" if name.startswith("encoder.") else "decoder"]
            for place, ids in enumerate(moved.written, moved.first):
                tensor[place] = other[ids].mean(0) if ids else other.mean(0)
            found.longer.append(name)
        else:
            found.new.append(name)
    return found


@dataclass(frozen=True)
class _Moved:
    """For each new token from the `first` on that is not the old one of its number, the old tokens that it is written with."""

    first: int
    written: list[list[int]]


def _moved(base: Path, run: Path, config: Config, sizes: Sizes) -> dict[str, _Moved]:
    """What has moved on each side: marks lie behind all pieces of a tokenizer, and behind them what the model alone has."""
    pairs = zip(*(load_extended(folder, config.data.tokenizer) for folder in (base, run)), strict=True)
    found = {}
    for (old, new), side, size in zip(pairs, ("encoder", "decoder"), (sizes.source, sizes.target), strict=True):
        first = old.size - len(old.added)
        pieces = [old.spelled(new.piece(number)) for number in range(first, new.size - len(new.added))]
        marks = [old.tags(name) if name in old.added else [] for name in new.added]
        found[side] = _Moved(first, [*pieces, *marks, *([number] for number in range(old.size, size))])
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def weights_hash(run: Path) -> str:
    """A hash of the published weights of a run."""
    file = run / MODEL
    if not file.is_file():
        raise RunError(f"{run}: there is no {MODEL}, so nothing can start from this run yet")
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
