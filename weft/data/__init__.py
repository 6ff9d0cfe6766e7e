"""From files to batches. Knows `weft.batch` and nothing of models."""

TOKENIZERS = {
    "bpe": "weft.data.tokenizer:BpeTokenizer",
    "unigram": "weft.data.tokenizer:UnigramTokenizer",
    "sentencepiece": "weft.data.tokenizer:SentencePieceTokenizer",
    "words": "weft.data.tokenizer:WordTokenizer",
    "characters": "weft.data.tokenizer:CharacterTokenizer",
    "bytes": "weft.data.tokenizer:ByteTokenizer",
}
