"""Quality estimation: how good a translation is, and which of its words are wrong, from the source and the translation."""

ESTIMATORS = {
    "translator": "weft.tasks.quality.model:ForcedDecoding",
    "esim": "weft.tasks.pairs.model:Esim",
    "joined": "weft.tasks.pairs.model:Joined",
    "decomposable": "weft.tasks.pairs.model:DecomposableAttention",
    "siamese": "weft.tasks.pairs.model:Siamese",
}
