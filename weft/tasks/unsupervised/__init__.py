"""Unsupervised translation: denoising and online back-translation in one model of two languages."""
