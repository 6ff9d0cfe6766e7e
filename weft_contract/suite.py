"""The list of checks: which apply to which entry, and how to run one by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from weft.attention.core import dot_product
from weft.attention.core import sparsity_patterns as patterns
from weft_contract import (
    cpp_checks,
    decoder_checks,
    decoding_state_checks,
    language_model_checks,
    masking_checks,
    mechanism_checks,
    model_entries,
    pooling_checks,
    recorded_step_checks,
)
from weft_contract.cpp_checks import plannable
from weft_contract.decoding_state_checks import Subject
from weft_contract.language_model_checks import LanguageEntry
from weft_contract.mechanism_entries import Entry, entries
from weft_contract.model_entries import DecoderEntry
from weft_contract.pooling_checks import PoolingEntry

ALL, CAUSAL, STEPWISE = ("encoder", "causal", "cross"), ("causal",), ("causal", "cross")

STATE: dict[str, Callable[[Subject], None]] = {
    "chunks": decoding_state_checks.check_chunks,
    "rows": decoding_state_checks.check_rows,
    "ragged": decoding_state_checks.check_ragged,
    "beams": decoding_state_checks.check_beams,
}

MECHANISM: dict[str, tuple[Callable[[Entry], None], tuple[str, ...]]] = {
    "padding-content": (masking_checks.check_padding_content, ALL),
    "padding-length": (masking_checks.check_padding_length, ALL),
    "future": (masking_checks.check_future, CAUSAL),
    "reach": (masking_checks.check_reach, ALL),
    "alive": (masking_checks.check_alive, ALL),
    "empty-row": (masking_checks.check_empty_row, ALL),
    "packed": (masking_checks.check_packed, ALL),
    "shapes": (mechanism_checks.check_shapes, ALL),
    "weights": (mechanism_checks.check_weights, ALL),
    "steps": (recorded_step_checks.check_steps, ALL),
    "step-weights": (mechanism_checks.check_step_weights, CAUSAL),
    "earlier-segment": (mechanism_checks.check_earlier_segment, CAUSAL),
    "gradients": (mechanism_checks.check_gradients, ALL),
    "key-order": (mechanism_checks.check_key_order, ALL),
    "extras": (mechanism_checks.check_extras, ALL),
    "pure": (mechanism_checks.check_pure, ALL),
    "checkpoint": (mechanism_checks.check_checkpoint, ALL),
    "half": (mechanism_checks.check_half, ALL),
    "half-steps": (mechanism_checks.check_half_steps, CAUSAL),
    **{name: (check, STEPWISE) for name, check in STATE.items()},
    "wide-beams": (decoding_state_checks.check_wide_beams, STEPWISE),
}
"""name → the check and the uses it applies to."""

DECODER: dict[str, Callable[[DecoderEntry], None]] = {
    **STATE,
    "wide-beams": decoding_state_checks.check_wide_beams,
    "padding": decoder_checks.check_padding,
    "causality": decoder_checks.check_causality,
    "packed": decoder_checks.check_packed,
    "rounded": decoder_checks.check_rounded,
    "loss": decoder_checks.check_loss,
    "pure": decoder_checks.check_pure,
    "half": decoder_checks.check_half,
    "native": cpp_checks.check_native,
    "steps": recorded_step_checks.check_decoder_steps,
}

LANGUAGE: dict[str, Callable[[LanguageEntry], None]] = {
    **STATE,
    "padding": language_model_checks.check_padding,
    "causality": language_model_checks.check_causality,
    "recall": language_model_checks.check_recall,
    "loss": language_model_checks.check_loss,
    "native": cpp_checks.check_native,
    "steps": recorded_step_checks.check_language_steps,
}

POOLING: dict[str, Callable[[PoolingEntry], None]] = {
    "padding": pooling_checks.check_padding,
    "alive": pooling_checks.check_alive,
    "empty-row": pooling_checks.check_empty_row,
    "weights": pooling_checks.check_weights,
    "gradients": pooling_checks.check_gradients,
    "key-order": pooling_checks.check_key_order,
    "pure": pooling_checks.check_pure,
    "half": pooling_checks.check_half,
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


def _cases(entry: Any, checks: Mapping[str, Callable[[Any], None]], **applies: bool) -> Iterator[Case]:
    """The cases of an entry. applies: whether checks apply that do not apply to all."""
    for name, check in checks.items():
        if applies.get(name.replace("-", "_"), True):
            yield f"{entry}-{name}", partial(_with_fused_kernels, check, entry)


def mechanism_cases(every: Iterable[Entry]) -> Iterator[Case]:
    """Packing is checked only if declared, and only attentions take memory when they start."""
    for entry in every:
        checks = {name: check for name, (check, uses) in MECHANISM.items() if entry.use in uses}
        yield from _cases(entry, checks, packed=entry.facts.supports_packing, earlier_segment=entry.direct)


def decoder_cases(every: Iterable[DecoderEntry]) -> Iterator[Case]:
    """All checks of models with an encoder and a decoder."""
    for entry in every:
        model = entry.make()
        chooses = str(entry).endswith(model_entries.CHOOSING)  # random choices differ between shapes
        yield from _cases(entry, DECODER, packed=model.supports_packing, rounded=not chooses, native=plannable(model))


def cross_cases(every: Iterable[DecoderEntry]) -> Iterator[Case]:
    """A few checks, which show that decoder and cross-attention fit together."""
    for entry in every:
        yield from _cases(entry, {name: DECODER[name] for name in model_entries.CROSS_CHECKS})


def pooling_cases(every: Iterable[PoolingEntry]) -> Iterator[Case]:
    for entry in every:
        yield from _cases(entry, POOLING)


def of_mechanisms(only: str | None = None) -> Iterator[Case]:
    yield from mechanism_cases(_among(entries(), only))


def of_decoders(only: str | None = None) -> Iterator[Case]:
    yield from decoder_cases(_among(model_entries.decoders(), only))
    yield from cross_cases(_among(model_entries.cross_variants(), only))


def of_language_models(only: str | None = None) -> Iterator[Case]:
    for entry in _among(language_model_checks.language_models(), only):
        yield from _cases(entry, LANGUAGE, native=plannable(entry.make()))


def of_poolings(only: str | None = None) -> Iterator[Case]:
    yield from pooling_cases(_among(pooling_checks.poolings(), only))
