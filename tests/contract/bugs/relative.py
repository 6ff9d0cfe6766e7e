"""Bugs of Transformer-XL's attention."""

from __future__ import annotations

from tests.contract.planting import Bug

RELATIVE = [
    Bug(
        "rows are shifted one position too far",
        "attention.transformer_xl",
        "[..., extent - 1 : extent - 1 + extent * (count - 1)]",
        "[..., extent - 2 : extent - 2 + extent * (count - 1)]",
        ("xl_relative: it_is_the_equation_of_the_paper_pair_by_pair(causal)",),
    ),
    Bug(
        "steps negate the distance",
        "attention.transformer_xl",
        "place = (away + keys - 1)",
        "place = (keys - 1 - away)",
        ("xl_relative-causal-chunks", "xl_relative-causal-earlier-segment"),
    ),
    Bug(
        "content and distance share one bias",
        "attention.transformer_xl",
        "shifted = (q + self.distance_bias",
        "shifted = (q + self.content_bias",
        ("xl_relative: it_is_the_equation_of_the_paper_pair_by_pair(encoder)", "xl_relative-encoder-gradients"),
    ),
    Bug(
        "distances are not scaled",
        "attention.transformer_xl",
        ") / math.sqrt(q.size(-1))",
        ") / math.sqrt(1)",
        ("xl_relative: it_is_the_equation_of_the_paper_pair_by_pair(causal)",),
    ),
    Bug(
        "rows after an earlier segment count as whole",
        "attention.core.relative_positions",
        "store.segments is None or (whole and",
        "store.segments is not None or (whole and",
        ("xl_relative-causal-earlier-segment",),
    ),
]
