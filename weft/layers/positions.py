"""Positions: sinusoids, learned vectors, rotations. Angles are always float32 (bf16 rounds position 257 to 256)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.errors import ConfigError


def token_positions(x: Tensor, layout: Layout | None) -> Tensor:
    """[B, T]: the position of each token within its sentence in this call, for tokens [B, T] or vectors [B, T, D]."""
    if layout is not None:
        return layout.positions
    return torch.arange(x.size(1), device=x.device).expand(x.shape[:2])


def angles(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """positions [B, T] → p / base^(2i/width), [B, T, width/2] in float32."""
    index = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    return positions[..., None].float() * base ** (-index / width)


def rotation(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, 1, T, width] of the angle of each channel pair at each position, for `rotate`."""
    turn = angles(positions, width, base)[:, None].repeat_interleave(2, -1)
    return turn.cos().to(dtype), turn.sin().to(dtype)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each pair of channels of x [B, H, T, D] by the angle of its position (Su et al. 2021)."""
    cos, sin = turn
    quarter = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + quarter * sin


class SinusoidalPosition(nn.Module):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(…) (Vaswani et al. 2017, section 3.5), for any length."""

    max_length: int | None = None

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f"sinusoidal positions need an even width, not {dim}")
        self.dim = dim

    def forward(self, positions: Tensor) -> Tensor:
        """positions [B, T] → [B, T, dim] in float32."""
        turn = angles(positions, self.dim)
        return torch.stack([turn.sin(), turn.cos()], -1).flatten(-2)


class LearnedPosition(nn.Module):
    """One learned vector for each of the first `max_length` positions."""

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.max_length: int | None = max_length
        self.table = nn.Embedding(max_length, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def forward(self, positions: Tensor) -> Tensor:
        return self.table(positions)


PositionKind = Literal["sinusoidal", "learned", "none"]


def make_position(kind: PositionKind, dim: int, max_length: int) -> SinusoidalPosition | LearnedPosition | None:
    """Absolute positions of the given kind, to be added to embeddings."""
    if kind == "none":
        return None
    return SinusoidalPosition(dim) if kind == "sinusoidal" else LearnedPosition(dim, max_length)
