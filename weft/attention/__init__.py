"""Attention mechanisms, one file each. To add one: write its file, add its line."""

ATTENTIONS = {
    "full": "weft.attention.full:FullAttention",
    "local": "weft.attention.local:LocalAttention",
    "linear": "weft.attention.linear:LinearAttention",
    "additive": "weft.attention.additive:AdditiveAttention",
}
