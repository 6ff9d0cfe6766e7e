"""Operations for decoding on a CPU that torch has no fast ones for, compiled where there is a compiler.

Each does in one go what is several operations of torch, and what a row gives depends on that row alone. They serve float32 on a
CPU, and only where gradients are nobody's concern: inside `using`.

Shape letters: N rows · I inputs · O outputs · G sources · K beams · B = G·K · H heads · R room · S keys · D width of a head.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.cpp.build import CannotBuild, library

__all__ = ["CannotBuild", "Kernels", "kernels", "steps", "used", "using"]

CHUNK = 32 << 20
"""Bytes of memory asked for at once."""

PANEL = 64
"""Outputs whose weights lie side by side."""

WIDEST = 128
"""Heads of more numbers are not served; neither are those that do not fill registers of 16."""

INT, POINTER = ctypes.c_int64, ctypes.c_void_p
SIGNATURES = {
    "weft_linear": (POINTER, INT, INT, POINTER, POINTER, POINTER, INT, POINTER, ctypes.c_int),
    "weft_attend": (POINTER, INT, *[POINTER] * 6, *[INT] * 6, ctypes.c_int),
    "weft_append": (POINTER, INT, POINTER, INT, POINTER, POINTER, POINTER, *[INT] * 5),
    "weft_log_sum": (POINTER, INT, INT, POINTER, ctypes.c_int),
    "weft_best": (POINTER, INT, INT, INT, POINTER, POINTER, ctypes.c_int),
}


class HugePageArena:
    """Memory in large pages, where the system has them, for what every step reads from end to end.

    With pages of four kilobytes a core spends a tenth of its time on finding them.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """So many bytes. Memory goes back when nothing uses a chunk any more."""
        size = -(-size // 64) * 64
        if self._free.numel() < size:
            chunk = mmap.mmap(-1, max(size, CHUNK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a system without large pages
                chunk.madvise(mmap.MADV_HUGEPAGE)
            self._free = torch.frombuffer(chunk, dtype=torch.uint8)
        taken, self._free = self._free[:size], self._free[size:]
        return taken


class PackedLinear:
    """A linear layer in eight bits, laid out for the kernel. It is never changed, so a copy of a model shares it."""

    def __init__(
        self, run: Callable[..., None], weight: Tensor, scale: Tensor, bias: Tensor | None, arena: HugePageArena | None
    ) -> None:
        self._run, (self.outputs, self.inputs) = run, weight.shape
        full = F.pad(weight, (0, -self.inputs % 4, 0, -self.outputs % PANEL))
        fours = full.view(torch.int32).view(-1, PANEL, full.size(1) // 4).transpose(1, 2).contiguous()
        # [P, I / 4, PANEL · 4]: four inputs of each output of a panel, then the next four; w + 128, without a sign.
        self.panels = fours.view(torch.uint8).bitwise_xor_(128)
        if arena is not None:
            self.panels = arena.take(self.panels.numel())[: self.panels.numel()].view_as(self.panels).copy_(self.panels)
        self.scale, self.bias = scale.contiguous(), None if bias is None else bias.contiguous()
        self._places = self.panels.data_ptr(), self.scale.data_ptr(), None if self.bias is None else self.bias.data_ptr()

    def __deepcopy__(self, memo: object) -> PackedLinear:
        return self

    def unpack(self) -> Tensor:
        """The weights [O, I] again."""
        fours = self.panels.bitwise_xor(128).view(torch.int32).transpose(1, 2).contiguous()
        return fours.view(torch.int8).flatten(0, 1)[: self.outputs, : self.inputs]

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., I] in float32, its rows rounded to eight bits → [..., O]."""
        if not x.is_contiguous():
            x = x.contiguous()
        found = torch.empty((*x.shape[:-1], self.outputs))
        rows = x.numel() // self.inputs
        self._run(x.data_ptr(), rows, self.inputs, *self._places, self.outputs, found.data_ptr(), torch.get_num_threads())
        return found


class Kernels:
    """The compiled operations, for tensors."""

    def __init__(self, found: ctypes.CDLL) -> None:
        for name, signature in SIGNATURES.items():
            getattr(found, name).argtypes, getattr(found, name).restype = signature, None
        found.weft_append.restype = ctypes.c_bool
        self._found, self._arena = found, HugePageArena()
        self._attend, self._append = found.weft_attend, found.weft_append

    def __deepcopy__(self, memo: object) -> Kernels:
        return self

    def pack(self, weight: Tensor, scale: Tensor, bias: Tensor | None, *, lasting: bool = True) -> PackedLinear:
        """A linear layer in eight bits: weight [O, I] in int8 · scale, bias [O] in float32 · lasting: for many searches."""
        return PackedLinear(self._found.weft_linear, weight, scale, bias, self._arena if lasting else None)

    def attend_step(
        self, query: Tensor, key: Tensor, value: Tensor, ancestry: Tensor | None, lengths: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """What query [B, H, D] finds in key and value [G, H, K or 1, R, D]: [B, H, D], as `weft.kernels.triton.decoding_attention` has it on a GPU.

        ancestry [G, K, R] int16: whose cell each beam reads; the first's without it. lengths [G]: how many cells are filled;
        all without it. bias [G, R] is added to scores. A query that sees nothing finds 0.
        """
        sources, heads, beams, room, width = key.shape
        rows = query.size(0)
        found = query.new_empty(rows, heads, width)
        self._attend(
            query.data_ptr(), query.stride(0), key.data_ptr(), value.data_ptr(),
            None if ancestry is None else ancestry.data_ptr(), None if lengths is None else lengths.data_ptr(),
            None if bias is None else bias.data_ptr(), found.data_ptr(),
            sources, rows // sources, heads, beams, room, width, torch.get_num_threads(),
        )  # fmt: skip
        return found

    def append(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, length: Tensor) -> None:
        """Writes k, v [B, H, 1, D] into the cells of number length [G] of keys, values [G, H, K, R, D]."""
        sources, heads, beams, room, width = keys.shape
        done = self._append(
            k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), keys.data_ptr(), values.data_ptr(), length.data_ptr(),
            sources, beams, heads, room, width,
        )  # fmt: skip
        if not done:
            raise IndexError(f"a store for {room} tokens is full")

    def log_sum(self, logits: Tensor) -> Tensor:
        """log Σ eˣ over each row of [N, V]."""
        logits = logits.contiguous()
        found = logits.new_empty(logits.size(0))
        self._found.weft_log_sum(logits.data_ptr(), *logits.shape, found.data_ptr(), torch.get_num_threads())
        return found

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The largest of each row of [N, V], the largest first, and where they are: [N, count]; of equal ones the first."""
        logits = logits.contiguous()
        best = logits.new_empty(logits.size(0), count)
        where = torch.empty(best.shape, dtype=torch.long)
        self._found.weft_best(
            logits.data_ptr(), *logits.shape, count, best.data_ptr(), where.data_ptr(), torch.get_num_threads()
        )
        return best, where


@cache
def _attempt() -> Kernels | CannotBuild:
    try:
        return Kernels(library())
    except CannotBuild as error:
        return error


def kernels() -> Kernels:
    """The operations, compiled when first asked for. CannotBuild says why they cannot be had."""
    found = _attempt()
    if isinstance(found, CannotBuild):
        raise found
    return found


_USED: ContextVar[Kernels | None] = ContextVar("kernels", default=None)


@contextmanager
def using(found: Kernels | None) -> Iterator[None]:
    """Inside, what these operations serve is done by them."""
    before = _USED.set(found)
    try:
        yield
    finally:
        _USED.reset(before)


def used(x: Tensor) -> Kernels | None:
    """The operations, if they are in use and serve numbers such as those of x."""
    found = _USED.get()
    return found if found is not None and x.dtype == torch.float32 and x.device.type == "cpu" else None


def steps(query: Tensor, key: Tensor) -> bool:
    """Whether `Kernels.attend_step` serves single queries [B, H, 1, D] over such keys."""
    width = query.size(3)
    laid_out = query.stride(1) == width and query.stride(3) == 1 and key.is_contiguous()
    return used(query) is not None and key.dtype == query.dtype and laid_out and width % 16 == 0 and width <= WIDEST
