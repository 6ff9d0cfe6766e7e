"""Models: families, and the fronts, encoders and decoders that they are composed of."""

MODELS = {
    "composed": "weft.models.composing:Composed",
    "transformer": "weft.models.transformer:Transformer",
    "convs2s": "weft.models.convs2s:ConvS2S",
    "bytenet": "weft.models.bytenet:ByteNet",
    "rnn": "weft.models.rnn:RNN",
    "pointer": "weft.models.pointer:Pointer",
    "memory_network": "weft.models.memory_network:MemoryNetworkFamily",
    "cipher_gan": "weft.models.cipher_gan:CipherGanFamily",
    "language_model": "weft.models.lm:LanguageModelFamily",
    "rnn_language_model": "weft.models.rnn_lm:RecurrentLanguageModelFamily",
}

FRONTS = {
    "tokens": "weft.models.fronts:TokenFront",
    "words": "weft.models.word_front:WordFront",
    "frames": "weft.models.fronts:FrameFront",
    "pyramid": "weft.models.fronts:PyramidFront",
    "vectors": "weft.models.fronts:VectorFront",
    "patches": "weft.models.picture_fronts:PatchFront",
    "convolutions": "weft.models.picture_fronts:ConvolutionFront",
    "efficientnet": "weft.models.imagenet:EfficientNetFront",
    "sentences": "weft.models.sentence_front:SentenceFront",
}

ENCODERS = {
    "transformer": "weft.models.transformer:TransformerEncoder",
    "convs2s": "weft.models.convs2s:ConvS2SEncoder",
    "bytenet": "weft.models.bytenet:ByteNetEncoder",
    "rnn": "weft.models.rnn:RecurrentEncoder",
    "identity": "weft.models.identity:IdentityEncoder",
    "ntm": "weft.models.ntm:TuringEncoder",
}

DECODERS = {
    "transformer": "weft.models.transformer:TransformerDecoder",
    "convs2s": "weft.models.convs2s:ConvS2SDecoder",
    "bytenet": "weft.models.bytenet:ByteNetDecoder",
    "rnn": "weft.models.rnn:RecurrentDecoder",
    "parallel": "weft.models.parallel:ParallelTransformerDecoder",
}

CANVASES = {
    "ratio": "weft.models.canvases:RatioPlan",
    "length": "weft.models.canvases:LengthPlan",
    "fertility": "weft.models.canvases:FertilityPlan",
    "upsampled": "weft.models.canvases:UpsampledPlan",
}
