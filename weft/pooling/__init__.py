"""From a sequence to a few vectors, one file each."""

POOLINGS = {
    "mean": "weft.pooling.mean:MeanPooling",
    "self_attentive": "weft.pooling.self_attentive:SelfAttentivePooling",
}
