"""Bugs of models that copy."""

from __future__ import annotations

from tests.contract.planting import Bug

FORMULA = "pointer: every_word_has_the_probability_of_the_formula"

COPYING = [
    Bug(
        "a repeated word is copied from its first position only",
        "models.pointer_generator",
        "return PointerState(base, columns, (same & first[:, None]).float())",
        "return PointerState(base, columns, torch.diag_embed(first.float()))",
        (f"{FORMULA}(bahdanau, generator)", f"{FORMULA}(transformer, generator)"),
    ),
    Bug(
        "the gate is inverted",
        "models.pointer_generator",
        "(logits.logsumexp(-1) - gate)",
        "(logits.logsumexp(-1) + gate)",
        (f"{FORMULA}(bahdanau, generator)", f"{FORMULA}(luong, network)"),
    ),
    Bug(
        "copies are added to logits that were not normalised",
        "models.pointer_generator",
        "(logits.logsumexp(-1) - gate)",
        "(0 - gate)",
        (f"{FORMULA}(convs2s, generator)",),
    ),
    Bug(
        "absent words can be written",
        "models.pointer_generator",
        "both = both.masked_fill((copied == LOWEST) & (written == LOWEST), NEVER)",
        "both = both.clamp_min(-10.0)",
        (f"{FORMULA}(local-p, generator)",),
    ),
    Bug(
        "every beam copies the words of the first source",
        "models.pointer_generator",
        "spread(state.columns, mass.size(0))[:, None]",
        "state.columns[:1, None]",
        ("pointer-beams", "pointer-transformer-rows"),
    ),
    Bug(
        "a copying model loses the state of its base",
        "models.pointer_generator",
        "replace(state, base=base.state)",
        "replace(state)",
        ("pointer-chunks",),
    ),
    Bug(
        "weights are joined in half precision",
        "models.pointer_generator",
        "with torch.autocast(weights.device.type, enabled=False):",
        "with torch.autocast(weights.device.type, enabled=True):",
        ("pointer: weights_are_joined_in_full_precision()",),
    ),
]
