"""Reads files, tokenises them, and makes batches. Independent of models."""

TOKENIZERS = {
    "bpe": "weft.data.subword:BpeTokenizer",
    "unigram": "weft.data.subword:UnigramTokenizer",
    "sentencepiece": "weft.data.sentencepiece:SentencePieceTokenizer",
    "words": "weft.data.symbols:WordTokenizer",
    "characters": "weft.data.symbols:CharacterTokenizer",
    "bytes": "weft.data.symbols:ByteTokenizer",
}
