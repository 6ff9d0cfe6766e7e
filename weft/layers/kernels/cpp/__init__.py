"""C++ kernels for decoding on a CPU, as tensor operations. `compiled_library` finds or compiles them.

Each replaces several operations of torch, and the result of a row depends on that row alone. They handle float32 on a CPU
without gradients, and only inside `using`.

Shapes: N rows · I inputs · O outputs · G sources · K beams · B = G·K · H heads · R room · S keys · D head width.
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

from weft.layers.kernels.cpp.compiled_library import CannotBuild as CannotBuild
from weft.layers.kernels.cpp.compiled_library import library

CHUNK = 32 << 20
"""Bytes of memory allocated at once."""

PANEL = 64
"""Outputs whose weights are stored together."""

MAX_HEAD_WIDTH = 128
"""The largest supported head width. It must also be a multiple of 16, the size of a register."""


INT, POINTER = ctypes.c_int64, ctypes.c_void_p
SIGNATURES = {
    "weft_linear": (None, POINTER, INT, INT, POINTER, POINTER, POINTER, INT, POINTER, ctypes.c_int),
    "weft_attend": (None, POINTER, INT, *[POINTER] * 6, *[INT] * 6, ctypes.c_int),
    "weft_append": (ctypes.c_bool, POINTER, INT, POINTER, INT, POINTER, POINTER, POINTER, *[INT] * 5),
    "weft_log_sum": (None, POINTER, INT, INT, POINTER, ctypes.c_int),
    "weft_best": (None, POINTER, INT, INT, INT, POINTER, POINTER, ctypes.c_int),
    "weft_most_probable": (None, *[POINTER] * 3, INT, INT, INT, POINTER, POINTER, ctypes.c_int),
    "weft_encode": (None, *[POINTER] * 4, INT, INT, POINTER, ctypes.c_int),
    "weft_search_open": (POINTER, POINTER),
    "weft_search_admit": (None, POINTER, POINTER, POINTER, INT),
    "weft_search_run": (INT, POINTER, INT),
    "weft_search_close": (None, POINTER),
}
"""The types of the result and of the arguments of each function."""


class HugePageArena:
    """Memory in huge pages, if the system has them, for weights that every step reads.

    With 4 KiB pages a core spends a tenth of its time on address translation.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Allocates `size` bytes. A chunk is freed when nothing uses it any more."""
        size = -(-size // 64) * 64
        if self._free.numel() < size:
            chunk = mmap.mmap(-1, max(size, CHUNK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a system without huge pages
                chunk.madvise(mmap.MADV_HUGEPAGE)
            with torch.inference_mode(False):  # an inference tensor could not be written outside of inference mode
                self._free = torch.frombuffer(chunk, dtype=torch.uint8)
        taken, self._free = self._free[:size], self._free[size:]
        return taken


class PackedLinear:
    """An int8 linear layer in the kernel's memory layout. It is immutable, so copies of a model share it."""

    def __init__(
        self, run: Callable[..., None], weight: Tensor, scale: Tensor, bias: Tensor | None, arena: HugePageArena | None
    ) -> None:
        self._run, (self.outputs, self.inputs) = run, weight.shape
        full = F.pad(weight, (0, -self.inputs % 4, 0, -self.outputs % PANEL))
        fours = full.view(torch.int32).view(-1, PANEL, full.size(1) // 4).transpose(1, 2).contiguous()
        # [P, I / 4, PANEL · 4]: four inputs of each output of a panel, then the next four; w + 128, unsigned.
        self.panels = fours.view(torch.uint8).bitwise_xor_(128)
        if arena is not None:
            self.panels = arena.take(self.panels.numel())[: self.panels.numel()].view_as(self.panels).copy_(self.panels)
        self.scale, self.bias = scale.contiguous(), None if bias is None else bias.contiguous()
        self._places = self.panels.data_ptr(), self.scale.data_ptr(), None if self.bias is None else self.bias.data_ptr()

    def __deepcopy__(self, memo: object) -> PackedLinear:
        return self

    def unpack(self) -> Tensor:
        """The weights [O, I] in their original layout."""
        fours = self.panels.bitwise_xor(128).view(torch.int32).transpose(1, 2).contiguous()
        return fours.view(torch.int8).flatten(0, 1)[: self.outputs, : self.inputs]

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., I] in float32, rounded to int8 by row → [..., O]."""
        if not x.is_contiguous():
            x = x.contiguous()
        output = torch.empty((*x.shape[:-1], self.outputs))
        rows = x.numel() // self.inputs
        self._run(x.data_ptr(), rows, self.inputs, *self._places, self.outputs, output.data_ptr(), torch.get_num_threads())
        return output


class Kernels:
    """The compiled operations, for tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, *arguments) in SIGNATURES.items():
            getattr(library, name).restype, getattr(library, name).argtypes = result, arguments
        self.open_search, self.admit_sources = library.weft_search_open, library.weft_search_admit
        self.run_search, self.close_search, self.encode = (
            library.weft_search_run, library.weft_search_close, library.weft_encode
        )  # fmt: skip
        self._library, self._arena = library, HugePageArena()
        self._attend, self._append = library.weft_attend, library.weft_append

    def __deepcopy__(self, memo: object) -> Kernels:
        return self

    def pack(self, weight: Tensor, scale: Tensor, bias: Tensor | None, *, lasting: bool = True) -> PackedLinear:
        """Packs an int8 linear layer: weight [O, I] in int8 · scale, bias [O] in float32 · lasting: used by many searches."""
        return PackedLinear(self._library.weft_linear, weight, scale, bias, self._arena if lasting else None)

    def attend_step(
        self, query: Tensor, key: Tensor, value: Tensor, ancestry: Tensor | None, lengths: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Attends from query [B, H, D] to key and value [G, H, K or 1, R, D], like the Triton kernel of that name."""
        sources, heads, beams, room, width = key.shape
        rows = query.size(0)
        context = query.new_empty(rows, heads, width)
        self._attend(
            query.data_ptr(), query.stride(0), key.data_ptr(), value.data_ptr(),
            None if ancestry is None else ancestry.data_ptr(), None if lengths is None else lengths.data_ptr(),
            None if bias is None else bias.data_ptr(), context.data_ptr(),
            sources, rows // sources, heads, beams, room, width, torch.get_num_threads(),
        )  # fmt: skip
        return context

    def append(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, length: Tensor) -> None:
        """Writes k, v [B, H, 1, D] into cells number length [G] of keys, values [G, H, K, R, D]."""
        sources, heads, beams, room, width = keys.shape
        done = self._append(
            k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), keys.data_ptr(), values.data_ptr(), length.data_ptr(),
            sources, beams, heads, room, width,
        )  # fmt: skip
        if not done:
            raise IndexError(f"the cache is full: it has room for {room} tokens")

    def log_sum(self, logits: Tensor) -> Tensor:
        """log Σ eˣ over each row of [N, V]."""
        logits = logits.contiguous()
        sums = logits.new_empty(logits.size(0))
        self._library.weft_log_sum(logits.data_ptr(), *logits.shape, sums.data_ptr(), torch.get_num_threads())
        return sums

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The largest entries of each row of [N, V] in descending order, and their indices: [N, count]. Ties stay in order."""
        logits = logits.contiguous()
        best = logits.new_empty(logits.size(0), count)
        where = torch.empty(best.shape, dtype=torch.long)
        self._library.weft_best(
            logits.data_ptr(), *logits.shape, count, best.data_ptr(), where.data_ptr(), torch.get_num_threads()
        )
        return best, where

    def most_probable(self, layer: ctypes.Structure, x: Tensor, lengths: Tensor, barred: int) -> tuple[Tensor, Tensor]:
        """Log-probability and index of a layer's most probable output, from `barred` on, at each position of x [B, T, I].

        Both are 0 behind the `lengths` [B] of the rows.
        """
        rows, extent = x.shape[:2]
        logp, place = x.new_empty(rows, extent), torch.empty(rows, extent, dtype=torch.long)
        self._library.weft_most_probable(
            ctypes.byref(layer), x.data_ptr(), lengths.data_ptr(), rows, extent, barred, place.data_ptr(), logp.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return logp, place


@cache
def _attempt() -> Kernels | CannotBuild:
    try:
        return Kernels(library())
    except CannotBuild as error:
        return error


def kernels() -> Kernels:
    """The operations, compiled on first use. Raises CannotBuild with the reason if they cannot be compiled."""
    built = _attempt()
    if isinstance(built, CannotBuild):
        raise built
    return built


_USED: ContextVar[Kernels | None] = ContextVar("kernels", default=None)


@contextmanager
def using(kernels: Kernels | None) -> Iterator[None]:
    """Inside this context, the operations replace those of torch where they can; None: nowhere."""
    before = _USED.set(kernels)
    try:
        yield
    finally:
        _USED.reset(before)


def active(device: torch.device) -> Kernels | None:
    """The operations, if they are in use and support this device."""
    return _USED.get() if device.type == "cpu" else None


def used(x: Tensor) -> Kernels | None:
    """The operations, if they are in use and support the device and precision of x."""
    return active(x.device) if x.dtype == torch.float32 else None


def steps(query: Tensor, key: Tensor) -> bool:
    """Whether `Kernels.attend_step` supports single queries [B, H, 1, D] over such keys."""
    width = query.size(3)
    laid_out = query.stride(1) == width and query.stride(3) == 1 and key.is_contiguous()
    return used(query) is not None and key.dtype == query.dtype and laid_out and width % 16 == 0 and width <= MAX_HEAD_WIDTH
