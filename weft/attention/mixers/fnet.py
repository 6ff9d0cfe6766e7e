"""Fourier transforms in place of self-attention.

Shapes: B rows · T positions · D width · M points of a convolution, a power of two.
"""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from weft.attention.base import RowMixer, Site
from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.layers.kernels import widest_float
from weft.layers.linear_norm_dropout import accumulation_dtype
from weft.layers.step_recorder import record, recording


class FourierMixer(RowMixer):
    """Re F_tokens(F_channels(x)): two discrete Fourier transforms without parameters.

    Each row is transformed at its own length, as if it were alone: the transform of a padded row has other frequencies. Rows of
    different lengths go through one chirp transform (Bluestein 1970), which expresses a transform of any length as a
    convolution, at a cost of T log T.

    norm: ortho divides by √(tokens · channels), which preserves the norm of x; none is as published, for post-norm blocks
    """

    paper = "Lee-Thorp et al. 2022"
    cost = "n log n"
    uses = frozenset({"encoder"})
    instead: ClassVar[dict[str, str]] = {
        "causal": "every output of a Fourier transform depends on every token, including future ones; "
        "in a decoder use aft, convolution or an attention",
        "cross": "a Fourier transform has no query; attend to a source with an attention such as full",
    }

    def __init__(self, site: Site, *, norm: Literal["ortho", "none"] = "ortho") -> None:
        super().__init__(site)
        self.norm = norm

    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        mixed = self._transform(x, layout)
        if recording():
            self._record(x, layout, mixed)
        return mixed, None

    def _record(self, x: Tensor, layout: Layout | None, mixed: Tensor) -> None:
        """Records the transform as sums of cosines and sines, first along the channels, then along the tokens."""
        rows, extent, width = x.shape
        lengths = torch.full((rows,), extent, device=x.device) if layout is None else layout.lengths.clamp_min(1)
        real = torch.ones_like(x[..., :1]) if layout is None else layout.mask[..., None].to(x.dtype)
        x, mixed = x * real, mixed * real
        channels = _angles(torch.tensor([width], device=x.device), width)[0].to(x.dtype)
        tokens = _angles(lengths, extent).to(x.dtype)
        parts, axes = [], "row token channel"
        for name, wave in (("cosines", torch.cos), ("sines", torch.sin)):
            table, over = (wave(channels), "channel input"), (wave(tokens) * real, "row token key")
            along = x @ table[0].T
            record(f"{name} along channels", along, "row key channel", "sum(W * x, input)", W=table, x=(x, "row key input"))
            parts.append(over[0] @ along)
            operands = {"W": over, "x": (along, "row key channel")}
            record(f"{name} along tokens", parts[-1], axes, "sum(W * x, key)", **operands)
        operands = {"cosines": (parts[0], axes), "sines": (parts[1], axes)}
        if self.norm == "ortho":
            root = (lengths * width).to(x.dtype).sqrt()
            record("mixed", mixed, axes, "(cosines - sines) / root", **operands, root=(root, "row"))
        else:
            record("mixed", mixed, axes, "cosines - sines", **operands)

    def _transform(self, x: Tensor, layout: Layout | None) -> Tensor:
        dtype, (extent, width) = accumulation_dtype(x.dtype), x.shape[1:]
        ragged = layout is not None and (layout.known is None or any(count != extent for count in layout.known))
        with torch.autocast(x.device.type, enabled=False):
            if layout is not None and ragged:
                mixed = _ragged(torch.where(layout.mask[..., None], x, 0.0).to(dtype), layout)
                tokens = layout.lengths.clamp_min(1)[:, None, None]
                return mixed * (tokens * width) ** -0.5 if self.norm == "ortho" else mixed
            mixed = torch.fft.fft2(x.to(dtype)).real
        return mixed / math.sqrt(extent * width) if self.norm == "ortho" else mixed


def _angles(lengths: Tensor, extent: int) -> Tensor:
    """2πjk/n [B, T, T] for rows of length n."""
    place = torch.arange(extent, device=lengths.device)
    count = lengths[:, None, None]
    return 2 * math.pi * (place[:, None] * place % count).double() / count


def _ragged(x: Tensor, layout: Layout) -> Tensor:
    """Re fft2 of the tokens of each row.

    Inputs are real, so after the first transform channel D − c is the conjugate of channel c, and its second transform is the
    mirror image: half of the channels are enough.
    """
    width = x.size(-1)
    half = chirp_transform(torch.fft.rfft(x), layout).real
    count = layout.lengths.clamp_min(1)[:, None]
    mirror = (count - layout.positions) % count
    others = half[..., 1 : (width + 1) // 2].flip(-1)
    return torch.cat([half, others.gather(1, mirror[..., None].expand_as(others))], -1)


def chirp_transform(x: Tensor, layout: Layout) -> Tensor:
    """The discrete Fourier transform over the real tokens of each row of x [B, T, D] (complex, 0 in the padding).

    With jk = (j² + k² − (k − j)²) / 2 it is X_k = c_k Σ_j (x_j c_j) c̄_{k−j}, where c_j = e^{−iπj²/n} and n is the row's
    length: a convolution, computed by transforms of the same power of two for all rows.
    """
    extent = x.size(1)
    points = 1 << max(0, 2 * extent - 2).bit_length()
    dtype = torch.promote_types(x.dtype, torch.complex64)
    chirp, kernel = layout.cached(("chirp", extent, dtype), lambda: _chirp(layout, extent, points, dtype))
    spread = torch.fft.fft(x * chirp, points, dim=1)
    return torch.fft.ifft(spread * kernel, dim=1)[:, :extent] * chirp


def _chirp(layout: Layout, extent: int, points: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """c [B, T, 1], and the transform of its conjugate [B, M, 1]. Angles are reduced as integers: floats cannot represent j²."""
    count = layout.lengths.clamp_min(1)[:, None]
    place = torch.arange(extent, device=count.device)
    angle = math.pi * (place.square() % (2 * count)).to(widest_float(count.device)) / count
    chirp = torch.polar(torch.ones_like(angle), -angle)
    kernel = torch.nn.functional.pad(chirp.conj().resolve_conj(), (0, points - extent))
    kernel[:, points - extent + 1 :] = chirp[:, 1:].conj().flip(1)
    return chirp[..., None].to(dtype), torch.fft.fft(kernel)[..., None].to(dtype)
