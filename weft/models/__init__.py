"""Model families, one file each."""

MODELS = {
    "transformer": "weft.models.transformer:Transformer",
    "convs2s": "weft.models.convs2s:ConvS2S",
    "bytenet": "weft.models.bytenet:ByteNet",
    "rnn": "weft.models.rnn:RNN",
    "pointer": "weft.models.pointer:Pointer",
    "language_model": "weft.models.lm:LanguageModel",
}
