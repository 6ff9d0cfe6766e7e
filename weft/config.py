"""The configuration of a run: one YAML file with the sections data, model, task, train and decode.

Strict: an unknown key is an error that names the nearest known one and its line. A run's own `config.yaml` has every
default written out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from weft.registry import Among


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, validate_assignment=True, protected_namespaces=())


class DataSection(Section):
    """Where the pairs come from and how text becomes tokens."""

    train: list[str] = Field(default=[], description="training data: 'source,target' text files, a .tsv or a .jsonl, each also .gz")
    valid: list[str] = Field(default=[], description="validation data, same forms")
    tokenizer: Annotated[dict[str, Any], Among("weft.data:TOKENIZERS")] = Field(default={"kind": "bpe"}, description="how text is cut")
    vocabulary: PositiveInt = Field(default=8000, description="size of the vocabulary (of each, if they are separate)")
    shared_vocabulary: bool = Field(default=True, description="one vocabulary for source and target")
    max_length: PositiveInt = Field(default=256, description="pairs with a side of more tokens than this are left out of training")
    max_ratio: PositiveFloat | None = Field(default=None, description="pairs whose lengths differ by more than this factor are left out")
    drop_duplicates: bool = Field(default=False, description="keep only the first of pairs that are the same")
    cache: str | None = Field(default=None, description="folder for tokenised data (by default the user's cache folder)")


class TrainSection(Section):
    """How the weights are found."""

    steps: PositiveInt = Field(default=10_000, description="optimiser steps in all")
    batch_tokens: PositiveInt = Field(default=4096, description="tokens of the longer side in one micro-batch, padding counted")
    accumulate: PositiveInt = Field(default=1, description="micro-batches to one step (over all processes: times their number)")
    packed: bool = Field(default=False, description="sentences one after the other in one row instead of padded rows")
    optimizer: Annotated[dict[str, Any], Among("weft.training:OPTIMIZERS")] = Field(default={"kind": "adamw"})
    schedule: Annotated[dict[str, Any], Among("weft.training:SCHEDULES")] = Field(default={"kind": "inverse_sqrt"})
    clip: float = Field(default=1.0, ge=0, description="largest norm of the gradient; 0 turns clipping off")
    ema: float = Field(default=0.0, ge=0, lt=1, description="decay of a moving average of the weights, used for scoring; 0: none")
    precision: Literal["float32", "bf16"] = Field(default="float32", description="bf16: autocast, the weights stay in float32")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, …")
    threads: int = Field(default=0, ge=0, description="CPU threads; 0: as many as there are cores")
    compile: bool = Field(default=False, description="torch.compile the model")
    seed: int = Field(default=1, ge=0)
    log_every: PositiveInt = Field(default=50, description="steps between lines of the log")
    validate_every: int = Field(default=500, ge=0, description="steps between validations; 0: only at the end")
    validate_bleu: bool = Field(default=True, description="decode the validation text and score it, besides the loss")
    validate_sentences: int = Field(default=500, ge=0, description="sentences decoded at a validation; 0: all of them")
    save_every: PositiveInt = Field(default=500, description="steps between checkpoints")
    keep_last: PositiveInt = Field(default=3, description="checkpoints kept besides the best")
    keep_best: bool = Field(default=True, description="keep the checkpoint with the best score, and make it the run's model")
    average_last: int = Field(default=0, ge=0, description="at the end, average this many last checkpoints into the run's model")
    best_by: Literal["bleu", "loss", "exact"] = Field(default="loss", description="what 'best' means")
    patience: int = Field(default=0, ge=0, description="stop after so many validations without a better score; 0: never")
    max_bad_steps: PositiveInt = Field(default=10, description="stop after so many steps in a row whose loss is not finite")
    tensorboard: bool = Field(default=True, description="write TensorBoard events where the package is installed")


class DecodeSection(Section):
    """How text is found when translating."""

    beam: PositiveInt = Field(default=4, description="hypotheses kept; 1: greedy")
    length_penalty: float = Field(default=1.0, description="a finished score is the log-probability divided by length to this power")
    max_length: PositiveInt = Field(default=256, description="most tokens of a translation")
    max_ratio: PositiveFloat = Field(default=3.0, description="and most tokens for each source token, 10 added")
    min_length: int = Field(default=0, ge=0)
    n_best: PositiveInt = 1
    no_repeat_ngram: int = Field(default=0, ge=0, description="no sequence of so many tokens twice; 0: off")
    sample: bool = Field(default=False, description="draw instead of search")
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=1, ge=0)
    batch_tokens: PositiveInt = Field(default=4096, description="source tokens decoded at once")
    precision: Literal["float32", "bf16"] = "float32"


class Config(Section):
    """Everything a run is made from."""

    data: DataSection = DataSection()
    model: Annotated[dict[str, Any], Among("weft.models:MODELS")] = Field(default={"kind": "transformer"})
    task: Annotated[dict[str, Any], Among("weft.tasks:TASKS")] = Field(default={"kind": "translation"})
    train: TrainSection = TrainSection()
    decode: DecodeSection = DecodeSection()
