"""Mixers: self-attention replacements without a query. `SELF` lists everything that the self slot of a block accepts."""

from collections.abc import Mapping
from typing import Any

from weft.attention import ATTENTIONS
from weft.attention.base import Attention, Mixer, SelfAttention, Site
from weft.config.registry import build, fill
from weft.errors import ConfigError

MIXERS = {
    "recurrent": "weft.attention.mixers.convolution_and_recurrence:RecurrentMixer",
    "convolution": "weft.attention.mixers.convolution_and_recurrence:ConvolutionMixer",
    "lsh": "weft.attention.mixers.lsh_and_routing:LshMixer",
    "routing": "weft.attention.mixers.lsh_and_routing:RoutingMixer",
    "sinkhorn": "weft.attention.mixers.sinkhorn:SinkhornMixer",
    "fnet": "weft.attention.mixers.fnet:FourierMixer",
    "aft": "weft.attention.mixers.attention_free:AttentionFreeMixer",
    "gmlp": "weft.attention.mixers.gmlp_and_mlp_mixer:GatedMlpMixer",
    "mlp_mixer": "weft.attention.mixers.gmlp_and_mlp_mixer:TokenMlpMixer",
    "gat": "weft.attention.mixers.graph_attention:GraphAttentionMixer",
    "isab": "weft.attention.mixers.set_transformer:InducedSetMixer",
}

SELF = {**ATTENTIONS, **MIXERS}
"""Parts for the self slot of a block: mixers, and attentions over the sequence itself."""


def build_self(spec: Mapping[str, Any] | str, site: Site) -> Mixer:
    """Builds the mixer that `spec` describes. An attention is wrapped, so that both have the same interface."""
    options = fill("weft.attention.mixers:SELF", spec)
    try:
        part = build("weft.attention.mixers:SELF", options, site)
    except ConfigError as error:
        raise ConfigError(f"{options['kind']}: {error}") from None
    return SelfAttention(part) if isinstance(part, Attention) else part
