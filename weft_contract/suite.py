"""The list of checks: which apply to which entry, and how to run one by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from weft.attention.core import dot_product
from weft.attention.core import sparsity_patterns as patterns
from weft_contract import crosses, decoders, facts, language, masking, models, native, poolings, stepping
from weft_contract.entries import Entry, entries
from weft_contract.language import LanguageEntry
from weft_contract.models import DecoderEntry
from weft_contract.native import plannable
from weft_contract.poolings import PoolingEntry

ALL, CAUSAL, STEPWISE = ("encoder", "causal", "cross"), ("causal",), ("causal", "cross")

MECHANISM: dict[str, tuple[Callable[[Entry], None], tuple[str, ...]]] = {
    "padding-content": (masking.check_padding_content, ALL),
    "padding-length": (masking.check_padding_length, ALL),
    "future": (masking.check_future, CAUSAL),
    "reach": (masking.check_reach, ALL),
    "alive": (masking.check_alive, ALL),
    "empty-row": (masking.check_empty_row, ALL),
    "packed": (masking.check_packed, ALL),
    "shapes": (facts.check_shapes, ALL),
    "weights": (facts.check_weights, ALL),
    "step-weights": (facts.check_step_weights, CAUSAL),
    "earlier-segment": (facts.check_earlier_segment, CAUSAL),
    "gradients": (facts.check_gradients, ALL),
    "key-order": (facts.check_key_order, ALL),
    "extras": (facts.check_extras, ALL),
    "pure": (facts.check_pure, ALL),
    "checkpoint": (facts.check_checkpoint, ALL),
    "half": (facts.check_half, ALL),
    "half-steps": (facts.check_half_steps, CAUSAL),
    "chunks": (stepping.check_chunks, STEPWISE),
    "rows": (stepping.check_rows, STEPWISE),
    "ragged": (stepping.check_ragged, STEPWISE),
    "beams": (stepping.check_beams, STEPWISE),
    "wide-beams": (stepping.check_wide_beams, STEPWISE),
}
"""name → the check and the uses it applies to."""

DECODER: dict[str, Callable[[DecoderEntry], None]] = {
    "chunks": stepping.check_chunks,
    "rows": stepping.check_rows,
    "ragged": stepping.check_ragged,
    "beams": stepping.check_beams,
    "wide-beams": stepping.check_wide_beams,
    "padding": decoders.check_padding,
    "causality": decoders.check_causality,
    "packed": decoders.check_packed,
    "rounded": decoders.check_rounded,
    "loss": decoders.check_loss,
    "pure": decoders.check_pure,
    "half": decoders.check_half,
    "native": native.check_native,
}

LANGUAGE: dict[str, Callable[[LanguageEntry], None]] = {
    "chunks": stepping.check_chunks,
    "rows": stepping.check_rows,
    "ragged": stepping.check_ragged,
    "beams": stepping.check_beams,
    "padding": language.check_padding,
    "causality": language.check_causality,
    "recall": language.check_recall,
    "loss": language.check_loss,
    "native": native.check_native,
}

POOLING: dict[str, Callable[[PoolingEntry], None]] = {
    "padding": poolings.check_padding,
    "alive": poolings.check_alive,
    "empty-row": poolings.check_empty_row,
    "weights": poolings.check_weights,
    "gradients": poolings.check_gradients,
    "key-order": poolings.check_key_order,
    "pure": poolings.check_pure,
    "half": poolings.check_half,
}

Named = TypeVar("Named")

Case = tuple[str, Callable[[], None]]
"""The name of a case, and the function that runs it."""


def _with_fused_kernels(check: Callable[[Any], None], entry: Any) -> None:
    """Runs a check as if rows were long: with fused kernels and small groups of queries. Weights still come from plain
    products.
    """
    before = dot_product.SHORT, patterns.SMALLEST
    dot_product.SHORT, patterns.SMALLEST = 0, 8
    try:
        check(entry)
    finally:
        dot_product.SHORT, patterns.SMALLEST = before


def _among(every: Iterable[Named], only: str | None) -> Iterator[Named]:
    """All entries, or those that may have the case `only`. Others are not even built."""
    return (entry for entry in every if only is None or only.startswith(f"{entry}-"))


def mechanism_cases(every: Iterable[Entry]) -> Iterator[Case]:
    """Packing is checked only if declared, and only attentions take memory when they start."""
    for entry in every:
        left_out = {name for name, asked in (("packed", entry.facts.packs), ("earlier-segment", entry.direct)) if not asked}
        for name, (check, uses) in MECHANISM.items():
            if entry.use in uses and name not in left_out:
                yield f"{entry}-{name}", partial(_with_fused_kernels, check, entry)


def decoder_cases(every: Iterable[DecoderEntry]) -> Iterator[Case]:
    """All checks of models with an encoder and a decoder."""
    for entry in every:
        model = entry.make()
        # Random choices differ between shapes.
        absent = ("packed", model.packs), ("rounded", not str(entry).endswith(models.CHOOSING)), ("native", plannable(model))
        left_out = {name for name, there in absent if not there}
        for name, check in DECODER.items():
            if name not in left_out:
                yield f"{entry}-{name}", partial(_with_fused_kernels, check, entry)


def cross_cases(every: Iterable[DecoderEntry]) -> Iterator[Case]:
    """A few checks, which show that decoder and cross-attention fit together."""
    for entry in every:
        for name in crosses.CHECKS:
            yield f"{entry}-{name}", partial(_with_fused_kernels, DECODER[name], entry)


def pooling_cases(every: Iterable[PoolingEntry]) -> Iterator[Case]:
    for entry in every:
        for name, check in POOLING.items():
            yield f"{entry}-{name}", partial(_with_fused_kernels, check, entry)


def of_mechanisms(only: str | None = None) -> Iterator[Case]:
    yield from mechanism_cases(_among(entries(), only))


def of_decoders(only: str | None = None) -> Iterator[Case]:
    yield from decoder_cases(_among(models.decoders(), only))
    yield from cross_cases(_among(crosses.crosses(), only))


def of_language_models(only: str | None = None) -> Iterator[Case]:
    for entry in _among(language.language_models(), only):
        for name, check in LANGUAGE.items():
            if name == "native" and not plannable(entry.make()):
                continue
            yield f"{entry}-{name}", partial(_with_fused_kernels, check, entry)


def of_poolings(only: str | None = None) -> Iterator[Case]:
    yield from pooling_cases(_among(poolings.poolings(), only))
