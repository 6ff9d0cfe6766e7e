"""What the options of decoding leave to the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.config.sections import DecodeSection
from weft.kernels.cpp import CannotBuild, Kernels, kernels

TOKENS = 4096
"""Source tokens decoded at once on a CPU, where more at once is not faster."""

MOST = 32768
"""And at most on a GPU: its time grows with them from there on."""

GIB = 1 << 30


def settled(options: DecodeSection, device: torch.device) -> DecodeSection:
    """The options with every "auto" decided: on a GPU half precision, and batches that grow with its memory."""
    cuda = device.type == "cuda"
    changes: dict[str, object] = {}
    if options.precision == "auto":
        changes["precision"] = "bf16" if cuda else "float32"
    if options.batch_tokens == "auto":
        memory = torch.cuda.get_device_properties(device).total_memory if cuda else 0
        changes["batch_tokens"] = max(TOKENS, min(MOST, memory // GIB * 512))
    if options.workers == "auto" or cuda:
        changes["workers"] = 1
    return options.model_copy(update=changes) if changes else options


def budget(options: DecodeSection) -> int:
    """Source tokens decoded at once, by one worker, by options that are settled."""
    assert isinstance(options.batch_tokens, int)
    return max(1, options.batch_tokens // workers(options))


def workers(options: DecodeSection) -> int:
    """Processes that decode side by side, by options that are settled."""
    assert isinstance(options.workers, int)
    return options.workers


def native(options: DecodeSection, device: torch.device, warn: Callable[[str], None] = lambda message: None) -> Kernels | None:
    """The compiled operations of a CPU, where they are asked for; `warn` is told if they cannot be had."""
    if not options.compile or device.type != "cpu":
        return None
    try:
        return kernels()
    except CannotBuild as error:
        warn(f"decode.compile: decoding goes on without compiled kernels: {error}")
        return None


def autocasts(options: DecodeSection, weights: torch.dtype, kernels: Kernels | None = None) -> bool:
    """Whether products are to be computed in half precision; weights that are in it already need no autocast."""
    if options.precision == "int8" and kernels is not None:
        return False
    if options.precision == "int8" and not options.sample and max(options.beam, options.n_best) > 1:
        # Those of attention, which are all that is left of them: for several beams a CPU with bf16 computes them faster in it.
        return torch.cpu._is_avx512_bf16_supported()
    return options.precision == "bf16" and weights == torch.float32
