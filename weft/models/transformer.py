"""The Transformer (Vaswani et al. 2017), whose self- and cross-attention slots take any mechanism.

Shapes: G sources · B rows · T target positions · S source positions · D width.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site, combine_packing
from weft.attention.mixers import build_self
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State, share_common
from weft.layers.embeddings_and_rotary_positions import (
    TokenEmbedding,
    first_positions,
    token_positions,
)
from weft.layers.kernels.cpp_plan import NotPlanned, Opening, PlanBuilder
from weft.layers.linear_norm_dropout import dropout, residual
from weft.layers.reversible import run_reversible
from weft.models.base import DecoderSite, Encoded, HiddenStates, LinearDecoder, least
from weft.models.encoder_decoder import FlatFamily, VectorEncoder
from weft.models.nonautoregressive import LengthPredictor, NonAutoregressiveDecoder, TargetCanvas
from weft.models.transformer_blocks import (
    CrossSlots,
    DecoderLayer,
    EncoderLayer,
    SelfSlots,
    StackState,
    TransformerBlock,
    UnprojectedMemory,
    in_turn,
)

Wiring = Literal["last", "same", "mix"]


class TransformerEncoder(VectorEncoder):
    """A stack of self-attention layers (Vaswani et al. 2017).

    layers: number of layers
    mixer: how positions are mixed: self-attention of any kind, or another mixer; the layers take the entries of a list in turn
    every_layer: pass the output of every layer to the decoder, for decoders with wiring: same or mix
    """

    def __init__(
        self,
        *,
        block: TransformerBlock,
        layers: PositiveInt = 4,
        mixer: SelfSlots = {"kind": "full"},  # noqa: B006
        every_layer: bool = False,
    ) -> None:
        super().__init__()
        if block.reversible and (block.norm, every_layer) != ("pre", False):
            raise ConfigError(
                "model.reversible needs norm: pre and wiring: last, because a post-norm sum cannot be undone and the outputs "
                "of lower layers are not kept"
            )
        if block.reversible and not (block.residual and block.feedforward):
            raise ConfigError("model.reversible needs residual: true and a feedforward above 0")
        kinds = in_turn(mixer, layers, "encoder_self")
        made = [EncoderLayer(block, build_self(kind, block.site("encoder"))) for kind in kinds]
        self.position, self.dropout, self.layers = block.make_position(), block.dropout, nn.ModuleList(made)
        self.norm, self.reversible, self.post = block.final_norm(), block.reversible, block.norm == "post"
        self.lower_norms = nn.ModuleList(block.final_norm() for _ in made[1:] if every_layer)
        self.input_width = self.width = block.dim
        self.depth, self.repeated = layers if every_layer else 1, made
        mixers = [layer.mixer for layer in made]
        self.max_length = least(block.positions, *(each.max_length for each in mixers))
        combine_packing(self, mixers)
        # A reversible backward pass restores the state of the random number generator, which a CUDA graph cannot record.
        self.cuda_graph_safe = not block.reversible
        self.compiles = self.cuda_graph_safe and all(each["kind"] == "full" for each in kinds)

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        extras: dict[str, Tensor] = {}
        if self.position is not None:
            x = self.position.join(x, token_positions(x, layout))
        x = dropout(x, self.dropout, self.training)
        if self.post:
            x = residual(x, self.training)
        if self.reversible:
            layers = cast(Iterable[EncoderLayer], self.layers)
            streams = run_reversible(x, [part for layer in layers for part in layer.sublayers(layout)])
            memory = self.norm(streams.mean)
            return Encoded(memory, layout, streams.extras, layers=[memory])
        heights = []
        for layer in self.layers:
            x = layer(x, layout, extras)
            heights.append(x)
        memory = self.norm(x)
        lower = [norm(height) for norm, height in zip(self.lower_norms, heights)]
        return Encoded(memory, layout, extras, layers=[*lower, memory])

    def plan(self, draft: PlanBuilder) -> None:
        if self.reversible or self.lower_norms:
            raise NotPlanned("reversible layers" if self.reversible else "an encoder that passes on every layer")
        draft.stack(self.layers, self.norm, draft.part(self.front, first_positions(self.position)))


class EncoderWiring(nn.Module):
    """The encoder layer that each decoder layer attends to: the last, the one at its height, or a learned mean of all.

    The weights of the mean are a softmax (Bapna et al. 2018) that starts uniform.
    """

    def __init__(self, wiring: Wiring, encoder_layers: int, decoder_layers: int) -> None:
        super().__init__()
        if wiring != "last" and encoder_layers == 0:
            raise ConfigError(f"model.decoder.wiring: {wiring} needs an encoder that passes on every layer; use wiring: last")
        if wiring == "same" and encoder_layers != decoder_layers:
            raise ConfigError(
                "model.wiring: same needs as many encoder layers as decoder layers, "
                f"not {encoder_layers} and {decoder_layers}; make them equal, or use wiring: mix"
            )
        self.wiring, self.readers = wiring, decoder_layers
        self.mixture = nn.Parameter(torch.zeros(decoder_layers, encoder_layers)) if wiring == "mix" else None

    def forward(self, source: Encoded) -> list[Tensor]:
        """One memory [G, S, D] for each decoder layer."""
        if self.mixture is not None:
            return list(torch.einsum("rl,lgsd->rgsd", self.mixture.softmax(-1), torch.stack(source.layers)))
        return source.layers if self.wiring == "same" else [source.memory] * self.readers


def _decoder_layers(
    block: TransformerBlock, site: DecoderSite, mixers: list[dict[str, Any]], crosses: list[dict[str, Any] | None], own: Site
) -> list[DecoderLayer]:
    """Layers of a decoder. crosses: None for a layer that does not attend to the source · own: where their mixers are used."""
    source = replace(block.site("cross"), memory=None if site.memory == block.dim else site.memory, side=own.side)
    return [
        DecoderLayer(
            block,
            build_self(mixer, own),
            None if cross is None else build("weft.attention:ATTENTIONS", cross, source),
            causal=own.use == "causal",
        )
        for mixer, cross in zip(mixers, crosses, strict=True)
    ]


class TransformerDecoder(LinearDecoder):
    """A stack of layers with causal self-attention and cross-attention (Vaswani et al. 2017).

    layers: number of layers
    mixer: how target positions are mixed with earlier ones: causal self-attention of any kind, or another mixer; the layers
      take the entries of a list in turn
    cross: attention to the source; the layers take the entries of a list in turn
    cross_layers: which layers attend to the source: all as published, or only the last
    wiring: which encoder layer each decoder layer attends to: the last, the one at the same height, or a learned mix of all
    output_bias: whether the output layer has a bias
    zero_bos: BOS is embedded as zeros, as in Marian, and neither BOS nor PAD has a probability; needs output_bias
    """

    def __init__(
        self,
        site: DecoderSite,
        *,
        block: TransformerBlock,
        layers: PositiveInt = 4,
        mixer: SelfSlots = {"kind": "full"},  # noqa: B006
        cross: CrossSlots = {"kind": "full"},  # noqa: B006
        cross_layers: Literal["all", "last"] = "all",
        wiring: Wiring = "last",
        output_bias: bool = False,
        zero_bos: bool = False,
    ) -> None:
        super().__init__()
        if zero_bos and not output_bias:
            raise ConfigError("model.zero_bos: the probability of BOS is 0 by its bias; set model.output_bias: true")
        table, output = site.tables(block.dim, bias=output_bias, zero_bos=zero_bos)
        self.zero_bos = zero_bos
        if cross_layers == "last" and (wiring != "last" or block.reversible):
            raise ConfigError("model.cross_layers: last needs wiring: last and reversible: false")
        mixers, kinds = in_turn(mixer, layers, "decoder_self"), in_turn(cross, layers, "cross")
        first = layers - 1 if cross_layers == "last" else 0
        crosses = [None if place < first else kind for place, kind in enumerate(kinds)]
        made = _decoder_layers(block, site, mixers, crosses, block.site("causal"))
        self.embedding = TokenEmbedding(table, block.make_position(), block.dropout)
        self.layers, self.wires, self.output = nn.ModuleList(made), EncoderWiring(wiring, site.depth, layers), output
        self.norm, self.reversible, self.post = block.final_norm(), block.reversible, block.norm == "post"
        self.dim, self.hidden, self.readers, self.repeated = block.dim, block.dim, layers - first, made
        self.max_length = least(block.positions, *(each.mixer.max_length for each in made))
        slots = [slot for each in made for slot in (each.mixer, each.cross) if slot is not None]
        self.max_memory = least(*(each.cross.max_length for each in made if each.cross is not None))
        combine_packing(self, slots)
        self.cuda_graph_safe = not block.reversible
        self.compiles = self.cuda_graph_safe and all(each["kind"] == "full" for each in (*mixers, *kinds)) and first == 0
        self.kinds = len(mixer) if isinstance(mixer, list) else 1

    def init_state(self, source: Encoded, *, room: int | None = None) -> StackState:
        rows = source.memory.size(0)
        layers = list(cast(Iterable[DecoderLayer], self.layers))
        own = share_common([each.init_state(rows=rows, room=room) for each in layers], self.kinds)
        memories = self.wires(source)
        crosses: list[State] = [UnprojectedMemory(memory, source.layout) for memory in memories]
        if not (self.reversible and torch.is_grad_enabled()):
            crosses = [each.read_source(memory, source.layout) for each, memory in zip(layers, memories, strict=True)]
        return StackState(own, crosses, torch.zeros(rows, dtype=torch.long, device=source.memory.device))

    def hidden_states(self, tokens: Tensor, state: StackState, layout: Layout | None = None) -> HiddenStates:
        extras: dict[str, Tensor] = {}
        positions = token_positions(tokens, layout) + state.fed[:, None]
        fed = tokens.size(1) if layout is None else layout.lengths
        x = self.embedding(tokens, positions)
        if self.post:
            x = residual(x, self.training)
        own: list[State] = []
        crosses: list[State] = []
        layers = zip(cast(Iterable[DecoderLayer], self.layers), state.own, state.source, strict=True)
        if self.reversible:
            parts = [part for layer, mine, cross in layers for part in layer.sublayers(mine, cross, layout)]
            streams = run_reversible(x, parts)
            after = streams.states
            own, crosses = list(zip(after[::3], after[2::3], strict=True)), after[1::3]
            return HiddenStates(self.norm(streams.mean), StackState(own, crosses, state.fed + fed), streams.extras)
        for layer, mine, cross in layers:
            x, mine, cross = layer(x, mine, cross, layout, extras)
            own.append(mine)
            crosses.append(cross)
        return HiddenStates(self.norm(x), StackState(own, crosses, state.fed + fed), extras)

    def plan(self, draft: PlanBuilder) -> None:
        if self.reversible:
            raise NotPlanned("reversible layers")
        draft.opens(TransformerDecoder._opening)
        draft.stack(self.layers, self.norm, draft.part(self.embedding))

    def _opening(self, source: Encoded) -> Opening:
        layers = zip(cast(Iterable[DecoderLayer], self.layers), self.wires(source), strict=True)
        return Opening([layer.read_source(memory, source.layout) for layer, memory in layers if layer.cross is not None])


class Transformer(FlatFamily):
    """Encoder and decoder stacks with attention (Vaswani et al. 2017), post-norm as published or pre-norm."""

    parts = (
        (TransformerEncoder, {"layers": "encoder_layers", "mixer": "encoder_self"}),
        (TransformerDecoder, {"layers": "decoder_layers", "mixer": "decoder_self"}),
    )
    derived = frozenset({"every_layer"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, every_layer=options["wiring"] != "last")


@dataclass
class CanvasState:
    """The state of each layer's attention to the source, and the inputs of blanks [B, T, D], if not one embedding."""

    source: list[State]
    inputs: Tensor | None = None


class NonAutoregressiveTransformerDecoder(NonAutoregressiveDecoder):
    """A stack of layers in which every target position attends to all others and to the source.

    layers: number of layers
    mixer: how target positions are mixed: self-attention of any kind that sees both directions, or another mixer; the layers
      take the entries of a list in turn
    cross: attention to the source; the layers take the entries of a list in turn
    canvas: how many positions there are, and what they read before anything is written
    """

    def __init__(
        self,
        site: DecoderSite,
        *,
        block: TransformerBlock,
        layers: PositiveInt = 4,
        mixer: SelfSlots = {"kind": "full"},  # noqa: B006
        cross: CrossSlots = {"kind": "full"},  # noqa: B006
        canvas: Annotated[dict[str, Any], Among("weft.models:CANVASES")] = {"kind": "upsampled"},  # noqa: B006
    ) -> None:
        super().__init__()
        if block.reversible or site.paired:
            reason = "reversible layers" if block.reversible else "an encoder with separate keys and values, such as convs2s"
            raise ConfigError(f"model.decoder: parallel does not support {reason}; set reversible: false, or choose another")
        table, output = site.tables(block.dim)
        mixers, crosses = in_turn(mixer, layers, "mixer"), in_turn(cross, layers, "cross")
        made = _decoder_layers(block, site, mixers, [*crosses], replace(block.site("encoder"), side="target"))
        self.table, self.position, self.dropout = table, block.make_position(), block.dropout
        self.canvases: LengthPredictor = build(
            "weft.models:CANVASES", canvas, site.memory, block.dim, where="model.decoder.canvas"
        )
        if self.canvases.alike and self.position is None:
            raise ConfigError(
                "model.decoder.position: none would make all blanks of this canvas alike; set it to sinusoidal or learned"
            )
        self.layers, self.output, self.blank = nn.ModuleList(made), output, site.vocabulary - 1
        self.norm, self.post = block.final_norm(), block.norm == "post"
        self.dim, self.hidden, self.readers, self.repeated = block.dim, block.dim, layers, made
        self.max_length = least(block.positions, *(each.mixer.max_length for each in made))
        fits = None if self.max_length is None else self.canvases.longest_source(self.max_length)
        self.max_memory = least(fits, *(each.cross.max_length for each in made if each.cross is not None))
        self.cuda_graph_safe = True

    def init_state(self, source: Encoded, *, room: int | None = None) -> CanvasState:
        layers = cast(Iterable[DecoderLayer], self.layers)
        return CanvasState([each.read_source(source.memory, source.layout) for each in layers])

    def open(self, source: Encoded, canvas: TargetCanvas) -> CanvasState:
        return replace(self.init_state(source), inputs=self.canvases.inputs(source, canvas))

    def embed(self, tokens: Tensor, state: CanvasState, layout: Layout | None = None) -> Tensor:
        x: Tensor = self.table(tokens) * self.dim**0.5
        if state.inputs is not None:
            x = torch.where((tokens == self.blank)[..., None], state.inputs.to(x.dtype), x)
        return x if self.position is None else self.position.join(x, token_positions(tokens, layout))

    def hidden_states(self, tokens: Tensor, state: CanvasState, layout: Layout | None = None) -> HiddenStates:
        extras: dict[str, Tensor] = {}
        x = dropout(self.embed(tokens, state, layout), self.dropout, self.training)
        if self.post:
            x = residual(x, self.training)
        for layer, cross in zip(cast(Iterable[DecoderLayer], self.layers), state.source, strict=True):
            x, _, _ = layer(x, (layer.mixer.init_state(rows=x.size(0)), None), cross, layout, extras)
        return HiddenStates(self.norm(x), state, extras)

    def plan(self, draft: PlanBuilder) -> None:
        if self.canvases.holds == "path":  # one pass over blanks alone
            x = draft.part(self.canvases, first_positions(self.position))
        else:
            draft.opens(lambda decoder, state: Opening(state.source))
            x = draft.given(self.dim)
        draft.stack(self.layers, self.norm, x)
