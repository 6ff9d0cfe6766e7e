"""Model families, one file each."""

MODELS = {
    "transformer": "weft.models.transformer:Transformer",
}
