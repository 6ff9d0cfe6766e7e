"""Which entries dropout keeps, drawn where they are needed: the same ones whenever it is asked, so nothing has to be stored."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kept(seed, share, place):
    """Of entries with these numbers (uint32): those that a `share` of all, which is dropped, leaves. seed: where one lies.

    A number is scrambled by two rounds of multiplying and shifting, each with half of the seed. Philox, which torch draws from,
    takes ten rounds of four products.
    """
    number = tl.load(seed)
    mixed = (place ^ number.to(tl.uint32)) * 0x9E3779B1
    mixed = (mixed ^ (mixed >> 16)) * 0x21F0AAAD
    mixed = (mixed ^ (mixed >> 15) ^ (number >> 32).to(tl.uint32)) * 0x735A2D97
    mixed = (mixed ^ (mixed >> 15)) * 0x21F0AAAD
    # 24 bits, which float32 holds.
    return ((mixed ^ (mixed >> 16)) >> 8).to(tl.float32) >= share * 16777216.0
