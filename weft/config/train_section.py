"""The sections of a configuration that say how a run is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from weft.config.registry import Among, Options, expand

Part = dict[str, Any]
"""The options of a part, with its kind."""


class Section(Options):
    """A section of the configuration."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return expand(cls, data)


class StartSection(Section):
    """The run, or the word vectors, that training starts from."""

    run: str | None = Field(default=None, description="run whose tokenizers and weights a new run starts from; null: none")
    weights: str | None = Field(default=None, description="hash of the weights that were taken from it; set by weft train")
    extend: int = Field(
        default=0,
        ge=0,
        description="tokens to add to its vocabulary; each starts as the mean of those it was written with. With vectors: "
        "words of that file to add to the vocabulary",
    )
    vectors: str | None = Field(
        default=None,
        description="file of word vectors, in the text format of word2vec, GloVe and fastText, that embeddings start with; "
        "null: none",
    )


class TrainSection(Section):
    """Optimisation, validation and checkpoints."""

    steps: PositiveInt = Field(default=10_000, description="number of optimiser steps")
    seconds: float = Field(default=0.0, ge=0, description="stop after this many seconds; 0: no limit")
    batch_tokens: PositiveInt = Field(default=4096, description="tokens per micro-batch on the longer side, including padding")
    accumulate: PositiveInt = Field(default=1, description="micro-batches per step, a multiple of the number of processes")
    packed: bool | Literal["auto"] = Field(
        default="auto", description="concatenate sentences instead of padding; auto: on a GPU in bf16, if the model supports it"
    )
    rounded: bool | Literal["auto"] = Field(
        default="auto",
        description="pad to a few fixed sizes and replay CUDA graphs; auto: on a GPU in bf16, if supported and not packed",
    )
    optimizer: Annotated[Part, Among("weft.training:OPTIMIZERS")] = Field(default={"kind": "adamw"}, description="optimiser")
    schedule: Annotated[Part, Among("weft.training:SCHEDULES")] = Field(
        default={"kind": "inverse_sqrt"}, description="learning rate schedule"
    )
    freeze: list[str] = Field(
        default=[], description="weights that stay as they are, by patterns of their names: ['encoder.*', '*.norm.*']"
    )
    layer_factor: float = Field(
        default=1.0,
        ge=1,
        description="rate of each layer divided by that of the layer below it; Howard & Ruder 2018: 2.6",
    )
    unfreeze_every: int = Field(
        default=0, ge=0, description="train the highest layer first, and one more layer after this many steps; 0: all at once"
    )
    clip: float = Field(default=1.0, ge=0, description="maximum gradient norm; 0: no clipping")
    ema: float = Field(default=0.0, ge=0, lt=1, description="decay of a moving average of the weights; 0: none")
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="bf16: autocast with float32 weights; float32 on CPUs without bf16"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, …")
    threads: int = Field(default=0, ge=0, description="number of CPU threads; 0: one per core")
    compile: bool | Literal["auto"] = Field(
        default="auto",
        description="torch.compile the model; auto: for packed Transformers with full attention and ≥ 30M weights on a GPU",
    )
    seed: int = Field(default=1, ge=0, lt=1 << 63, description="random seed of initial weights, data order and dropout")
    log_every: PositiveInt = Field(default=50, description="steps between log lines")
    validate_every: int = Field(default=500, ge=0, description="steps between validations; 0: only at the end")
    validate_bleu: bool = Field(default=True, description="also decode the validation data and score the output")
    validate_sentences: int = Field(default=500, ge=0, description="sentences to decode per validation; 0: all")
    tokenize: str = Field(
        default="auto",
        description="sacreBLEU's tokenizer for BLEU: 13a, zh, ja-mecab, char, …; auto: by data.target_language, else by script",
    )
    save_every: PositiveInt = Field(default=500, description="steps between checkpoints")
    keep_last: PositiveInt = Field(default=3, description="checkpoints to keep besides the best one")
    keep_best: bool = Field(default=True, description="keep the best checkpoint and publish it as the run's model")
    average_last: int = Field(default=0, ge=0, description="publish the average of this many checkpoints; 0: none")
    best_by: str = Field(default="loss", description="metric that decides which checkpoint is best, one that the task declares")
    patience: int = Field(default=0, ge=0, description="stop after this many validations without improvement; 0: never")
    max_bad_steps: PositiveInt = Field(default=10, description="stop after this many consecutive steps with a non-finite loss")
    tensorboard: bool = Field(default=True, description="write TensorBoard events if the package is installed")
