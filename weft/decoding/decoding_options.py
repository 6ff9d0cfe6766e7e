"""Resolves decoding options for a device, once, into a value that everybody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from weft.config.overrides import Override, apply_overrides
from weft.config.registry import build, problems
from weft.config.sections import DecodeSection
from weft.data.batch import EOS
from weft.decoding.cpp_search import prepare
from weft.decoding.cuda_graph_search import CapturedStepRunner, search_graphs_of
from weft.decoding.generate import GenerationRequest
from weft.decoding.search_methods import Search
from weft.errors import ConfigError
from weft.layers.kernels.cpp import CannotBuild, Kernels, kernels, using
from weft.layers.kernels.cuda_graph_capture import Compiler
from weft.models.base import Model

if TYPE_CHECKING:
    from weft.decoding.reranking import OpenScorer, Rerank
    from weft.decoding.shallow_fusion import OpenLanguage, ShallowFusion

TOKENS, MOST = 4096, 32768
"""Source tokens per batch on a CPU, where larger batches are not faster; the most on a GPU, which is then busy."""

Warn = Callable[[str], None]
"""Receives warnings about inputs and settings."""


FAST: dict[str, tuple[dict[str, Any], str]] = {
    "cpu": ({"compile": True}, "compiled C++ kernels"),
    "cuda": ({}, "nothing changes, since the settings for a GPU are already the fastest that keep the texts"),
}
"""Settings of decode.fast by kind of device, and how to say it. int8 and shortlists change more than 1 % of the texts."""


@dataclass(frozen=True)
class DecodingOptions:
    """Decoding options with nothing left to decide: the configuration as written, and its parts and `auto` values resolved.

    batch_tokens: source tokens per batch, over all workers · kernels: compiled CPU operations, if they are used.
    """

    config: DecodeSection
    device: torch.device
    precision: str
    workers: int
    batch_tokens: int
    search: Search
    rerank: Rerank | None = None
    fusion: ShallowFusion | None = None
    kernels: Kernels | None = None

    @property
    def candidates(self) -> int:
        """Texts per source that the search has to find."""
        return self.config.n_best if self.rerank is None else max(self.config.n_best, self.rerank.candidates)

    @property
    def beams(self) -> int:
        """Hypotheses per source that compete with each other; 1 if none do."""
        return 1 if self.search.final(self.candidates) else self.search.width(self.candidates)

    def request(self, sizes: Sequence[int]) -> GenerationRequest:
        """The request for texts of sources with these numbers of tokens."""
        config = self.config
        return GenerationRequest(
            self.search,
            [min(config.max_length, int(config.max_ratio * size) + 10) for size in sizes],
            min_tokens=config.min_length,
            n_best=self.candidates,
            no_repeat_ngram=config.no_repeat_ngram,
        )

    def runner(self, model: Model, warn: Callable[[str], None] = lambda message: None) -> CapturedStepRunner | None:
        """Captures the searches of this model with these options, on a CUDA device."""
        graphs = search_graphs_of(model)
        if graphs is None:
            return None
        return graphs.runner(self.config.model_dump_json(), Compiler(warn) if self.config.compile else None)

    def check_decoder(self, model: Model, warn: Callable[[str], None], *, narrow: bool = False) -> None:
        """Raises ConfigError if the search cannot work with the decoder of this model; prepares the decoder if it can.

        narrow: a shortlist is used, so the output layer must allow it.
        """
        self.search.wrap_decoder(model.decoder)
        if self.kernels is not None:
            prepare(model.decoder, warn)
        self.search.check([*["n_best"] * (self.config.n_best > 1), *["shortlist"] * narrow])
        if narrow:
            model.decoder.among(torch.tensor([EOS], device=model.device))

    def autocasts(self, weights: torch.dtype, beams: int = 1) -> bool:
        """Whether autocast to bf16 is needed, for weights of this type; `beams`: competing hypotheses per source."""
        if self.precision == "int8" and self.kernels is None and beams > 1:
            # Only the products of attention are left. With several beams, a CPU that has bf16 computes them faster in it.
            return torch.cpu._is_avx512_bf16_supported()
        return self.precision == "bf16" and weights == torch.float32

    @contextmanager
    def arithmetic(self, weights: torch.dtype, beams: int = 1) -> Iterator[None]:
        """Inference in the chosen precision; the arguments are those of `autocasts`.

        Autocast keeps no converted weights: in training they would have no gradient, and a recorded search would go on reading
        them after the weights have changed. From torch 2.11 on, it keeps none in inference mode anyway.
        """
        enabled, kind = self.autocasts(weights, beams), self.device.type
        half: AbstractContextManager[object] = nullcontext()
        if enabled or torch.is_autocast_enabled(kind):
            half = torch.autocast(kind, torch.bfloat16, enabled=enabled, cache_enabled=False)
        with torch.inference_mode(), half, using(self.kernels):
            yield


def resolve_options(
    section: DecodeSection,
    device: torch.device,
    *,
    auto_workers: int = 1,
    warn: Callable[[str], None] = lambda message: None,
    open_scorer: OpenScorer | None = None,
    open_language: OpenLanguage | None = None,
) -> DecodingOptions:
    """The options of `section` on `device`.

    auto_workers: the number of workers on a CPU if the section says auto · open_scorer: opens the run of `rerank: model` ·
    open_language: opens that of `fusion: shallow`.
    """
    section = _fast(section, device, warn) if section.fast else section
    cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if cuda else 0
    tokens = max(TOKENS, min(MOST, (memory >> 30) * 512)) if section.batch_tokens == "auto" else section.batch_tokens
    workers = auto_workers if section.workers == "auto" else section.workers
    search = build("weft.decoding:SEARCHES", section.search, where="decode.search")
    rerank = build("weft.decoding:RERANKS", section.rerank, open_scorer, where="decode.rerank")
    if rerank is not None:
        search.check(["n_best"])
    return DecodingOptions(
        section,
        device,
        precision=("bf16" if cuda else "float32") if section.precision == "auto" else section.precision,
        workers=1 if cuda else workers,
        batch_tokens=tokens,
        search=search,
        rerank=rerank,
        fusion=build("weft.decoding:FUSIONS", section.fusion, open_language, where="decode.fusion"),
        kernels=_kernels(section, device, warn),
    )


def _fast(section: DecodeSection, device: torch.device, warn: Callable[[str], None]) -> DecodeSection:
    """The section with everything that decode.fast stands for on this device."""
    settings, text = FAST.get(device.type, ({}, "nothing changes on this device"))
    warn(f"decode.fast: {text}")
    return section.model_copy(update=settings)


def _kernels(section: DecodeSection, device: torch.device, warn: Callable[[str], None]) -> Kernels | None:
    """The compiled operations of a CPU, if decode.compile is set and they can be built."""
    if not section.compile or device.type != "cpu":
        return None
    try:
        return kernels()
    except CannotBuild as error:
        warn(f"decode.compile: decoding goes on without compiled kernels: {error}")
        return None


def changed(section: DecodeSection, options: Mapping[str, Any]) -> DecodeSection:
    """The section with these options changed. Keys may be dotted (search.width) or shorthands (beam)."""
    data: dict[str, Any] = {"decode": section.model_dump()}
    overrides = [Override(("decode", *key.split(".")), value, f"decode.{key}") for key, value in options.items()]
    written = apply_overrides(data, overrides)
    try:
        return DecodeSection(**data["decode"])
    except ValidationError as error:
        wrong = [(("decode", *path), text) for path, text in problems(error, DecodeSection, data["decode"])]
        raise ConfigError("; ".join(f"{'.'.join(written.get(path, path))}: {text}" for path, text in wrong)) from None
