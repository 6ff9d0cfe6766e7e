"""From files to batches. Knows `weft.batch` and nothing of models."""

TOKENIZERS = {
    "bpe": "weft.data.subword:BpeTokenizer",
    "unigram": "weft.data.subword:UnigramTokenizer",
    "sentencepiece": "weft.data.sentencepiece:SentencePieceTokenizer",
    "words": "weft.data.symbols:WordTokenizer",
    "characters": "weft.data.symbols:CharacterTokenizer",
    "bytes": "weft.data.symbols:ByteTokenizer",
}
