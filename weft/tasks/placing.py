"""What the options of decoding leave to the device."""

from __future__ import annotations

import torch

from weft.config import DecodeSection

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
    return options.model_copy(update=changes) if changes else options


def budget(options: DecodeSection) -> int:
    """Source tokens decoded at once, by options that are settled."""
    assert isinstance(options.batch_tokens, int)
    return options.batch_tokens
