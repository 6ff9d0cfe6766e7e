"""TextCNN: convolutions of several widths side by side, for classification with max pooling (Kim 2014)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.layers.convolution import TokenWindow
from weft.layers.linear_norm_dropout import Rate, dropout
from weft.models.base import Encoded
from weft.models.encoder_decoder import VectorEncoder


class TextCnnEncoder(VectorEncoder):
    """ReLU(W x_{i:i+h−1} + b) for several widths h (Kim 2014). With task.pooling: max it is the published classifier.

    Windows that reach beyond the text see zeros. Even windows have one more token after their own than before.

    dim: width of embeddings
    widths: tokens that the convolutions of each width see
    channels: feature maps of each width
    dropout: dropout rate of embeddings; the published dropout of 0.5 after the pooling is task.dropout
    """

    supports_packing = cuda_graph_safe = True

    def __init__(
        self,
        *,
        dim: PositiveInt = 128,
        widths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (3, 4, 5),
        channels: PositiveInt = 100,
        dropout: Rate = 0.1,
    ) -> None:
        super().__init__()
        self.windows, self.dropout = [TokenWindow(dim, width, even=True) for width in widths], dropout
        self.taps = nn.ModuleList(nn.Linear(width * dim, channels) for width in widths)
        self.input_width, self.width = dim, channels * len(widths)

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        x = dropout(x, self.dropout, self.training)
        maps = [F.relu(taps(window(x, None, layout)[0])) for taps, window in zip(self.taps, self.windows, strict=True)]
        return Encoded(torch.cat(maps, -1), layout)
