"""Copying from the source: pointer networks (Vinyals et al. 2015) and pointer-generators (See et al. 2017).

Source tokens outside the vocabulary have ids from its size V on, valid in one pair (`weft.data.copy_vocabulary`). A source of S
tokens has at most S of them, so V + S ids can be written. Shapes: G sources · B rows · T target positions · S source positions.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Attention
from weft.attention.core.rnn_attention import fold, unfold
from weft.attention.core.weight_recorder import cross_attentions, observe
from weft.config.registry import Among
from weft.data.batch import EOS, UNK, Layout, Source
from weft.errors import ConfigError
from weft.layers.decoder_state import State, shared, spread
from weft.layers.linear_norm_dropout import to_float32
from weft.layers.step_recorder import record, recording
from weft.models.base import Decoder, Encoded, Encoder, HiddenStates, Model, Sizes
from weft.models.encoder_decoder import ModelFamily, build_encoder_decoder

NEVER = float("-inf")
LOWEST = -1e30
"""Replaces −inf where the gradient of −inf would be NaN."""


@dataclass
class PointerEncoding:
    """The final state of the base encoder, and the tokens [G, S] that can be copied."""

    base: State
    tokens: Tensor


class PointerEncoder(Encoder):
    """The encoder of the base model, which reads UNK for unknown tokens; the decoder gets their ids."""

    def __init__(self, base: Encoder, size: int) -> None:
        super().__init__()
        self.base, self.size, self.width = base, size, base.width
        self.max_source, self.shortens = base.max_source, base.shortens

    def forward(self, source: Source) -> Encoded:
        encoded: Encoded = self.base(replace(source, values=_known(source.values, self.size)))
        return replace(encoded, final=PointerEncoding(encoded.final, source.values))


@dataclass
class PointerState:
    """The base decoder's state, and the output column of each source token.

    columns [G, S]: a token's id at its first occurrence, V + S (no column) at all others · joins [G, S, S] float: 1 from each
    occurrence of a token to its first. Padding has no weight, so its columns do not matter.
    """

    base: State
    columns: Tensor = shared()
    joins: Tensor = shared()


class PointerDecoder(Decoder):
    """Mixes the distribution of the base decoder with copies of the tokens that one of its attentions points at.

    Its hidden states are already logits, because they depend on the source, which an output layer does not know.
    """

    def __init__(self, base: Decoder, size: int, cross: str, *, generate: bool) -> None:
        super().__init__()
        self.base, self.size, self.cross_name, self.generate = base, size, cross, generate
        self.gate = nn.Linear(base.hidden + self.cross.context_width, 1)
        self.dim, self.max_length, self.max_memory = base.dim, base.max_length, base.max_memory

    @property
    def cross(self) -> Attention:
        """The attention that points."""
        attention = self.base.get_submodule(self.cross_name)
        assert isinstance(attention, Attention)
        return attention

    def init_state(self, source: Encoded, *, room: int | None = None) -> PointerState:
        assert isinstance(source.final, PointerEncoding)
        base = self.base.init_state(replace(source, final=source.final.base), room=room)
        tokens = source.final.tokens
        same = tokens[:, :, None] == tokens[:, None, :]
        first = ~same.tril(-1).any(-1)
        columns = tokens.where(first, self.size + tokens.size(1))
        return PointerState(base, columns, (same & first[:, None]).float())

    def hidden_states(self, tokens: Tensor, state: PointerState, layout: Layout | None = None) -> HiddenStates:
        attended: list[Attended] = []
        with observe(self.cross, attended.append):
            base = self.base.hidden_states(_known(tokens, self.size), state.base, layout)
        context = torch.cat([each.context for each in attended], 1)
        gate = self.gate(torch.cat([base.hidden, context.to(base.hidden.dtype)], -1))[..., 0]
        mass = joined_mass(attended, state)
        columns = spread(state.columns, mass.size(0))[:, None].expand_as(mass)
        if self.generate:
            generated = self.base.logits(base.hidden)
        else:  # the end is the only token that is not copied
            end = torch.arange(self.size, device=gate.device) == EOS
            generated = torch.where(end, 0.0, NEVER).to(mass.dtype).expand(*gate.shape, -1)
        mixed = mixture(generated, gate, mass, columns)
        if recording():
            self._record(generated, gate, mass, columns, mixed)
        return HiddenStates(mixed, replace(state, base=base.state), base.extras)

    def _record(self, generated: Tensor, gate: Tensor, mass: Tensor, columns: Tensor, mixed: Tensor) -> None:
        """Records both distributions and how they are mixed. Weights that sum to less than one make p too small here."""
        axes, words = "row token", "row token vocabulary"
        chance = gate.sigmoid()
        record("p_gen", chance, axes, "sigmoid(x)", self, x=(gate, axes))
        wide = F.pad(generated.softmax(-1), (0, mixed.size(-1) - generated.size(-1)))
        record("probabilities of writing", wide, words, "", self, logits=(generated, words))
        copied = torch.zeros_like(F.pad(mixed, (0, 1))).scatter_add(-1, columns, mass.to(mixed.dtype))[..., :-1]
        record("probabilities of copying", copied, words, "", self, weights=(mass, "row token key"))
        operands = {"p": (chance, axes), "writing": (wide, words), "copying": (copied, words)}
        total = chance[..., None] * wide + (1 - chance[..., None]) * copied
        record("mixture", total, words, "p * writing + (1 - p) * copying", self, **operands)
        record("probabilities", mixed.softmax(-1), words, "", self, mixture=(total, words))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden.clone()  # since logits belong to the caller


class Pointer(ModelFamily):
    """A model that can copy source tokens, including words outside the vocabulary (Vinyals et al. 2015, See et al. 2017).

    p(w) = p_gen P(w) + (1 − p_gen) Σ α_j over the positions j of w in the source, where P is the distribution of the base
    model, α the weights of one of its attentions (averaged over heads), and p_gen = σ(v · [hidden; context] + b). If the
    weights sum to less than 1, p is normalised.

    base: the model that reads and writes; its decoder needs an attention that shows weights
    layer: which of the decoder's attentions to the source points: 0 the first, -1 the last
    generate: also write words of the vocabulary (See et al.); false: only source tokens or the end, as in a pointer network
        (Vinyals et al.)
    """

    copies = True

    def __init__(
        self,
        *,
        base: Annotated[dict[str, Any], Among("weft.models:MODELS")] = {"kind": "rnn"},  # noqa: B006
        layer: int = -1,
        generate: bool = True,
    ) -> None:
        if base["kind"] == "pointer":
            raise ConfigError("model.base: a pointer cannot be the base of a pointer; choose the model that reads and writes")
        self.base, self.layer, self.generate = base, layer, generate

    def build(self, sizes: Sizes) -> Model:
        if not sizes.shared:
            raise ConfigError(
                "model.kind: pointer writes a source token by its id, so both sides need one vocabulary; "
                "set data.shared_vocabulary: true"
            )
        base = build_encoder_decoder(self.base, sizes, "model.base")
        decoder = PointerDecoder(base.decoder, sizes.target, _pointing(base.decoder, self.layer), generate=self.generate)
        model = Model(PointerEncoder(base.encoder, sizes.source), decoder)
        model.copies = True
        return model


def joined_mass(attended: list[Attended], state: PointerState) -> Tensor:
    """Weights [B, T, S], summed for each token at its first occurrence."""
    weights = torch.cat([each.weights.mean(1) for each in attended if each.weights is not None], 1)
    with torch.autocast(weights.device.type, enabled=False):
        weights = to_float32(weights)
        return unfold(fold(weights, state.joins.size(0)) @ state.joins.to(weights.dtype), weights.size(0))


def mixture(logits: Tensor, gate: Tensor, mass: Tensor, columns: Tensor) -> Tensor:
    """Logits [B, T, V + S] whose softmax is p_gen softmax(logits) + (1 − p_gen) copies, with p_gen = σ(gate).

    logits [B, T, V] · gate [B, T] · mass [B, T, S]: how much each source token is pointed at · columns [B, T, S]: its id, or
    V + S where it has no mass of its own. Ids that cannot be written have −inf.

    Both parts are multiplied by Z / p_gen, where Z normalises the softmax: the logits then stay as they are, and a copy has
    log mass + log Z − gate, since (1 − p_gen) / p_gen = exp(−gate). So no probability is ever rounded to 0 or 1.
    """
    logits, gate = to_float32(logits), to_float32(gate)
    extended = F.pad(logits, (0, mass.size(-1) + 1), value=NEVER)
    tiny = torch.finfo(mass.dtype).tiny
    copied = mass.clamp_min(tiny).log() + (logits.logsumexp(-1) - gate)[..., None]
    copied = copied.masked_fill(mass < tiny, LOWEST)
    written = extended.gather(-1, columns).clamp_min(LOWEST)
    both = torch.logaddexp(copied, written)
    both = both.masked_fill((copied == LOWEST) & (written == LOWEST), NEVER)
    return extended.scatter(-1, columns, both)[..., :-1]


def _known(tokens: Tensor, size: int) -> Tensor:
    """The tokens with UNK in place of ids beyond the vocabulary."""
    return tokens.masked_fill(tokens >= size, UNK)


def _pointing(decoder: Decoder, layer: int) -> str:
    """The name, inside the base decoder, of the attention that points."""
    crosses = cross_attentions(decoder)
    if not crosses:
        raise ConfigError(
            "model.base: its decoder has no attention over the source, so nothing in it can point; "
            "take a transformer, a convs2s, or an rnn of style bahdanau or luong"
        )
    if not -len(crosses) <= layer < len(crosses):
        raise ConfigError(
            f"model.layer: there is no attention {layer} to the source, since the decoder has {len(crosses)}; "
            f"choose from 0 to {len(crosses) - 1}, or -1 for the last"
        )
    name = list(crosses)[layer]
    if crosses[name].weights_sum is None:
        raise ConfigError(
            f"model.base: {type(crosses[name]).__name__} shows no weights, so it cannot point at a source token; "
            "take an attention that does (`weft list attentions` says which)"
        )
    return name
