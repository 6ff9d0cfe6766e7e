"""Mixers: self-attention replacements without a query. `SELF` lists everything that the self slot of a block accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.attention import ATTENTIONS
from weft.attention.base import Attention, Site
from weft.config.registry import build, fill
from weft.errors import ConfigError
from weft.mixers.base import Mixer, SelfAttention

MIXERS = {
    "recurrent": "weft.mixers.recurrent:RecurrentMixer",
    "convolution": "weft.mixers.convolution:ConvolutionMixer",
    "lsh": "weft.mixers.lsh:LshMixer",
    "routing": "weft.mixers.routing:RoutingMixer",
    "sinkhorn": "weft.mixers.sinkhorn:SinkhornMixer",
    "fnet": "weft.mixers.fnet:FourierMixer",
    "aft": "weft.mixers.aft:AttentionFreeMixer",
    "gmlp": "weft.mixers.gmlp:GatedMlpMixer",
    "mlp_mixer": "weft.mixers.mlp_mixer:TokenMlpMixer",
    "isab": "weft.mixers.isab:InducedSetMixer",
}

SELF = {**ATTENTIONS, **MIXERS}
"""What the self slot of a block accepts: mixers, and attentions over the sequence itself."""


def build_self(spec: Mapping[str, Any] | str, site: Site) -> Mixer:
    """Builds the mixer that `spec` describes. An attention is wrapped, so that both have the same interface."""
    options = fill("weft.mixers:SELF", spec)
    try:
        part = build("weft.mixers:SELF", options, site)
    except ConfigError as error:
        raise ConfigError(f"{options['kind']}: {error}") from None
    return SelfAttention(part) if isinstance(part, Attention) else part
