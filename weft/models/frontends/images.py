"""Frontends that read images: patches, and a convolutional network.

Shapes: G images · C channels · H, W pixels · h, w positions of the grid that an image becomes · D width.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.models.frontends.base import Frontend, FrontendSite

GROUP = 8
"""Channels that are normalised together."""


class ImageFrontend(Frontend):
    """A frontend whose grid of vectors has learned positions."""

    def __init__(self, site: FrontendSite, kind: str, positions: int) -> None:
        super().__init__()
        site.check("image", kind)
        self.kind = kind
        self.position = nn.Parameter(torch.randn(positions, site.width) * site.width**-0.5)

    def placed(self, grid: Tensor) -> tuple[Tensor, Layout | None]:
        """The vectors [G, h·w, D] of a grid [G, D, h, w], row by row."""
        x = grid.flatten(2).transpose(1, 2)
        if x.size(1) > len(self.position):
            raise ConfigError(
                f"model.front: {self.kind} has {len(self.position)} positions, but a picture has {x.size(1)}; raise max_patches"
            )
        return x + self.position[: x.size(1)].to(x.dtype), None


class PatchFrontend(ImageFrontend):
    """Square patches of pictures [G, C, H, W], each projected to a vector with a learned position (Dosovitskiy et al. 2021).

    patch: side of a patch in pixels
    max_patches: patches of the largest picture
    """

    def __init__(self, site: FrontendSite, *, patch: PositiveInt = 16, max_patches: PositiveInt = 1024) -> None:
        super().__init__(site, "patches", max_patches)
        self.project = nn.Conv2d(site.sizes.source, site.width, patch, stride=patch)

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        return self.placed(self.project(scaled(source.values, self.project.weight.dtype)))


class ConvolutionFrontend(ImageFrontend):
    """A residual convolutional network (He et al. 2016) over pictures [G, C, H, W], with group normalisation (Wu & He 2018).

    channels: width of each stage, a multiple of 8; each stage halves the sides of the picture
    blocks: residual blocks per stage
    max_patches: positions of the largest picture
    """

    def __init__(
        self,
        site: FrontendSite,
        *,
        channels: Annotated[list[Annotated[int, Field(ge=8, multiple_of=8)]], Field(min_length=1)] = [32, 64, 128, 256],  # noqa: B006
        blocks: PositiveInt = 1,
        max_patches: PositiveInt = 1024,
    ) -> None:
        super().__init__(site, "convolutions", max_patches)
        stages: list[nn.Module] = []
        for below, above in pairwise([site.sizes.source, *channels]):
            stages += [_convolution(below, above, stride=2), *(ResidualBlock(above) for _ in range(blocks))]
        self.stages = nn.Sequential(*stages)
        self.project = nn.Conv2d(channels[-1], site.width, 1)

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        return self.placed(self.project(self.stages(scaled(source.values, self.project.weight.dtype))))


class ResidualBlock(nn.Module):
    """x + f(x), where f is two convolutions of 3 × 3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            _convolution(channels, channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(channels // GROUP, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.inner(x))


def scaled(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers from −1 to 1; other values stay as they are."""
    return pixels.to(dtype) / 127.5 - 1 if pixels.dtype == torch.uint8 else pixels.to(dtype)


def _convolution(below: int, above: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(below, above, 3, stride=stride, padding=1, bias=False), nn.GroupNorm(above // GROUP, above), nn.ReLU()
    )
