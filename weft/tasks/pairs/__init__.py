"""Pairs: a label or a number for two texts, such as entailment, paraphrase and relatedness."""

COMPARISONS = {
    "siamese": "weft.tasks.pairs.model:Siamese",
    "decomposable": "weft.tasks.pairs.model:DecomposableAttention",
    "esim": "weft.tasks.pairs.model:Esim",
    "joined": "weft.tasks.pairs.model:Joined",
}
