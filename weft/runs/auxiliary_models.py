"""Models that decoding needs besides the trained one: conversions to other precisions, rerankers, and language models."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from weft.errors import RunError
from weft.inference.decoding_options import DecodingOptions
from weft.inference.reranking import Scorer
from weft.layers.int8 import in_precision
from weft.models.base import Model, Network
from weft.models.language_model import LanguageModel
from weft.tasks.base import Ensembles, Task
from weft.tasks.language_modeling.task import LanguageModelTask


class AuxiliaryModels:
    """The models that decoding with a trained one needs. `load` loads a run onto its device. Each is made once."""

    def __init__(self, model: Network, task: Task, load: Callable[[str], Any]) -> None:
        self.model, self.task, self._load = model, task, load
        self.scorer, self.language = cache(self._open_scorer), cache(self._open_language)
        self._converted: dict[tuple[str, bool], Network] = {}
        self._fused: dict[str, Network] = {}

    def _open_scorer(self, run: str) -> Scorer:
        """The run that reranks translations."""
        other = self._load(run)
        if not hasattr(other, "translation_predictor"):
            raise RunError(f"{run}: its task, {other.config.task['kind']}, does not translate lines of text")
        scorer: Scorer = other.translation_predictor("decode.rerank", rerank="none")
        return scorer

    def _open_language(self, run: str) -> tuple[LanguageModel, int]:
        """A language model over the vocabulary of the targets, and its token for the end of a line."""
        other = self._load(run)
        if not (isinstance(other.model, LanguageModel) and isinstance(other.task, LanguageModelTask)):
            raise RunError(f"{run}: its task, {other.config.task['kind']}, is not language_model")
        if not isinstance(self.task, Ensembles) or self.task.vocabularies()[-1:] != other.task.vocabularies():
            raise RunError(f"{run}: its vocabulary differs from that of the targets; train it with data.tokenizer_of")
        return other.model, other.task.tokenizer.encode("\n")[-1]

    def decoded(self, resolved: DecodingOptions) -> Network:
        """The model in the chosen precision, fused with a language model if the options say so."""
        model = self.converted(resolved)
        if resolved.fusion is None or not isinstance(model, Model):
            return model
        key = json.dumps([resolved.precision, resolved.kernels is not None, resolved.config.fusion])
        if key not in self._fused:
            self._fused[key] = resolved.fusion(model)
        return self._fused[key]

    def converted(self, resolved: DecodingOptions) -> Network:
        """The model with its weights in the chosen precision."""
        if resolved.precision == "bf16" and not self.task.info.bf16_weights:
            return self.model
        kernels = resolved.kernels if resolved.precision == "int8" else None
        key = resolved.precision, kernels is not None
        if key not in self._converted:
            self._converted[key] = in_precision(self.model, resolved.precision, kernels)
        return self._converted[key]
