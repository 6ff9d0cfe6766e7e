"""Settings of a run that starts from another one, or from word vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.config.sections import Config
from weft.data.text_lines import check_file
from weft.errors import ConfigError
from weft.runs.open_run import run_config
from weft.runs.warm_start_weights import weights_hash

TOKENS = ("data.tokenizer", "data.vocabulary", "data.shared_vocabulary")
"""Settings that belong to the tokenizers of a run."""

FILES = ("data.train", "data.valid", "data.hold_out", "data.temperature")
"""Settings that name data. A recipe that names none is trained on the data of the run it starts from."""


def inherited(run: Path, config: Config, *, new_data: bool = False) -> dict[str, Any]:
    """The settings, by path, that `config` gets from the run it starts from: its model and its tokenizers.

    new_data: other data is given for training, so the run's own is not taken, for validation neither.
    Adapters are those of `config`, because those of the run are merged with its weights.
    """
    base = run_config(run).absolute().model_dump()
    files = [path for path in FILES if not (new_data and path in ("data.train", "data.valid"))]
    paths = (*TOKENS, *(files if not config.data.train else ()))
    taken = {path: base["data"][path.partition(".")[2]] for path in paths}
    extended = config.start.weights is not None  # then `config` is that of a trained run
    start = {"run": str(run.absolute()), "extend": 0 if extended else config.start.extend}
    return {**taken, "data.tokenizer_of": None, "model": {**base["model"], "lora": config.model["lora"]}, "start": start}


def check_start(config: Config) -> Config:
    """`config` with the hash of the weights it starts from, and the ranks of its adapters. Raises an error if it cannot start
    there."""
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
