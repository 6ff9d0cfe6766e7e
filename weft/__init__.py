"""weft: sequence-to-sequence models from a file of pairs."""

__version__ = "0.1.0"
