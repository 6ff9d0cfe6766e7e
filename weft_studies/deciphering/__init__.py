"""Deciphering without pairs (CipherGAN)."""
