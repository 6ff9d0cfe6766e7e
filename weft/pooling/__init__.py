"""Poolings: from a sequence to a few vectors."""

POOLINGS = {
    "mean": "weft.pooling.mean_max:MeanPooling",
    "max": "weft.pooling.mean_max:MaxPooling",
    "last_max_mean": "weft.pooling.mean_max:LastMaxMeanPooling",
    "self_attentive": "weft.pooling.learned_queries:SelfAttentivePooling",
    "pma": "weft.pooling.learned_queries:MultiheadPooling",
}
