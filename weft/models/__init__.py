"""Models: families, and the frontends, encoders, decoders, length predictors and poolings that they are composed of."""

MODELS = {
    "composed": "weft.models.encoder_decoder:ComposedModel",
    "transformer": "weft.models.transformer:Transformer",
    "convs2s": "weft.models.convs2s:ConvS2S",
    "bytenet": "weft.models.bytenet:ByteNet",
    "rnn": "weft.models.rnn:RNN",
    "pointer": "weft.models.pointer_generator:Pointer",
    "prefix_language_model": "weft.models.prefix_language_model:PrefixLanguageModelFamily",
    "language_model": "weft.models.language_model:TransformerLanguageModelFamily",
    "bytenet_language_model": "weft.models.bytenet:ByteNetLanguageModelFamily",
    "rnn_language_model": "weft.models.rnn:RecurrentLanguageModelFamily",
}

FRONTS = {
    "tokens": "weft.models.frontends.base:TokenFrontend",
    "words": "weft.models.frontends.words_and_sentences:WordFrontend",
    "contextual": "weft.models.frontends.contextual:ContextualFrontend",
    "frames": "weft.models.frontends.base:FrameFrontend",
    "pyramid": "weft.models.frontends.base:PyramidFrontend",
    "vectors": "weft.models.frontends.base:VectorFrontend",
    "patches": "weft.models.frontends.images:PatchFrontend",
    "convolutions": "weft.models.frontends.images:ConvolutionFrontend",
    "efficientnet": "weft.models.frontends.images:EfficientNetFrontend",
    "sentences": "weft.models.frontends.words_and_sentences:SentenceFrontend",
}

ENCODERS = {
    "transformer": "weft.models.transformer:TransformerEncoder",
    "convs2s": "weft.models.convs2s:ConvS2SEncoder",
    "bytenet": "weft.models.bytenet:ByteNetEncoder",
    "rnn": "weft.models.rnn:RecurrentEncoder",
    "funnel": "weft.models.funnel:FunnelEncoder",
    "sliced_rnn": "weft.models.sliced_rnn:SlicedRecurrentEncoder",
    "text_cnn": "weft.models.text_cnn:TextCnnEncoder",
    "identity": "weft.models.encoder_decoder:IdentityEncoder",
}

DECODERS = {
    "transformer": "weft.models.transformer:TransformerDecoder",
    "convs2s": "weft.models.convs2s:ConvS2SDecoder",
    "bytenet": "weft.models.bytenet:ByteNetDecoder",
    "bytenet_rnn": "weft.models.bytenet:RecurrentByteNetDecoder",
    "rnn": "weft.models.rnn:RecurrentDecoder",
    "parallel": "weft.models.transformer:NonAutoregressiveTransformerDecoder",
}

CANVASES = {
    "ratio": "weft.models.nonautoregressive:LengthRatio",
    "length": "weft.models.nonautoregressive:LengthClassifier",
    "fertility": "weft.models.nonautoregressive:FertilityPredictor",
    "upsampled": "weft.models.nonautoregressive:Upsampling",
}

POOLINGS = {
    "mean": "weft.models.pooling:MeanPooling",
    "max": "weft.models.pooling:MaxPooling",
    "sum": "weft.models.pooling:SumPooling",
    "mean_max": "weft.models.pooling:MeanMaxPooling",
    "last_max_mean": "weft.models.pooling:LastMaxMeanPooling",
    "self_attentive": "weft.models.pooling:SelfAttentivePooling",
    "channel_attentive": "weft.models.pooling:ChannelAttentivePooling",
    "label_attentive": "weft.models.pooling:LabelAttentivePooling",
    "pma": "weft.models.pooling:MultiheadPooling",
}
