"""Attention mechanisms, grouped by paper. To add one, write its file here and add its line to this table.

`base.py` defines the interface. `core` holds the building blocks that mechanisms share.
"""

ATTENTIONS = {
    "full": "weft.attention.full:FullAttention",
    "xl_relative": "weft.attention.transformer_xl:XlRelativeAttention",
    "local": "weft.attention.local:LocalAttention",
    "strided": "weft.attention.sparse_transformer:StridedAttention",
    "fixed": "weft.attention.sparse_transformer:FixedAttention",
    "global": "weft.attention.longformer:GlobalAttention",
    "random": "weft.attention.bigbird:RandomAttention",
    "longformer": "weft.attention.longformer:LongformerAttention",
    "bigbird": "weft.attention.bigbird:BigBirdAttention",
    "joined": "weft.attention.mixed_heads:JoinedAttention",
    "mixed": "weft.attention.mixed_heads:MixedAttention",
    "parts": "weft.attention.mixed_heads:PartsAttention",
    "synthesizer": "weft.attention.synthesizer:SynthesizerAttention",
    "linear": "weft.attention.linear:LinearAttention",
    "performer": "weft.attention.performer:PerformerAttention",
    "rfa": "weft.attention.random_features:RandomFeatureAttention",
    "gated_rfa": "weft.attention.random_features:GatedRandomFeatureAttention",
    "efficient": "weft.attention.linear:EfficientAttention",
    "linformer": "weft.attention.linformer:LinformerAttention",
    "compressed": "weft.attention.memory_compressed:CompressedAttention",
    "additive": "weft.attention.bahdanau:AdditiveAttention",
    "additive_normed": "weft.attention.bahdanau:AdditiveNormedAttention",
    "dot": "weft.attention.luong:DotAttention",
    "general": "weft.attention.luong:GeneralAttention",
    "concat": "weft.attention.luong:ConcatAttention",
    "cosine": "weft.attention.luong:CosineAttention",
    "location": "weft.attention.luong:LocationAttention",
    "local_m": "weft.attention.luong:LocalMonotonicAttention",
    "local_p": "weft.attention.luong:LocalPredictiveAttention",
    "key_value": "weft.attention.key_value:KeyValueAttention",
    "hard": "weft.attention.hard:HardAttention",
    "monotonic": "weft.attention.monotonic:MonotonicAttention",
    "location_aware": "weft.attention.location_aware:LocationAwareAttention",
}

CROSS = {"multistep": "weft.attention.multistep:MultistepAttention", **ATTENTIONS}
"""Attention of a ConvS2S decoder layer to the source: the paper's own, or any other cross-attention."""
