"""Checks of recorded steps, which `weft explain --inside` shows: each follows by its formula from those before, in float64."""

from typing import Any

import numpy as np
import torch
from torch import nn

from weft.data.batch import Layout, Source
from weft.explain.inside import Inside, StepOperand, record_inside
from weft.layers.step_recorder import StepRecorder
from weft_contract.language_model_checks import LanguageEntry
from weft_contract.mechanism_entries import LENGTHS, Entry
from weft_contract.model_entries import DecoderEntry, ids

EXTENT = 9
"""Tokens of the texts that models read here."""


def check_decoder_steps(entry: DecoderEntry) -> None:
    """The steps of an encoder and a decoder, and the logits that they end with."""
    model = entry.make().double()
    with torch.no_grad(), record_inside(model) as recorder:
        encoded = model.encode(Source(ids(1, EXTENT, seed=2)))
        model.decoder(ids(1, EXTENT + 2, seed=3), model.decoder.init_state(encoded))
    _check_model(str(entry), recorder)


def check_language_steps(entry: LanguageEntry) -> None:
    """The steps of a language model."""
    model = entry.make().double()
    with torch.no_grad(), record_inside(model) as recorder:
        model.decoder.logits(model(ids(1, EXTENT, seed=3)).hidden)
    _check_model(str(entry), recorder)


def _check_model(name: str, recorder: StepRecorder) -> None:
    steps = Inside.of(recorder)
    assert steps.find("probabilities"), f"{name}: records no probabilities"
    _check_formulas(name, steps)


def _check_formulas(name: str, steps: Inside) -> None:
    for step in steps.values():
        if step.formula:
            _equal(f"{name}: {step.name}", step.recompute(), step.values)


def check_steps(entry: Entry) -> None:
    """Each recorded step follows from those before it by its formula, in float64, and the last ones are what is returned.

    A mechanism that records weights records where they come from, and the context that they give.
    """
    part, layout = entry.make(), Layout.padded(LENGTHS)
    part.part.double()
    with torch.no_grad(), record_inside(nn.ModuleDict({"part": part.part})) as recorder:
        found = part.attend(part.keys().double(), layout, need_weights=True)
    for row in range(len(LENGTHS)):
        steps = Inside.of(recorder, row=row)
        _check_formulas(str(entry), steps)
        weights = steps.find("weights")
        if found.weights is None or len(weights) != 1:
            continue
        shown = found.weights[row].squeeze(0).numpy()
        _equal(f"{entry}: weights", weights[0].values[..., -shown.shape[-2] :, -shown.shape[-1] :], shown)
        _check_origins(entry, steps, weights[0].part)
        extent, width = found.context[row].shape
        ends = [step.values[-extent:] for step in steps.values() if step.values.ndim == 2 and step.values.shape[1] == width]
        context = found.context[row].numpy()
        assert any(np.allclose(end, context, atol=1e-9) for end in ends), f"{entry}: no step is the context it returns"


def _check_origins(entry: Entry, steps: Inside, part: str) -> None:
    """An operand with the name of another step is the value of that step."""
    own = {step.title: step for step in steps.values() if step.part == part}
    for step in own.values():
        for name, operand in step.operands.items():
            if name in own and isinstance(operand, StepOperand):
                assert operand.step, f"{entry}: {step.title} reads {name} that are not those of a step"


def _equal(what: str, found: Any, expected: Any) -> None:
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9), f"{what} does not follow from its formula"
