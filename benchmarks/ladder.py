"""From an RNN and a CNN to the Transformer, one part after the other (Domhan 2018), on Multi30k en-de under one budget.

    python benchmarks/ladder.py DIR --out OUT [--seeds 2] [--at-once 8] [--minutes 9] [--only rnn-0,rnn-1] [--steps-scale 0.01]

DIR, budget and scores are those of `families.py`. The first rung has residual blocks whose self-attention is replaced by a GRU
or a convolution, without norm and feed-forward network, and attends to the source with one additive head, the RNN in its last
layer only. The published figures are BLEU on WMT 2017 en-de (table 4 there), with other data, sizes and budgets: only the
differences between the rungs can be compared.
"""

from __future__ import annotations

from families import ONE_HEAD, System, compare, parser

PARTS = {
    "heads": ("several heads", "model.cross={kind: full, bias: false}"),
    "positions": ("positions", "model.position=sinusoidal"),
    "norm": ("layer norm", "model.norm=pre"),
    "attention": ("attention in every layer", "model.cross_layers=all"),
    "network": ("feed-forward networks", "model.feedforward=768"),
}
"""The parts of a Transformer, each with the setting that adds it."""


def rungs(
    name: str, title: str, start: tuple[str, ...], parts: tuple[str, ...], published: tuple[str, ...]
) -> dict[str, System]:
    """Bare residual blocks, then with one more part on each rung."""
    recipe, bare = f"mixed-{name}", ("model.norm=none", "model.feedforward=0", *ONE_HEAD, *start)
    systems = {f"{name}-0": System(f"{title}: residual blocks alone", recipe, bare, published[0])}
    for count, part in enumerate(parts, 1):
        sets = (*bare, *(PARTS[each][1] for each in parts[:count]))
        systems[f"{name}-{count}"] = System(f"{title}: + {PARTS[part][0]}", recipe, sets, published[count])
    return systems


LADDER = {
    **rungs("rnn", "GRUs", ("model.cross_layers=last",), tuple(PARTS), ("23.2", "23.7", "23.9", "23.7", "24.5", "25.1")),
    **rungs(
        "cnn", "convolutions", ("model.position=sinusoidal",), ("norm", "heads", "network"), ("23.6", "24.3", "24.2", "25.3")
    ),
    "rnn-plain": System(
        "GRUs: the first rung without residual connections",
        "mixed-rnn",
        ("model.norm=none", "model.feedforward=0", "model.residual=false", "model.cross_layers=last", *ONE_HEAD),
    ),
    "transformer": System("Transformer, pre-norm, rotary positions", "transformer-small"),
    "transformer-2017": System("Transformer as published (Vaswani et al. 2017)", "transformer-2017", (), "25.4"),
}


def main() -> None:
    compare("ladder", LADDER, parser(__doc__).parse_args())


if __name__ == "__main__":
    main()
