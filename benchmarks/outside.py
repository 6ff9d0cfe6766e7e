"""Compares mechanisms with other implementations on shared weights: the largest difference of outputs, and both times.

    pip install --no-deps performer-pytorch linformer linear-attention-transformer local-attention einops \\
        axial-positional-embedding product-key-memory hyper-connections colt5-attention
    python benchmarks/outside.py [--length 2048] [--device cpu]

The others are called with ε = 0 where they add one to features. Packages that are not installed are skipped. Forward and
backward in float32, the best of three rounds, d = 512 and 8 heads. The causal performer-pytorch keeps a matrix for every token.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from timing import timed
from torch import Tensor

import weft
from weft.attention.base import Site, Use, join_heads
from weft.config.registry import build

DIM, HEADS, WIDTH = 512, 8, 64
Run = Callable[[Tensor], Tensor]


def build_mechanism(kind: str, use: Use, device: str, **options: Any) -> tuple[Any, Run]:
    part = build("weft.attention:ATTENTIONS", {"kind": kind, **options}, Site(use, DIM, HEADS)).to(device)
    return part, lambda x: part(x, part.start(rows=x.size(0)), append=x).context


def performer(use: Use, device: str) -> tuple[Run, Run]:
    """The forward passes of weft and of the other package; the functions below do the same for other mechanisms."""
    outside = importlib.import_module("performer_pytorch.performer_pytorch")
    part, mine = build_mechanism("performer", use, device, features=256)

    def theirs(x: Tensor) -> Tensor:
        q, k, v = part.heads.own(x)
        omega = part.directions()
        q = outside.softmax_kernel(q, projection_matrix=omega, is_query=True, eps=0.0)
        k = outside.softmax_kernel(k, projection_matrix=omega, is_query=False, eps=0.0)
        if use == "causal":
            return part.heads.out(join_heads(outside.causal_linear_attention_noncuda(q, k, v, eps=0.0)))
        return part.heads.out(join_heads(outside.linear_attention(q, k, v)))

    return mine, theirs


def linformer(length: int, device: str) -> tuple[Run, Run]:
    outside = importlib.import_module("linformer")
    part, mine = build_mechanism("linformer", "encoder", device, rank=128, max_length=length, bias=False)
    theirs = outside.LinformerSelfAttention(DIM, length, k=128, heads=HEADS).to(device)
    with torch.no_grad():
        projections = part.heads.query_key_value.weight.chunk(3)
        for layer, weight in zip((theirs.to_q, theirs.to_k, theirs.to_v), projections, strict=True):
            layer.weight.copy_(weight)
        theirs.proj_k.copy_(part.mix[0, 0].T)
        theirs.proj_v.copy_(part.mix[1, 0].T)
        theirs.to_out.weight.copy_(part.heads.out.weight)
        theirs.to_out.bias.zero_()
    return mine, theirs


def efficient(device: str) -> tuple[Run, Run]:
    outside = importlib.import_module("linear_attention_transformer.linear_attention_transformer")
    part, mine = build_mechanism("efficient", "encoder", device)

    def theirs(x: Tensor) -> Tensor:
        # The other divides by √d, which the paper does not.
        return part.heads.out(join_heads(outside.linear_attn(*part.heads.own(x)) * WIDTH**0.5))

    return mine, theirs


def pairs(length: int, device: str) -> Iterator[tuple[str, Run, Run]]:
    makers: dict[str, Callable[[], tuple[Run, Run]]] = {
        "performer, encoder, performer-pytorch": lambda: performer("encoder", device),
        "performer, causal, performer-pytorch": lambda: performer("causal", device),
        "linformer, encoder, linformer": lambda: linformer(length, device),
        "efficient, encoder, linear-attention-transformer": lambda: efficient(device),
    }
    for name, make in makers.items():
        torch.manual_seed(0)
        try:
            yield name, *make()
        except ImportError as error:
            print(f"{name}: skipped, {error}", file=sys.stderr)


def seconds(run: Run, x: Tensor) -> float:
    """The best of three forward and backward passes."""
    return min(timed(lambda: run(x).sum().backward(), 1, x.device.type) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    x = torch.randn(1, options.length, DIM, device=options.device, requires_grad=True)
    print(f"{time.strftime('%Y-%m-%d')} · torch {torch.__version__} · weft {weft.__version__} · {options.length:,} tokens\n")
    print("| mechanism, use, other | largest difference | relative to the standard deviation | weft, ms | other, ms |")
    print("|---|---:|---:|---:|---:|")
    for name, mine, theirs in pairs(options.length, options.device):
        with torch.no_grad():
            ours, other = mine(x), theirs(x)
        difference = (ours - other).abs().max().item()
        times = [f"{seconds(run, x) * 1e3:,.0f}" for run in (mine, theirs)]
        print(f"| {name} | {difference:.1e} | {difference / other.std().item():.1e} | {' | '.join(times)} |")


if __name__ == "__main__":
    main()
