"""Explanations of translations: attention, token probabilities, the beam tree and word alignments."""
