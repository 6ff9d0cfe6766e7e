"""Compares mechanisms with other implementations on shared weights: outputs, distance from full attention, time and memory.

    pip install --no-deps performer-pytorch linformer linear-attention-transformer local-attention einops \\
        axial-positional-embedding product-key-memory hyper-connections colt5-attention
    pip install transformers
    python benchmarks/outside.py [--length 4096] [--device cuda] [--rounds 5] [--out outside.md]

The others are called with ε = 0 where they add one to features. Packages that are not installed are skipped. Outputs are
compared in float32. The distance from full attention is ‖y − y_full‖ / ‖W v‖: softmax attention with the same projections gives
y_full, and W v are the projected values. It shows how closely untrained mechanisms approximate full attention. Time is the best
forward and backward pass in float32; memory is the peak beyond weights and input, on a GPU only. d = 512 and 8 heads. The
causal performer-pytorch keeps a matrix for every token. Longformer: 256 tokens to each side and one global token, which shares
its projections.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import timed
from torch import Tensor
from trainings import about, markdown

from weft.attention.base import Site, Use, join_heads
from weft.config.registry import build

DIM, HEADS, WIDTH = 512, 8, 64
WINDOW = 256
Run = Callable[[Tensor], Tensor]
Runs = tuple[Run, Run, Callable[[Tensor, Tensor], float]]
"""The forward passes of weft and of the other package, and the measure of their distance from full attention."""


def build_mechanism(kind: str, use: Use, device: str, **options: Any) -> tuple[Any, Run, Callable[[Tensor, Tensor], float]]:
    """The mechanism, its forward pass, and the distance of an output from full attention."""
    part = build("weft.attention:ATTENTIONS", {"kind": kind, **options}, Site(use, DIM, HEADS)).to(device)

    def distance(x: Tensor, output: Tensor) -> float:
        q, k, v = part.heads.own(x)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=use == "causal")
        full, values = (part.heads.out(join_heads(each)) for each in (found, v))
        return ((output - full).norm() / values.norm()).item()

    return part, lambda x: part(x, part.init_state(rows=x.size(0)), append=x).context, distance


def performer(use: Use, device: str) -> Runs:
    outside = importlib.import_module("performer_pytorch.performer_pytorch")
    part, mine, distance = build_mechanism("performer", use, device, features=256)

    def theirs(x: Tensor) -> Tensor:
        q, k, v = part.heads.own(x)
        omega = part.directions()
        q = outside.softmax_kernel(q, projection_matrix=omega, is_query=True, eps=0.0)
        k = outside.softmax_kernel(k, projection_matrix=omega, is_query=False, eps=0.0)
        if use == "causal":
            return part.heads.out(join_heads(outside.causal_linear_attention_noncuda(q, k, v, eps=0.0)))
        return part.heads.out(join_heads(outside.linear_attention(q, k, v)))

    return mine, theirs, distance


def linformer(length: int, device: str) -> Runs:
    outside = importlib.import_module("linformer")
    part, mine, distance = build_mechanism("linformer", "encoder", device, rank=128, max_length=length, bias=False)
    theirs = outside.LinformerSelfAttention(DIM, length, k=128, heads=HEADS).to(device)
    with torch.no_grad():
        projections = part.heads.query_key_value.weight.chunk(3)
        for layer, weight in zip((theirs.to_q, theirs.to_k, theirs.to_v), projections, strict=True):
            layer.weight.copy_(weight)
        theirs.proj_k.copy_(part.mix[0, 0].T)
        theirs.proj_v.copy_(part.mix[1, 0].T)
        theirs.to_out.weight.copy_(part.heads.out.weight)
        theirs.to_out.bias.zero_()
    return mine, theirs, distance


def efficient(device: str) -> Runs:
    outside = importlib.import_module("linear_attention_transformer.linear_attention_transformer")
    part, mine, distance = build_mechanism("efficient", "encoder", device)

    def theirs(x: Tensor) -> Tensor:
        # The other divides by √d, which the paper does not.
        return part.heads.out(join_heads(outside.linear_attn(*part.heads.own(x)) * WIDTH**0.5))

    return mine, theirs, distance


def longformer(device: str) -> Runs:
    """transformers' Longformer needs a length that is a multiple of its window, and a mask that marks the global token."""
    outside = importlib.import_module("transformers.models.longformer.modeling_longformer")
    config = importlib.import_module("transformers").LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[2 * WINDOW], attention_probs_dropout_prob=0.0
    )
    part, mine, distance = build_mechanism("longformer", "encoder", device, window=WINDOW, tokens=1, bias=True)
    other = outside.LongformerSelfAttention(config, 0).to(device)
    with torch.no_grad():
        weights, biases = part.heads.query_key_value.weight.chunk(3), part.heads.query_key_value.bias.chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            for layer in (getattr(other, name), getattr(other, f"{name}_global")):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)

    def theirs(x: Tensor) -> Tensor:
        mask = x.new_zeros(x.shape[:2])
        mask[:, 0] = 10000.0
        return part.heads.out(other(x, mask, mask < 0, mask > 0, True)[0])

    return mine, theirs, distance


def pairs(length: int, device: str) -> Iterator[tuple[str, Runs]]:
    makers: dict[str, Callable[[], Runs]] = {
        "performer, encoder, performer-pytorch": lambda: performer("encoder", device),
        "performer, causal, performer-pytorch": lambda: performer("causal", device),
        "linformer, encoder, linformer": lambda: linformer(length, device),
        "longformer, encoder, transformers": lambda: longformer(device),
        "efficient, encoder, linear-attention-transformer": lambda: efficient(device),
    }
    for name, make in makers.items():
        torch.manual_seed(0)
        try:
            yield name, make()
        except ImportError as error:
            print(f"{name}: skipped, {error}", file=sys.stderr)


def cost(run: Run, x: Tensor, rounds: int) -> tuple[float, float | None]:
    """Milliseconds of the best forward and backward pass, and the MiB that one allocates at its peak."""
    on_gpu = x.device.type == "cuda"

    def work() -> None:
        run(x).sum().backward()

    work()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
    mib = (torch.cuda.max_memory_allocated() - before) / 2**20 if on_gpu else None
    return 1e3 * min(timed(work, 1, x.device.type) for _ in range(rounds)), mib


def row(name: str, runs: Runs, x: Tensor, rounds: int) -> list[str]:
    with torch.no_grad():
        ours, other = (run(x) for run in runs[:2])
        distances = [runs[2](x, each) for each in (ours, other)]
    difference = (ours - other).abs().max().item()
    (time, memory), (their_time, their_memory) = (cost(run, x, rounds) for run in runs[:2])
    cells = [name, f"{difference:.1e}", f"{difference / other.std().item():.1e}", *(f"{each:.4f}" for each in distances)]
    cells += [f"{time:,.2f}", f"{their_time:,.2f}", f"{their_time / time:.2f}"]
    if memory is None or their_memory is None:
        return [*cells, "–", "–", "–"]
    return [*cells, f"{memory:,.0f}", f"{their_memory:,.0f}", f"{memory / their_memory:.2f}"]


HEADINGS = (
    *("mechanism, use, other", "largest difference", "relative to the standard deviation"),
    *("distance from full, weft", "distance from full, other", "weft, ms", "other, ms", "times as fast"),
    *("weft, MiB", "other, MiB", "memory relative to the other"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    x = torch.randn(1, options.length, DIM, device=options.device, requires_grad=True)
    rows = [row(name, runs, x, options.rounds) for name, runs in pairs(options.length, options.device)]
    text = f"{about()} · {options.length:,} tokens\n\n{markdown(HEADINGS, rows)}"
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
