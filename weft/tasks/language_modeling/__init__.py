"""Language modelling and text generation."""
