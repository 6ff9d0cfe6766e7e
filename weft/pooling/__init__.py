"""Poolings: from a sequence to a few vectors."""

POOLINGS = {
    "mean": "weft.pooling.mean:MeanPooling",
    "max": "weft.pooling.max:MaxPooling",
    "self_attentive": "weft.pooling.self_attentive:SelfAttentivePooling",
    "pma": "weft.pooling.pma:MultiheadPooling",
}
