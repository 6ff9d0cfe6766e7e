"""Dropout masks computed from a seed inside a kernel. The backward pass recomputes them, so nothing is stored."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kept(seed, share, place):
    """Whether to keep each entry, given by its number (uint32), if a `share` of all is dropped. seed: pointer to the seed.

    Two rounds of multiplying and shifting mix the number with half of the seed each. Philox, which torch uses, takes ten rounds
    of four products.
    """
    number = tl.load(seed)
    mixed = (place ^ number.to(tl.uint32)) * 0x9E3779B1
    mixed = (mixed ^ (mixed >> 16)) * 0x21F0AAAD
    mixed = (mixed ^ (mixed >> 15) ^ (number >> 32).to(tl.uint32)) * 0x735A2D97
    mixed = (mixed ^ (mixed >> 15)) * 0x21F0AAAD
    # 24 bits, which float32 represents exactly.
    return ((mixed ^ (mixed >> 16)) >> 8).to(tl.float32) >= share * 16777216.0
