"""Bilingual dictionaries from two texts that are not translations of each other."""
