"""Attention mechanisms, one file each. To add one: write its file, add its line."""

ATTENTIONS = {
    "full": "weft.attention.full:FullAttention",
    "local": "weft.attention.local:LocalAttention",
    "linear": "weft.attention.linear:LinearAttention",
    "additive": "weft.attention.additive:AdditiveAttention",
    "additive_normed": "weft.attention.additive_normed:AdditiveNormedAttention",
    "dot": "weft.attention.dot:DotAttention",
    "general": "weft.attention.general:GeneralAttention",
    "concat": "weft.attention.concat:ConcatAttention",
    "location": "weft.attention.location:LocationAttention",
    "local_m": "weft.attention.local_m:LocalMonotonicAttention",
    "local_p": "weft.attention.local_p:LocalPredictiveAttention",
    "key_value": "weft.attention.key_value:KeyValueAttention",
    "hard": "weft.attention.hard:HardAttention",
    "monotonic": "weft.attention.monotonic:MonotonicAttention",
    "location_aware": "weft.attention.location_aware:LocationAwareAttention",
}
