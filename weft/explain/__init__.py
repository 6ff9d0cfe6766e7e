"""Explanations of predictions: attention maps, influence, the beam tree, heat maps, and the pages that show them."""
