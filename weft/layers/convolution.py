"""Convolutions over tokens in two steps: gather the neighbours of every token, then one matrix product.

`TokenWindow` does the first step, and it alone handles padding, packed rows and chunks of a sequence. The second step is
any linear layer with width · dim inputs. Shapes: B rows · T positions · D width of a token.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.step_recorder import record


@dataclass(frozen=True)
class TokenWindow:
    """The `width` tokens that each token sees, `dilation` apart: the last ones up to itself (causal), or centred on itself.

    Neighbours beyond the ends of the sentence, in padding, or in another sentence of a packed row are zeros. A causal window
    processes a sequence in chunks of any size; its state is a tail of fixed size, the last (width − 1) · dilation tokens.
    Tokens may be vectors or, with width 1, ids.

    even: an even width is allowed in a centred window, which then has one more token after its own than before.
    """

    dim: int
    width: int
    dilation: int = 1
    causal: bool = False
    even: bool = False

    def __post_init__(self) -> None:
        if not (self.causal or self.even) and self.width % 2 == 0:
            raise ConfigError(
                f"a convolution in an encoder is centred on its token, so its width must be odd, not {self.width}; "
                f"use a width of {self.width + 1}"
            )

    @property
    def span(self) -> int:
        """The distance from the first token of a window to its last."""
        return (self.width - 1) * self.dilation

    def init_state(self, rows: int, like: Tensor) -> Tensor | None:
        """The tail before the first token, [rows, span, D] of zeros; None for a centred window."""
        return like.new_zeros(rows, self.span, self.dim) if self.causal else None

    def __call__(self, x: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        """x [B, T, D] → windows [B, T, width · D], earliest token first; and the tail after x."""
        if layout is not None:
            x = torch.where(layout.mask[..., None], x, 0)
        if tail is None:
            row = F.pad(x, (0, 0, self.span // 2, self.span - self.span // 2))
        else:
            row = torch.cat([tail.to(x.dtype), x], 1)
            tail = self._tail(row, layout)
        taps = [row[:, begin : begin + x.size(1)] for begin in self._begins]
        if layout is not None and layout.packed:
            taps = [torch.where(same, tap, 0) for same, tap in zip(self._same(layout), taps, strict=True)]
        return torch.cat(taps, -1), tail

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        return draft.window(x, self.width, self.dilation, causal=self.causal)

    def sees(self, length: int) -> Tensor:
        """[length, length] bool: which tokens are in the window of each token."""
        place = torch.arange(length)
        before = place[:, None] - place[None]
        reach = torch.arange(self.width) * self.dilation - (0 if self.causal else self.span // 2)
        return torch.isin(before, reach)

    @property
    def _begins(self) -> range:
        return range(0, self.span + 1, self.dilation)

    def _same(self, layout: Layout) -> list[Tensor]:
        """[B, T, 1] bool per tap: whether it is in the token's own sentence. Computed once for all layers."""
        before = self.span if self.causal else self.span // 2

        def make() -> list[Tensor]:
            row, extent = F.pad(layout.segments, (before, self.span - before)), layout.segments.size(1)
            return [(row[:, begin : begin + extent] == layout.segments)[..., None] for begin in self._begins]

        return layout.cached(("window", self.width, self.dilation, self.causal), make)

    def _tail(self, row: Tensor, layout: Layout | None) -> Tensor:
        """The last `span` real tokens of each row."""
        keep = self.span
        if layout is None:
            return row[:, row.size(1) - keep :]
        index = layout.lengths[:, None] + torch.arange(keep, device=row.device)
        return row.gather(1, index[..., None].expand(-1, -1, row.size(-1)))


def record_gated_convolution(
    x: Tensor, windows: Tensor, weight: Tensor, bias: Tensor, halves: Tensor, gated: Tensor, width: int
) -> None:
    """Records windows [B, T, width · D] of x by token, the two halves of their convolution, and what the gate lets through."""
    axes, (values, gates) = "row token channel", halves.chunk(2, -1)
    seen = windows.unflatten(-1, (width, -1)), "row token place input"
    record("window", seen[0], "row token place channel", x=(x, axes))
    for name, value, own, added in zip(("values A", "gates B"), (values, gates), weight.chunk(2), bias.chunk(2), strict=True):
        operands = {"W": (own.unflatten(-1, (width, -1)), "channel place input"), "window": seen, "b": (added, "channel")}
        record(name, value, axes, "sum(W * window, place, input) + b", **operands)
    record("gated", gated, axes, "A * sigmoid(B)", A=(values, axes), B=(gates, axes))
