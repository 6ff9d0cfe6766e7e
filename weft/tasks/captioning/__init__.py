"""Captioning: a text for each image."""
