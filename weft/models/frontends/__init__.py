"""Frontends: what turns tokens, words, sentences, frames or images into the vectors that an encoder reads."""
