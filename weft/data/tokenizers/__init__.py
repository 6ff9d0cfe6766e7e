"""Tokenizers: the interface, subwords (BPE, unigram, SentencePiece), words, characters, bytes, added tokens, BPE-dropout."""
