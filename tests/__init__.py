"""Tests, in a folder for each package of weft."""
