"""Warm start: a run that starts from another one (start.run) or from word vectors (start.vectors).

`started_config` loads its settings, `resolve_start` checks them, and `start_model` gives its model the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.config.sections import Config, load_config
from weft.data.batch import UNK
from weft.data.text_lines import check_file
from weft.data.tokenizers.added_tokens import load_extended
from weft.data.word_vectors.vectors import place_vectors, read_vectors, token_tables, token_vectors
from weft.errors import ConfigError, RunError
from weft.layers.lora import ADAPTER
from weft.models.base import Network, Sizes
from weft.runs.contextual_vectors import resolve_contextual, start_contextual
from weft.runs.open_run import open_run, run_config
from weft.runs.run_folder import CONFIG, MODEL, weights_hash
from weft.runs.weight_files import without_ties

TOKENS = ("data.tokenizer", "data.vocabulary", "data.shared_vocabulary")
"""Settings that belong to the tokenizers of a run."""

FILES = ("data.train", "data.valid", "data.hold_out", "data.temperature")
"""Settings that name data. A recipe that names none is trained on the data of the run it starts from."""

SHOWN = 4
"""The most names that a message lists."""


def started_config(
    run: Path, recipe: str | Path | None, sets: Sequence[str] = (), *, new_data: bool, new_valid: bool = False
) -> Config:
    """The configuration of a run that starts from `run`: with its model and tokenizers, and the rest of the recipe.

    recipe: None is the configuration of `run` itself; the kind of batches is then chosen anew, for another task or device.
    new_data: other data is given for training, so the run's own is not taken, for validation neither.
    new_valid: other data is given for validation, so nothing is held out because the run did.
    """
    base = run_config(run)
    if recipe is not None:
        return load_config(recipe, sets, over=_inherited(run, base, load_config(recipe), new_data, new_valid))
    over: dict[str, Any] = {"train.packed": "auto", "train.rounded": "auto", "train.seconds": 0, "train.budget": "steps"}
    over |= {"data.train": [], "data.valid": [], "data.teacher": None} if new_data else {}
    return load_config(run / CONFIG, sets, over=_inherited(run, base, base, new_data, new_valid) | over)


def _inherited(run: Path, base: Config, config: Config, new_data: bool, new_valid: bool) -> dict[str, Any]:
    """The settings, by path, that `config` gets from the run it starts from, whose configuration is `base`.

    Adapters are those of `config`, because those of the run are merged with its weights.
    """
    theirs = base.absolute().model_dump()
    files = [path for path in FILES if not (new_data and path in ("data.train", "data.valid"))]
    paths = (*TOKENS, *(files if not config.data.train else ()))
    taken = {path: theirs["data"][path.partition(".")[2]] for path in paths}
    extended = config.start.weights is not None  # then `config` is that of a trained run
    start = {"run": str(run.absolute()), "extend": 0 if extended else config.start.extend}
    if new_valid and (config is base or not config.data.train):
        taken["data.hold_out"] = 0
    return {**taken, "data.tokenizer_of": None, "model": {**theirs["model"], "lora": config.model["lora"]}, "start": start}


def starts_with_a_model(config: Config) -> bool:
    """Whether a run starts with weights that were trained for its task, so that they can be scored before the first step."""
    if config.start.run is None or not config.data.validates:
        return False
    return bool(run_config(Path(config.start.run)).task["kind"] == config.task["kind"])


def resolve_start(config: Config) -> Config:
    """`config` with the hash of the weights it starts from and the ranks of its adapters.

    Raises ConfigError or RunError if it cannot start there.
    """
    config = resolve_contextual(config)
    if config.start.vectors:
        _check_vectors(config)
    if config.start.run is None:
        if config.start.extend and not config.start.vectors:
            raise ConfigError(
                "start.extend: there is no vocabulary to add tokens to; name a run with --from RUN (start.run) or a file of "
                "word vectors (start.vectors), or set data.vocabulary"
            )
        if config.model["lora"] is not None:
            raise ConfigError("model.lora: adapters change the weights of a trained run; name it with --from RUN (start.run)")
        return config
    base = Path(config.start.run)
    if config.data.tokenizer_of:
        raise ConfigError(f"data.tokenizer_of: a run that starts from {base} has the tokenizers of that run; remove it")
    theirs, ours = run_config(base).model_dump()["data"], config.model_dump()["data"]
    for path in TOKENS:
        key = path.partition(".")[2]
        if theirs[key] != ours[key]:
            raise ConfigError(
                f"{path}: {ours[key]} differs from that of {base}, {theirs[key]}, whose tokens the weights belong to; take it "
                f"from there with `weft train RECIPE --from {base}` (start.extend adds tokens)"
            )
    return config.replaced({"start.weights": weights_hash(base), **_embedding_rank(config)})


def _check_vectors(config: Config) -> None:
    check_file(str(config.start.vectors))
    if config.start.run:
        raise ConfigError(f"start.vectors: the embeddings are those of start.run, {config.start.run}; remove one of the two")
    if config.start.extend and config.data.tokenizer_of:
        raise ConfigError("start.extend: the tokenizers are those of data.tokenizer_of, which get no more words; set it to 0")


def _embedding_rank(config: Config) -> dict[str, int]:
    """Replaces auto in model.lora.embedding_rank. A vocabulary that grows has embeddings that are trained themselves."""
    lora = config.model["lora"]
    if lora is None or lora["embedding_rank"] != "auto":
        return {}
    return {"model.lora.embedding_rank": 0 if config.start.extend else lora["rank"]}


def start_model(model: Network, config: Config, run: Path, *, begins: bool) -> list[str]:
    """Gives the model of `run` what it starts from, and says what it took.

    begins: there is no checkpoint yet. A checkpoint has all weights but those that adapters borrow.
    """
    notes = start_contextual(model, config) if begins else []
    if config.start.run and (begins or config.model["lora"]):
        notes.append(start_from_base(model, config, run))
    if config.start.vectors and begins:
        notes.append(_start_vectors(model, config, run))
    return notes


def start_from_base(model: Network, config: Config, run: Path) -> str:
    """Copies the weights of the run that `config` starts from, those that fit by name and shape, and says which.

    A larger vocabulary keeps the vectors of old tokens. If the model has adapters, the weights are borrowed: they are frozen,
    and saved in the other run only. Everything else is trained.
    """
    base = Path(config.start.run or "")
    other = open_run(base)
    if config.start.weights not in (None, weights_hash(base)):
        changed = f"have changed since {run / CONFIG} was trained from them (start.weights)"
        raise RunError(f"{base / MODEL}: the weights {changed}; restore them, or train {run} anew")
    sizes = other.sizes
    moved = cache(lambda: _moved_tokens(base, run, config, sizes))
    copied = _copy_fitting(model, other.model.state_dict(), {sizes.source, sizes.target}, moved)
    if not copied.equal and not copied.extended:
        raise ConfigError(
            f"start.run: no weight of {base} fits this model; take its settings too: `weft train RECIPE --from {base}`"
        )
    if config.model["lora"] is not None:
        named = dict(model.named_parameters())
        model.borrowed = frozenset(name for name in copied.equal if name in named)
        for name in model.borrowed:
            named[name].requires_grad_(False)
    return f"from {base}: {copied.describe(model)}"


def _start_vectors(model: Network, config: Config, run: Path) -> str:
    """Puts the word vectors of start.vectors in the rows of tokens that are whole words, and says how many there are."""
    file = str(config.start.vectors)
    words, vectors = read_vectors(file)
    counts, narrowest = list[str](), vectors.shape[1]
    for side, tokenizer in zip(("encoder", "decoder"), load_extended(run, config.data.tokenizer), strict=True):
        named = token_tables(model, tokenizer.size)
        tables = [table for name, table in named.items() if name.startswith("encoder.") == (side == "encoder")]
        if tables:
            tokens, rows = token_vectors(words, vectors, tokenizer)
            if not (placed := int((tokens != UNK).sum())):
                raise ConfigError(f"start.vectors: no word of {file} is a token of the {side}; is it of another language?")
            place_vectors(tables, tokens, rows)
            counts.append(f"{placed:,} of {tokenizer.size:,}")
            narrowest = min(narrowest, *(table.size(1) for table in tables))
    if not counts:
        raise ConfigError("start.vectors: this model has no embeddings of tokens; remove the setting")
    cut = f", their first {narrowest} of {vectors.shape[1]} dimensions" if narrowest < vectors.shape[1] else ""
    return f"from {file}: vectors of {' and '.join(dict.fromkeys(counts))} tokens{cut}"


@dataclass(frozen=True)
class _CopiedWeights:
    """Names of weights: taken as they are, taken with vectors for new tokens, and new."""

    equal: list[str]
    extended: list[str]
    new: list[str]

    def describe(self, model: Network) -> str:
        tensors = without_ties(model.state_dict())
        sizes = {name: tensor.numel() for name, tensor in tensors.items() if not name.endswith(ADAPTER)}
        new = [name for name in self.new if name in sizes]
        mine = [name for name in (*self.equal, *self.extended) if name in sizes]
        share = 100 * sum(sizes[name] for name in mine) / max(1, sum(sizes.values()))
        longer = f"; with vectors for new tokens: {_listed(self.extended)}" if self.extended else ""
        return f"{len(mine)} of {len(sizes)} weights, {share:.1f} % of the numbers{longer}" + (
            f"; new: {_listed(new)}" if new else ""
        )


@torch.no_grad()
def _copy_fitting(
    model: Network, others: Mapping[str, Tensor], sizes: set[int], tokens: Callable[[], Mapping[str, _MovedTokens]]
) -> _CopiedWeights:
    """Copies tensors by name. A new token that the old ones do not write starts as the mean of all."""
    copied = _CopiedWeights([], [], [])
    for name, tensor in model.state_dict().items():
        # A classifier reads with the decoder of a language model, as its encoder: encoder.decoder.… is decoder.…
        other = next((others[each] for each in (name, name.partition(".")[2]) if each in others), None)
        if other is not None and other.shape == tensor.shape:
            tensor.copy_(other)
            copied.equal.append(name)
        elif other is not None and len(other) in sizes and len(tensor) > len(other) and tensor[0].shape == other[0].shape:
            tensor[: len(other)] = other
            tensor[len(other) :] = other.mean(0)
            moved = tokens()["encoder" if name.startswith("encoder.") else "decoder"]
            for place, ids in enumerate(moved.written, moved.first):
                tensor[place] = other[ids].mean(0) if ids else other.mean(0)
            copied.extended.append(name)
        else:
            copied.new.append(name)
    return copied


@dataclass(frozen=True)
class _MovedTokens:
    """For each new token from the `first` on that is not the old one of its number, the old tokens that it is written with."""

    first: int
    written: list[list[int]]


def _moved_tokens(base: Path, run: Path, config: Config, sizes: Sizes) -> dict[str, _MovedTokens]:
    """The tokens that have moved on each side: added ones lie behind all pieces, and behind them what the model alone has."""
    pairs = zip(*(load_extended(folder, config.data.tokenizer) for folder in (base, run)), strict=True)
    moved = {}
    for (old, new), side, size in zip(pairs, ("encoder", "decoder"), (sizes.source, sizes.target), strict=True):
        first = old.size - len(old.added)
        pieces = [old.spelled(new.piece(number)) for number in range(first, new.size - len(new.added))]
        added = [old.tags(name) if name in old.added else [] for name in new.added]
        moved[side] = _MovedTokens(first, [*pieces, *added, *([number] for number in range(old.size, size))])
    return moved


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
