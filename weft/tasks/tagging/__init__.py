"""Tagging: a tag for each word, by a softmax or a CRF."""
