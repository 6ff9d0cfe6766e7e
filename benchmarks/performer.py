"""Performer's error against full attention with the same weights, by the number of features and the norm of queries and keys.

The norm is that of x in exp(q·k), that is after the division of both by D^¼. The error is ‖c − c'‖ / ‖c‖ of the contexts.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import Tensor

from weft.attention.base import Attention, Site
from weft.attention.full import FullAttention
from weft.attention.performer import PerformerAttention

WIDTH = 64
NORMS = (0.5, 1.0, 2.0, 4.0)
FEATURES = (16, 64, 256, 1024, 4096)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of the sequence (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=10, help="draws of features per figure (default: %(default)s)")
    return parser


def context(part: Attention, x: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = part(x, part.init_state(rows=1), append=x).context
    return found


def error(features: int, norm: float, tokens: int, draws: int) -> float:
    """The mean over draws of the relative error. Projections are rotations, so queries and keys have the norm of x."""
    torch.manual_seed(0)
    site = Site("encoder", WIDTH)
    full = FullAttention(site, bias=False)
    with torch.no_grad():
        full.heads.query_key_value.weight.copy_(torch.cat([torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0] for _ in range(3)]))
    x = torch.nn.functional.normalize(torch.randn(1, tokens, WIDTH), dim=-1) * norm * WIDTH**0.25
    exact, errors = context(full, x), []
    for _ in range(draws):
        part = PerformerAttention(site, features=features, bias=False)
        part.load_state_dict(full.state_dict(), strict=False)
        errors.append(float((context(part, x) - exact).norm() / exact.norm()))
    return sum(errors) / draws


def main() -> None:
    options = parser().parse_args()
    found = {m: [error(m, norm, options.tokens, options.draws) for norm in NORMS] for m in FEATURES}
    print("| features m | " + " | ".join(f"norm {norm:g}" for norm in NORMS) + " |")
    print("|---:|" + "---:|" * len(NORMS))
    for m, row in found.items():
        print(f"| {m:,} | " + " | ".join(f"{value:.3f}" for value in row) + " |")
    falls = [[before / after for before, after in zip(found[a], found[b], strict=True)] for a, b in pairwise(FEATURES)]
    spans = [f"{min(each):.2f} to {max(each):.2f}" for each in zip(*falls, strict=True)]
    print("| falls by, per 4 · m (1/√m: 2) | " + " | ".join(spans) + " |")


if __name__ == "__main__":
    main()
