"""Reads files, tokenises them, and makes batches. Independent of models."""

TOKENIZERS = {
    "bpe": "weft.data.tokenizers.bpe_and_unigram:BpeTokenizer",
    "unigram": "weft.data.tokenizers.bpe_and_unigram:UnigramTokenizer",
    "sentencepiece": "weft.data.tokenizers.sentencepiece_model:SentencePieceTokenizer",
    "mapped_sentencepiece": "weft.data.tokenizers.sentencepiece_model:MappedSentencePieceTokenizer",
    "words": "weft.data.tokenizers.word_character_byte:WordTokenizer",
    "characters": "weft.data.tokenizers.word_character_byte:CharacterTokenizer",
    "bytes": "weft.data.tokenizers.word_character_byte:ByteTokenizer",
}

GENERATORS = {"dates": "weft.data.generators:dates"}
