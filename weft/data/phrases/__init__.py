"""Phrase-based translation: n-gram language models, phrase tables, a stack decoder, and rounds of back-translation."""
