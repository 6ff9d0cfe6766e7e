"""weft's side of every table of names: the parts of a Transformer, its architecture, and tensors by other names.

Other programs store each matrix of an attention by itself, some of them transposed, and some have the sines of all
frequencies before the cosines, where weft alternates them. A `NameTable` translates in both directions.

Shapes: V vocabulary · D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.config.sections import Config
from weft.errors import ConfigError, RunError
from weft.layers.embeddings_and_rotary_positions import SinusoidalPosition, make_position
from weft.losses.cross_entropy import IMPOSSIBLE

NEVER = -IMPOSSIBLE
"""The bias of a token that cannot be written: its probability is 0 in float32."""

PORTABLE = "train with the recipe transformer-portable, which every export can write"


@dataclass(frozen=True)
class Part:
    """A layer of a block. matrices: how many it holds side by side · reads, writes: whether its inputs and outputs are channels
    of the embeddings, whose order differs between programs."""

    name: str
    matrices: int = 1
    reads: bool = False
    writes: bool = False

    @property
    def norm(self) -> bool:
        return self.name.endswith("norm")

    def size(self, shape: Architecture) -> tuple[int, ...]:
        """The shape of each of its matrices, or of the gain of a norm."""
        if self.norm:
            return (shape.dim,)
        wide = {"network.up": (shape.feedforward, shape.dim), "network.down": (shape.dim, shape.feedforward)}
        return wide.get(self.name, (shape.dim, shape.dim))


PARTS = {
    "self": Part("mixer.attention.heads.query_key_value", 3, reads=True),
    "self_out": Part("mixer.attention.heads.out", writes=True),
    "self_norm": Part("around_mixer.norm", writes=True),
    "cross": Part("cross.heads.query", reads=True),
    "memory": Part("cross.heads.key_value", 2, reads=True),
    "cross_out": Part("cross.heads.out", writes=True),
    "cross_norm": Part("around_cross.norm", writes=True),
    "up": Part("network.up", reads=True),
    "down": Part("network.down", writes=True),
    "network_norm": Part("around_network.norm", writes=True),
}
"""The parts of a block by role. An encoder has those that do not attend to a source."""

TABLES = {"source": "encoder.front.table.weight", "target": "decoder.embedding.table.weight", "output": "decoder.output.weight"}
BIAS = "decoder.output.bias"
POSITIONS = {"encoder": "encoder.position.table.weight", "decoder": "decoder.embedding.position.table.weight"}
SINUSOIDS = ("sinusoidal", "tensor2tensor")
LONGEST = 1024
"""Positions that exported models have."""

DEEPEST, WIDEST, LARGEST = 256, 1 << 16, 1 << 22
"""Layers, width and vocabulary beyond which a file is damaged, or no translation model."""


@dataclass(frozen=True)
class Architecture:
    """A Transformer that other programs may know. share: as model.share_embeddings · rotary: its base, None without."""

    dim: int
    heads: int
    feedforward: int
    encoder_layers: int
    decoder_layers: int
    norm: str
    activation: str
    position: str = "sinusoidal"
    rotary: float | None = None
    max_length: int = 1024
    share: str = "all"
    output_bias: bool = True
    zero_bos: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        for name, most in (("encoder_layers", DEEPEST), ("decoder_layers", DEEPEST), ("dim", WIDEST), ("heads", WIDEST)):
            if not 0 < getattr(self, name) <= most:
                raise RunError(f"the model says {name} = {getattr(self, name)}; it must be a number from 1 to {most}")
        if self.dim % self.heads or not 0 < self.feedforward <= WIDEST:
            raise RunError(
                f"the model says a width of {self.dim}, {self.heads} heads and a feed-forward width of {self.feedforward}, "
                "which do not fit together"
            )

    def sides(self) -> Iterator[tuple[str, int]]:
        """Every layer: its side and its number."""
        yield from (("encoder", layer) for layer in range(self.encoder_layers))
        yield from (("decoder", layer) for layer in range(self.decoder_layers))

    def positions(self, side: str, weights: Mapping[str, Tensor]) -> Tensor | None:
        """[n, D]: what is added to embeddings by position; None if nothing is."""
        if self.position == "learned":
            return weights[POSITIONS[side]]
        return sinusoids(self.position, self.dim) if self.position in SINUSOIDS else None

    def section(self) -> dict[str, Any]:
        """The section `model` of a configuration."""
        attention = {"kind": "full", "bias": self.bias}
        return {
            "kind": "transformer",
            "dim": self.dim,
            "heads": self.heads,
            "feedforward": self.feedforward,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "norm": self.norm,
            "activation": self.activation,
            "position": self.position,
            "max_length": self.max_length,
            "share_embeddings": self.share,
            "output_bias": self.output_bias,
            "zero_bos": self.zero_bos,
            "encoder_self": attention,
            "decoder_self": attention,
            "cross": attention,
        }


def architecture(config: Config, program: str) -> Architecture:
    """The architecture of a run. Raises ConfigError, with the option, if it is no Transformer that `program` could know."""
    model = config.model
    if model["kind"] != "transformer":
        raise ConfigError(f"model.kind: {program} cannot run {model['kind']}; {PORTABLE}")
    expected = {"wiring": "last", "cross_layers": "all", "residual": True, "feedforward_width": 1, "reversible": False}
    expected["position_join"] = "add"
    for key, value in expected.items():
        _require(model[key] == value, f"model.{key}: {model[key]}", program)
    _require(model["norm"] != "none" and model["feedforward"] > 0, "model.norm: none or model.feedforward: 0", program)
    slots = {}
    for key in ("encoder_self", "decoder_self", "cross"):
        entries = model[key] if isinstance(model[key], list) else [model[key]]
        _require(all(each == entries[0] for each in entries), f"model.{key}: a list of different attentions", program)
        slots[key] = entries[0]
        _require(slots[key]["kind"] == "full", f"model.{key}: {slots[key]['kind']}", program)
        position = slots[key]["position"]
        _require(position in ("none", "rotary"), f"model.{key}.position: {position}", program)
    own = [slots[key] for key in ("encoder_self", "decoder_self")]
    _require(
        own[0]["position"] == own[1]["position"], "model.decoder_self.position differs from that of encoder_self,", program
    )
    _require(own[0]["rotary_base"] == own[1]["rotary_base"], "model.decoder_self.rotary_base differs on both sides,", program)
    rotary = own[0]["position"] == "rotary"
    _require(not rotary or model["position"] == "none", f"model.position: {model['position']} with rotary positions", program)
    return Architecture(
        **{key: model[key] for key in ("dim", "heads", "feedforward", "encoder_layers", "decoder_layers", "norm")},
        **{key: model[key] for key in ("activation", "max_length", "output_bias", "zero_bos")},
        position="rotary" if rotary else model["position"],
        rotary=own[0]["rotary_base"] if rotary else None,
        share=model["share_embeddings"],
        bias=all(slot["bias"] for slot in slots.values()),
    )


def _require(fits: bool, option: str, program: str) -> None:
    if not fits:
        raise ConfigError(f"{option}: {program} has no such model; {PORTABLE}")


def require_sinusoids(shape: Architecture, program: str) -> None:
    """Raises ConfigError unless the positions are sinusoids and the activation one matrix."""
    if shape.position == "rotary":
        raise ConfigError(f"model.encoder_self.position: rotary: {program} has no rotary encoder-decoder; {PORTABLE}")
    _require(shape.position in SINUSOIDS, f"model.position: {shape.position}", program)
    _require(shape.activation != "swiglu", "model.activation: swiglu", program)


def sinusoids(kind: str, dim: int) -> Tensor:
    """[LONGEST, D]: the sinusoids of a kind of position."""
    made = make_position(kind, dim, LONGEST)  # type: ignore[arg-type]
    assert isinstance(made, SinusoidalPosition)
    return made(torch.arange(LONGEST)[None])[0]


def sines_first(dim: int) -> Tensor:
    """[D]: the channel of programs with all sines first, for each of weft's, where sines and cosines alternate."""
    return torch.arange(dim).view(2, dim // 2).t().flatten()


@dataclass(frozen=True)
class NameTable:
    """The names of another program.

    layer: prefix of the names in a layer, with {side} and {layer}, counted from `first` · parts: (weight, bias) of each
    matrix of a part, by role · top: (weight, bias) of the norm above a pre-norm stack, with {side} · transposed: matrices are
    [in, out], and vectors [1, n].
    """

    layer: str
    parts: Mapping[str, Sequence[tuple[str, str]]]
    top: tuple[str, str]
    first: int = 0
    transposed: bool = False

    def entries(self, shape: Architecture) -> Iterator[tuple[str, Part, list[tuple[str, str]]]]:
        """(weft's name without ending, the part, the other program's names) of everything but tables."""
        for side, layer in shape.sides():
            prefix = self.layer.format(side=side, layer=layer + self.first)
            for role, part in PARTS.items():
                if side == "encoder" and role in ("cross", "memory", "cross_out", "cross_norm"):
                    continue
                names = [(prefix + weight, prefix + bias) for weight, bias in self.parts[role]]
                yield f"{side}.layers.{layer}.{part.name}", part, names
        if shape.norm == "pre":
            for side in ("encoder", "decoder"):
                names = [(self.top[0].format(side=side), self.top[1].format(side=side))]
                yield f"{side}.norm", Part("norm", writes=True), names

    def read(self, tensors: Tensors, shape: Architecture, order: Tensor | None) -> dict[str, Tensor]:
        """Tensors of the other program as weft's weights. order: the other's channel for each of weft's; None: the same."""
        weights: dict[str, Tensor] = {}
        for name, part, theirs in self.entries(shape):
            halves: tuple[list[Tensor], list[Tensor]] = ([], [])
            for weight, bias in theirs:
                size = part.size(shape)
                vector, turned = (1, size[0]) if self.transposed else size[:1], size[::-1] if self.transposed else size
                matrix = tensors.take(weight, *(vector if part.norm else turned))
                matrix = matrix.flatten() if part.norm else matrix.t() if self.transposed else matrix
                halves[0].append(_reordered(matrix, part, order))
                shift = tensors.take(bias, *vector).flatten()
                halves[1].append(shift[order] if part.writes and order is not None else shift)
            weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.cat(halves[0]), torch.cat(halves[1])
        return weights

    def write(self, weights: Mapping[str, Tensor], shape: Architecture, order: Tensor | None) -> dict[str, Tensor]:
        """weft's weights by the names of the other program; biases that weft does not have are 0."""
        back = None if order is None else torch.argsort(order)
        tensors: dict[str, Tensor] = {}
        for name, part, theirs in self.entries(shape):
            weight = weights[f"{name}.weight"]
            bias = weights.get(f"{name}.bias", weight.new_zeros(weight.size(0)))
            halves = zip(theirs, weight.chunk(part.matrices), bias.chunk(part.matrices), strict=True)
            for (to, to_bias), matrix, shift in halves:
                matrix = _reordered(matrix, part, back)
                shift = shift[back] if part.writes and back is not None else shift
                if self.transposed:
                    matrix, shift = matrix[None] if part.norm else matrix.t(), shift[None]
                tensors[to], tensors[to_bias] = matrix.contiguous(), shift.contiguous()
        return tensors


def _reordered(matrix: Tensor, part: Part, order: Tensor | None) -> Tensor:
    if order is None:
        return matrix
    if part.norm:
        return matrix[order]
    matrix = matrix[order] if part.writes else matrix
    return matrix[:, order] if part.reads else matrix


class Tensors:
    """The tensors of another program's file, taken by name. Raises RunError for one that is missing or not of its shape."""

    def __init__(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self.tensors, self.where = tensors, where
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, *size: int) -> Tensor:
        """The tensor in float32."""
        if name not in self.tensors:
            raise RunError(f"{self.where}: the tensor {name} is missing; the file is cut short, or of another architecture")
        tensor = self.tensors[name]
        self.taken.add(name)
        if size and tuple(tensor.shape) != size:
            raise RunError(f"{self.where}: the tensor {name} has shape {list(tensor.shape)}, not {list(size)}")
        if not tensor.is_floating_point():
            raise RunError(f"{self.where}: the tensor {name} holds {tensor.dtype}, not floating-point numbers")
        return tensor.float()

    def check_rest(self, ignored: Sequence[str] = ()) -> None:
        """Raises RunError if something of the file was not used: it would be left out silently."""
        rest = [name for name in self.tensors if name not in self.taken and not name.endswith(tuple(ignored))]
        if rest:
            raise RunError(f"{self.where}: the tensor {rest[0]} is unknown, so this is another architecture")


@dataclass(frozen=True)
class Rows:
    """The rows of another program's table for each of weft's ids; None: a new row of zeros. never: ids that are not written."""

    rows: Sequence[int | None]
    never: frozenset[int]

    def table(self, table: Tensor, order: Tensor | None) -> Tensor:
        """[V, D] in weft's order."""
        table = table if order is None else table[:, order]
        taken = table[torch.tensor([0 if row is None else row for row in self.rows])]
        taken[torch.tensor([row is None for row in self.rows])] = 0.0
        return taken

    def bias(self, bias: Tensor) -> Tensor:
        """[V]"""
        taken = bias[torch.tensor([0 if row is None else row for row in self.rows])]
        taken[torch.tensor(sorted(self.never), dtype=torch.long)] = NEVER
        return taken
